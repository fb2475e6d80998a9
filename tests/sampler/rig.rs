//! The sampler's kernels on a device, with slots of one's own: admit requests, hand in logits, read records.

use bytemuck::Zeroable;
use gemma4_serve::device::{Context, DeviceBuffer, DeviceChoice, DeviceKind, Stream, load_driver, soft};
use gemma4_serve::images;
use gemma4_serve::model::kernels::bindings::{G4_BIAS_MAX, G4_EOS_IDS, G4_SAMPLE_GROUP, G4_SAMPLING_LOGPROBS};
use gemma4_serve::model::kernels::{
    G4Bias, G4Logprobs, G4Record, G4SampleParams, G4Slot, G4Words, KernelImage, Kernels,
};
use gemma4_serve::sampler::oracle::{Logprobs, OracleRow, Outcome};
use gemma4_serve::sampling::SamplingParams;

/// A request whose tokens are sampled here.
#[derive(Clone, Debug)]
pub struct Request {
    pub params: SamplingParams,
    pub prompt: Vec<u32>,
    pub output: Vec<u32>,
    pub stop_ids: Vec<u32>,
    pub ignore_eos: bool,
    pub output_limit: usize,
}

impl Request {
    pub fn new(params: SamplingParams) -> Self {
        let (prompt, output, stop_ids) = Default::default();
        Request { params, prompt, output, stop_ids, ignore_eos: true, output_limit: 1 << 20 }
    }
}

/// What the model says, for every row.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub suppressed: Vec<u32>,
    pub eos_ids: Vec<u32>,
}

/// What a step says of one row.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub record: G4Record,
    pub logprobs: G4Logprobs,
}

pub struct Rig {
    pub context: Context,
    pub vocab: usize,
    pub model: Model,
    pub slots: usize,
    kernels: Kernels,
    stream: Stream,
    logits: DeviceBuffer<f32>,
    slot_state: DeviceBuffer<G4Slot>,
    mask: DeviceBuffer<u32>,
    bias: DeviceBuffer<G4Bias>,
    words: DeviceBuffer<G4Words>,
    forced: DeviceBuffer<i32>,
    counts: DeviceBuffer<u16>,
    prompt_bits: DeviceBuffer<u32>,
    suppressed: DeviceBuffer<i32>,
    row_slot: DeviceBuffer<i32>,
    step: DeviceBuffer<i32>,
    maxima: [DeviceBuffer<u32>; 2],
    sums: [DeviceBuffer<f32>; 2],
    records: DeviceBuffer<G4Record>,
    logprobs: DeviceBuffer<G4Logprobs>,
    steps: i32,
}

/// Opens the device of a choice on this thread.
pub fn device(choice: DeviceChoice) -> DeviceKind {
    load_driver(choice, !images::FATBINS.is_empty()).expect("a device")
}

impl Rig {
    /// Slots, and at most as many rows a step; each slot has a penalty table of its own number.
    pub fn new(kind: DeviceKind, vocab: usize, slots: usize, model: Model) -> Self {
        let context = Context::open(kind.ordinal()).expect("a context");
        let stream = Stream::new(&context).expect("a stream");
        let kernels = Kernels::load(&context, KernelImage::Shipped(kind)).expect("kernels");
        let groups = slots * vocab.div_ceil(G4_SAMPLE_GROUP as usize);
        let words = vocab.div_ceil(32);
        let rig = Rig {
            vocab,
            slots,
            logits: buffer(&context, slots * vocab),
            slot_state: buffer(&context, slots),
            mask: buffer(&context, slots * words),
            bias: buffer(&context, slots * G4_BIAS_MAX as usize),
            words: buffer(&context, slots),
            forced: buffer(&context, slots),
            counts: buffer(&context, slots * vocab),
            prompt_bits: buffer(&context, slots * words),
            suppressed: buffer(&context, model.suppressed.len()),
            row_slot: buffer(&context, slots),
            step: buffer(&context, 1),
            maxima: [buffer(&context, groups), buffer(&context, groups)],
            sums: [buffer(&context, groups), buffer(&context, groups)],
            records: buffer(&context, slots),
            logprobs: buffer(&context, slots),
            steps: 0,
            model,
            kernels,
            stream,
            context,
        };
        let suppressed: Vec<i32> = rig.model.suppressed.iter().map(|&id| id as i32).collect();
        rig.stream.upload(rig.suppressed.all(), &suppressed).expect("upload");
        rig.stream.fill(rig.forced.all(), 0xff).expect("fill");
        rig
    }

    /// Puts a request into a slot, with the history it has.
    pub fn admit(&mut self, slot: usize, request: &Request, generation: u32) {
        let p = &request.params;
        let packed = p.pack(self.vocab, slot, &request.prompt);
        let mut stop_ids = [-1; 16];
        stop_ids.iter_mut().zip(&request.stop_ids).for_each(|(to, &id)| *to = id as i32);
        let state = G4Slot {
            live: 1,
            position: 0,
            last_token: -1,
            output_index: request.output.len() as i32,
            output_limit: request.output_limit as i32,
            position_limit: i32::MAX,
            generation,
            ignore_eos: request.ignore_eos.into(),
            stop_count: request.stop_ids.len() as i32,
            stop_ids,
            sampling: packed.sampling,
        };
        let s = &self.stream;
        s.upload(self.slot_state.slice(slot..slot + 1), &[state]).expect("upload");
        let first = slot * G4_BIAS_MAX as usize;
        s.upload(self.bias.slice(first..first + packed.bias.len()), &packed.bias).expect("upload");
        if let Some(mask) = &packed.mask {
            self.set_mask(slot, mask);
        }
        if let Some(mut words) = packed.words {
            replay_words(&mut words, &request.output);
            self.stream.upload(self.words.slice(slot..slot + 1), &[*words]).expect("upload");
        }
        if p.has_penalties() {
            let mut counts = vec![0u16; self.vocab];
            request.output.iter().for_each(|&id| counts[id as usize] += 1);
            let words = self.vocab.div_ceil(32);
            let table = self.counts.slice(slot * self.vocab..(slot + 1) * self.vocab);
            self.stream.upload(table, &counts).expect("upload");
            let bits = self.prompt_bits.slice(slot * words..(slot + 1) * words);
            self.stream.upload(bits, packed.prompt_bits.as_ref().expect("penalties")).expect("upload");
        }
    }

    /// The door of masks: the words a slot's next steps read.
    pub fn set_mask(&mut self, slot: usize, mask: &[u32]) {
        let words = self.vocab.div_ceil(32);
        self.stream.upload(self.mask.slice(slot * words..(slot + 1) * words), mask).expect("upload");
    }

    /// The door of overrides: the slot's next token.
    pub fn force(&mut self, slot: usize, token: u32) {
        self.stream.upload(self.forced.slice(slot..slot + 1), &[token as i32]).expect("upload");
    }

    /// One step: row r samples `logits[r]` for slot `rows[r]`; -1 is padding.
    pub fn step(&mut self, rows: &[i32], logits: &[f32]) -> Vec<Sampled> {
        assert_eq!(logits.len(), rows.len() * self.vocab);
        self.steps += 1;
        let s = &self.stream;
        s.upload(self.logits.slice(0..logits.len()), logits).expect("upload");
        s.upload(self.row_slot.slice(0..rows.len()), rows).expect("upload");
        s.upload(self.step.all(), &[self.steps]).expect("upload");
        self.kernels.sample(s, &self.launch(rows.len())).expect("launches");
        let records = s.download(self.records.slice(0..rows.len()));
        let records = records.unwrap_or_else(|error| panic!("{error}: {}", soft::last_report()));
        // Entries stand side by side, in row order, for the rows whose slots ask.
        let mut entries = s.download(self.logprobs.slice(0..rows.len())).expect("logprobs").into_iter();
        let states = self.slot_states();
        let asks = |slot: i32| slot >= 0 && states[slot as usize].sampling.flags & G4_SAMPLING_LOGPROBS != 0;
        let sampled = records.into_iter().zip(rows).map(|(record, &slot)| {
            let logprobs = if asks(slot) { entries.next().expect("an entry a row") } else { Zeroable::zeroed() };
            if asks(slot) && record.token >= 0 {
                assert_eq!((logprobs.step, logprobs.generation), (record.step, record.generation));
                assert_eq!(logprobs.token_logprob.to_bits(), record.logprob.to_bits());
            }
            Sampled { record, logprobs }
        });
        sampled.collect()
    }

    pub fn slot_states(&self) -> Vec<G4Slot> {
        self.stream.download(self.slot_state.all()).expect("slots")
    }

    pub fn steps(&self) -> i32 {
        self.steps
    }

    fn launch(&self, rows: usize) -> G4SampleParams {
        let mut eos_ids = [-1; G4_EOS_IDS as usize];
        eos_ids.iter_mut().zip(&self.model.eos_ids).for_each(|(to, &id)| *to = id as i32);
        G4SampleParams {
            logits: self.logits.ptr(),
            slot: self.row_slot.ptr(),
            status: std::ptr::null(),
            row_slot: self.row_slot.ptr(),
            step: self.step.ptr(),
            slots: self.slot_state.ptr(),
            mask: self.mask.ptr(),
            bias: self.bias.ptr(),
            words: self.words.ptr(),
            forced: self.forced.ptr(),
            counts: self.counts.ptr(),
            prompt_bits: self.prompt_bits.ptr(),
            suppressed: self.suppressed.ptr(),
            group_max: self.maxima[0].ptr(),
            group_sum: self.sums[0].ptr(),
            raw_max: self.maxima[1].ptr(),
            raw_sum: self.sums[1].ptr(),
            records: self.records.ptr(),
            logprobs: self.logprobs.ptr(),
            rows: rows as i32,
            vocab: self.vocab as i32,
            groups: self.vocab.div_ceil(G4_SAMPLE_GROUP as usize) as i32,
            mask_words: self.vocab.div_ceil(32) as i32,
            suppressed_count: self.model.suppressed.len() as i32,
            eos_count: self.model.eos_ids.len() as i32,
            eos_ids,
        }
    }

    /// The same row for the oracle.
    pub fn oracle_row<'a>(&'a self, request: &'a Request, logits: &'a [f32], forced: Option<u32>) -> OracleRow<'a> {
        OracleRow {
            logits,
            params: &request.params,
            prompt: &request.prompt,
            output: &request.output,
            suppressed: &self.model.suppressed,
            eos_ids: &self.model.eos_ids,
            stop_ids: &request.stop_ids,
            forced,
        }
    }
}

fn buffer<T: bytemuck::Pod>(context: &Context, len: usize) -> DeviceBuffer<T> {
    DeviceBuffer::new(context, len).expect("device memory")
}

/// What the device would have made of the words, had it seen the output.
fn replay_words(words: &mut G4Words, output: &[u32]) {
    output.iter().rev().zip(&mut words.tail).for_each(|(&id, tail)| *tail = id as i32);
    words.active_count = 0;
    for w in 0..words.count as usize {
        let word = &words.ids[words.begin[w] as usize..words.begin[w + 1] as usize];
        let (last, before) = word.split_last().expect("a word has tokens");
        let before: Vec<u32> = before.iter().map(|&id| id as u32).collect();
        if output.ends_with(&before) {
            words.active[words.active_count as usize] = *last;
            words.active_count += 1;
        }
    }
}

/// What a step said, as the oracle would put it; the kept set is not visible from outside.
pub fn outcome_of(sampled: &Sampled, params: &SamplingParams, kept: Vec<u32>) -> Outcome {
    match sampled.record.token {
        -2 => Outcome::NotANumber,
        -3 => Outcome::AllMasked,
        token if token >= 0 => {
            let l = &sampled.logprobs;
            let logprobs = params.logprobs.map(|count| Logprobs {
                of_token: sampled.record.logprob,
                rank: l.rank as usize,
                top: (0..count as usize)
                    .map(|i| (l.id[i] as u32, l.logprob[i]))
                    .filter(|top| top.0 != u32::MAX)
                    .collect(),
            });
            Outcome::Token { token: token as u32, kept, logprobs }
        }
        status => panic!("status {status} of a live row"),
    }
}
