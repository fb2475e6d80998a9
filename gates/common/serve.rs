//! An engine in the gate's own hands: built as the server builds it, stepped by the gate, logits read after each step.

use std::collections::HashMap;
use std::time::Duration;

use gemma4_serve::device::DeviceKind;
use gemma4_serve::engine::handle::{EngineHandle, TokenStream, door};
use gemma4_serve::engine::start::build_runner;
use gemma4_serve::engine::{Engine, Switches};
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::KernelImage;
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::{GenerateRequest, RequestId};

pub struct Serve {
    pub engine: Engine,
    pub handle: EngineHandle,
    vocab: usize,
    /// Hash over the logits of every output position, by request.
    hashes: HashMap<RequestId, u64>,
}

impl Serve {
    /// The shipped kernels. Logits are read after each step, so the steps must not overlap; the tracer gate covers the
    /// pipeline by its tokens.
    #[allow(dead_code, reason = "gates of the real kernels")]
    pub fn new(checkpoint: &Checkpoint, device: DeviceKind, options: &PlanOptions, graphs: bool) -> Self {
        let switches = Switches { pipeline: false, ..Switches::default() };
        Self::with(checkpoint, device, KernelImage::Shipped(device), options, graphs, switches, Duration::ZERO)
    }

    #[allow(clippy::too_many_arguments, reason = "what an engine is built from")]
    pub fn with(
        checkpoint: &Checkpoint,
        device: DeviceKind,
        image: KernelImage,
        options: &PlanOptions,
        graphs: bool,
        switches: Switches,
        spin: Duration,
    ) -> Self {
        let (mut runner, _) = build_runner(checkpoint, device, image, options, spin, &mut |_, _| {}).expect("a runner");
        if !switches.tail {
            runner.without_tail();
        }
        runner.warm_up(|| {}).expect("a warm-up");
        if graphs {
            runner.capture(|_| {}).expect("a capture");
        }
        let (handle, door) = door(4096);
        door.ready();
        let engine = Engine::new(runner, door, switches);
        Serve { engine, handle, vocab: checkpoint.config.vocab, hashes: HashMap::new() }
    }

    pub fn submit(&mut self, request: GenerateRequest) -> TokenStream {
        let place = self.handle.reserve(1).expect("a place").pop().expect("one place");
        place.submit(request).expect("an accepted request")
    }

    /// One engine step; false when idle. Mixes each row's logits into its request's hash.
    #[allow(dead_code, reason = "gates of the real kernels")]
    pub fn step(&mut self) -> bool {
        if !self.engine.step().expect("a step") {
            return false;
        }
        let rows: Vec<RequestId> = self.engine.last_rows().collect();
        if !rows.is_empty() {
            let logits = self.engine.runner().read_logits(rows.len()).expect("logits");
            for (id, row) in rows.iter().zip(logits.chunks(self.vocab)) {
                let hash = self.hashes.entry(*id).or_insert(FNV_START);
                row.iter().for_each(|value| mix(hash, value.to_bits()));
            }
        }
        true
    }

    /// Hash of all logits a request has produced.
    #[allow(dead_code, reason = "gates of the real kernels")]
    pub fn hash(&self, id: RequestId) -> u64 {
        self.hashes.get(&id).copied().unwrap_or(FNV_START)
    }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn mix(hash: &mut u64, word: u32) {
    *hash = (*hash ^ u64::from(word)).wrapping_mul(0x0000_0100_0000_01b3);
}

/// SplitMix64: the gates' deterministic random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
