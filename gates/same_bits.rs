//! Gate: same prefix, same bits.
//!
//! (1) `score` gives one set of bytes whatever path the tokens take: prefill, decode with and without graphs, chunks of
//! 1, 7, 16, 64; with the attention segment at its default and at 32. (2) N requests together, ragged, arriving and
//! ending at different times beside ones that go away, give each the logits of its solo run, bit for bit, under seeds
//! that permute the device's freedoms.

mod common;
#[path = "common/scores.rs"]
mod scores;
#[path = "common/serve.rs"]
mod serve;

use common::Gate;
use gemma4_serve::config::ScorePath;
use gemma4_serve::device::soft::SoftImage;
use gemma4_serve::device::{DeviceKind, soft};
use gemma4_serve::images::PLANTED_KERNELS;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::KernelImage;
use gemma4_serve::model::plan::{PlanOptions, TablePlace};
use gemma4_serve::request::GenerateRequest;
use gemma4_serve::score::{ScoreOptions, score};
use scores::differences;
use serve::{Random, Serve};

fn main() {
    let mut gate = Gate::start("same_bits");
    let device = Gate::device();
    for (turn, name) in CHECKPOINTS.into_iter().enumerate() {
        let checkpoint = Checkpoint::open(&Gate::reference(name)).expect("a reference checkpoint opens");
        paths_agree(&mut gate, name, &checkpoint, device);
        a_mistake_of_one_path_is_seen(&mut gate, name, &checkpoint, device);
        together_equals_alone(&mut gate, name, &checkpoint, device, &long());
        if gate.full {
            together_equals_alone(&mut gate, name, &checkpoint, device, &short(turn as u64));
        }
    }
    gate.finish();
}

const CHECKPOINTS: [&str; 4] = ["dense", "unified", "ple", "moe"];

/// Tokens enough to cross pages (16), the window (16), small segments (32) and the default sliding one (128).
fn ids(vocab: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    std::iter::once(2).chain((1..count).map(|_| random.below(vocab) as u32)).collect()
}

fn paths_agree(gate: &mut Gate, name: &str, checkpoint: &Checkpoint, device: DeviceKind) {
    let ids = ids(checkpoint.config.vocab, if gate.full { 300 } else { 140 }, 7);
    for segment in [None, Some(32)] {
        let run = |path, graphs, per_layer_table| {
            let options = ScoreOptions { path, graphs, hidden: true, segment, per_layer_table };
            score(checkpoint, device, KernelImage::Shipped(device), &ids, options).expect("a score")
        };
        let device_table = TablePlace::Device;
        let prefill = run(ScorePath::Prefill, false, device_table);
        let others = [
            (ScorePath::Decode, true),
            (ScorePath::Decode, false),
            (ScorePath::Chunks(1), false),
            (ScorePath::Chunks(7), false),
            (ScorePath::Chunks(16), false),
            (ScorePath::Chunks(64), false),
        ];
        for (path, graphs) in others {
            let different = differences(&prefill, &run(path, graphs, device_table));
            let label = format!("{name} segment {segment:?}: {path:?}, graphs {graphs}, equals prefill");
            gate.fact(different.is_none(), &format!("{label} {}", different.unwrap_or_default()));
        }
        if checkpoint.config.per_layer_width.is_some() {
            let different = differences(&prefill, &run(ScorePath::Decode, true, TablePlace::Host));
            let label = format!("{name} segment {segment:?}: the table on the host gives the same");
            gate.fact(different.is_none(), &format!("{label} {}", different.unwrap_or_default()));
        }
    }
}

/// The comparison can fail: a window one token too wide in the prompt kernel alone, and a router that sees the logits
/// of the launch's first row, make prefill differ from decode.
fn a_mistake_of_one_path_is_seen(gate: &mut Gate, name: &str, checkpoint: &Checkpoint, device: DeviceKind) {
    let mistakes = [
        ("window_plus_one", "the prompt kernel's window is one token too wide", true),
        ("router_of_row_zero", "a token's experts are those of its neighbour", checkpoint.config.experts.is_some()),
    ];
    for (mistake, text, _) in mistakes.into_iter().filter(|(_, _, concerns)| *concerns) {
        let planted = PLANTED_KERNELS.iter().find(|(name, _)| *name == mistake);
        let (Some((_, image)), DeviceKind::Soft) = (planted, device) else {
            println!("note: on a GPU, or built without the feature planted-mistakes, so no mistake was planted");
            return;
        };
        let image = KernelImage::Soft(SoftImage::load(image).expect("a planted image loads"));
        let ids = ids(checkpoint.config.vocab, 40, 7);
        let run = |path| {
            let options =
                ScoreOptions { path, graphs: false, hidden: false, segment: None, per_layer_table: TablePlace::Device };
            score(checkpoint, device, image, &ids, options).expect("a score")
        };
        let different = differences(&run(ScorePath::Prefill), &run(ScorePath::Decode));
        gate.fact(different.is_some(), &format!("{name}: goes red when {text}"));
    }
}

/// A request and what it gives alone.
struct Case {
    request: GenerateRequest,
    tokens: Vec<u32>,
    hash: u64,
}

/// Which requests run together, and how often.
struct Matrix {
    name: &'static str,
    lengths: &'static [usize],
    max_tokens: usize,
    /// Keys of an attention segment; none: the kernels' own.
    segment: Option<usize>,
    counts: Vec<usize>,
    seeds: Vec<u64>,
}

/// Requests that run together at most.
const REQUESTS: usize = 40;

/// Long prompts cross the borders of page, window, bucket and the default segments; a few counts and seeds.
fn long() -> Matrix {
    const LENGTHS: &[usize] = &[1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 64, 100, 127, 128, 129, 260];
    let counts = vec![1, 2, 5, 8, 13, 40];
    let seeds = (1..=4).collect();
    Matrix { name: "long prompts", lengths: LENGTHS, max_tokens: 20, segment: None, counts, seeds }
}

/// Short prompts cross the same borders with segments of 32; cheap enough for every count and 50 seeds, which the
/// checkpoints take in turn.
fn short(turn: u64) -> Matrix {
    const LENGTHS: &[usize] = &[1, 2, 7, 15, 16, 17, 30, 31, 32, 33, 48];
    let counts = (1..=REQUESTS).collect();
    let seeds = (1..=50).filter(|seed| seed % CHECKPOINTS.len() as u64 == turn).collect();
    Matrix { name: "short prompts", lengths: LENGTHS, max_tokens: 8, segment: Some(32), counts, seeds }
}

fn together_equals_alone(gate: &mut Gate, name: &str, checkpoint: &Checkpoint, device: DeviceKind, matrix: &Matrix) {
    let defaults = PlanOptions::default();
    let options = PlanOptions {
        max_running: REQUESTS,
        max_context: Some(320),
        // Chunks smaller than most prompts, so that chunk borders fall everywhere.
        prefill_chunk: if matrix.segment.is_some() { 13 } else { 48 },
        segment_sliding: matrix.segment.unwrap_or(defaults.segment_sliding),
        segment_global: matrix.segment.unwrap_or(defaults.segment_global),
        ..defaults
    };
    soft::set("seed", 0);
    let mut random = Random(11);
    let mut alone = Serve::new(checkpoint, device, &options, true);
    let vocab = checkpoint.config.vocab;
    let cases: Vec<Case> = (0..REQUESTS).map(|_| solo(&mut alone, request(&mut random, vocab, matrix))).collect();
    drop(alone);

    let mut together = Serve::new(checkpoint, device, &options, true);
    for &count in &matrix.counts {
        let mut wrong = Vec::new();
        for &seed in &matrix.seeds {
            soft::set("seed", seed);
            let differ = run_together(&mut together, &cases, count, seed);
            wrong.extend(differ.into_iter().map(|w| format!("seed {seed}: {w}")));
        }
        soft::set("seed", 0);
        let (what, seeds) = (matrix.name, matrix.seeds.len());
        let text = format!("{name}, {what}: {count} together equal their solo runs under {seeds} seeds");
        gate.fact(wrong.is_empty(), &format!("{text} {}", wrong.join("; ")));
    }
}

/// Ragged lengths around the borders of page, window, bucket and segment.
fn request(random: &mut Random, vocab: usize, matrix: &Matrix) -> GenerateRequest {
    let length = matrix.lengths[random.below(matrix.lengths.len())];
    GenerateRequest {
        prompt: ids(vocab, length, random.next()),
        max_tokens: 1 + random.below(matrix.max_tokens) as u32,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        sampling: Default::default(),
    }
}

fn solo(serve: &mut Serve, request: GenerateRequest) -> Case {
    let mut stream = serve.submit(request.clone());
    while serve.step() {}
    let tokens = drain(&mut stream);
    Case { request, tokens, hash: serve.hash(stream.id()) }
}

/// Runs `count` of the cases, arriving at random steps, beside two requests that are cancelled half-way.
fn run_together(serve: &mut Serve, cases: &[Case], count: usize, seed: u64) -> Vec<String> {
    let mut random = Random(seed.wrapping_mul(0x1234_5678_9abc_def1) ^ count as u64);
    let first = random.below(cases.len());
    let chosen: Vec<usize> = (0..count).map(|i| (first + i) % cases.len()).collect();
    let mut streams = Vec::new();
    let mut bystanders = Vec::new();
    let mut next = 0;
    loop {
        // A few arrive before each step; the first step has at least one.
        for _ in 0..random.below(4).max(usize::from(next == 0)) {
            if next < chosen.len() {
                streams.push((chosen[next], serve.submit(cases[chosen[next]].request.clone())));
                next += 1;
            }
        }
        if bystanders.len() < 2 && count < cases.len() && random.below(3) == 0 {
            let mut request = cases[(first + count) % cases.len()].request.clone();
            request.max_tokens = 40;
            bystanders.push(serve.submit(request));
        }
        if random.below(6) == 0 {
            bystanders.pop();
        }
        if !serve.step() && next == chosen.len() {
            break;
        }
        if bystanders.len() == 2 && next == chosen.len() {
            bystanders.clear();
        }
    }
    let mut wrong = Vec::new();
    for (case, mut stream) in streams {
        let tokens = drain(&mut stream);
        let (want, hash) = (&cases[case], serve.hash(stream.id()));
        if tokens != want.tokens || hash != want.hash {
            wrong.push(format!(
                "request {case} gave {tokens:?}, alone {:?}, logits equal: {}",
                want.tokens,
                hash == want.hash
            ));
        }
    }
    wrong
}

/// The tokens of an ended request; panics if it did not end by length.
fn drain(stream: &mut gemma4_serve::engine::handle::TokenStream) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let update = runtime.block_on(stream.next());
    assert_eq!(update.terminal, Some(gemma4_serve::request::Terminal::Length));
    update.tokens
}
