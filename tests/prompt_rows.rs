//! Layers that share another's K and V run for the rows of a prompt chunk that are read, and for no other; K, V and the
//! logits are those of a pass over every row, bit for bit.

use std::path::Path;
use std::time::Duration;

use gemma4_serve::device::{DeviceBuffer, DeviceChoice, DeviceKind};
use gemma4_serve::engine::runner::{PromptChunk, RowOwner, Runner};
use gemma4_serve::engine::start::{build_runner, load_device};
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::{G4Slot, KernelImage};
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::RequestId;

const CHUNK: usize = 24;

fn runner(device: DeviceKind, name: &str) -> Runner {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference").join(name);
    let checkpoint = Checkpoint::open(&folder).expect("a reference checkpoint opens");
    let options = PlanOptions { max_running: 2, max_context: Some(96), prefill_chunk: CHUNK, ..PlanOptions::default() };
    let image = KernelImage::Shipped(device);
    let (mut runner, _) =
        build_runner(&checkpoint, device, image, &options, Duration::ZERO, &mut |_, _| {}).expect("a runner");
    runner.warm_up(|| {}).expect("a warm-up");
    let g = runner.forward.geometry.clone();
    let global = g.global_table_pages.min(g.global_pages) as u32;
    let sliding: Vec<u32> = (0..g.ring_pages as u32).collect();
    runner.grant_pages(0, &sliding, &(0..global).collect::<Vec<_>>()).expect("pages");
    runner
}

/// What a prompt leaves: what the head makes of its last chunk's last and first rows, K and V of all layers, and the
/// kernels each chunk launched.
struct Left {
    last: Vec<u32>,
    first: Vec<u32>,
    pools: Vec<Vec<u16>>,
    launches: Vec<u64>,
}

fn prefill(runner: &mut Runner, prompt: usize, every_row: bool) -> Left {
    let tokens: Vec<u32> = (0..prompt).map(|i| (i * 37 + 11) as u32 % 512).collect();
    for (k, v) in runner.forward.cache.pools() {
        runner.stream.fill(k.all(), 0).expect("a fill");
        runner.stream.fill(v.all(), 0).expect("a fill");
    }
    let mut launches = Vec::new();
    for (index, tokens) in tokens.chunks(CHUNK).enumerate() {
        let (start, is_last) = (index * CHUNK, index == (prompt - 1) / CHUNK);
        let last = is_last.then(|| G4Slot::unstoppable(prompt, 0, prompt + 1, 1));
        let owner = RowOwner { slot: 0, generation: 1, id: RequestId(0), wants_logprobs: false };
        let before = runner.context.traffic().kernel_launches;
        let chunk = PromptChunk { slot: 0, start, tokens, scored: None, every_row, pages: None, last, sampling: None };
        let flight = runner.launch_prompt(chunk, if is_last { vec![owner] } else { Vec::new() }).expect("a launch");
        launches.push(runner.context.traffic().kernel_launches - before);
        runner.collect(&flight, &mut Vec::new()).expect("a collection");
    }
    let out = DeviceBuffer::new(&runner.context, runner.forward.config.vocab).expect("a buffer");
    let mut logits_of = |row: usize| -> Vec<u32> {
        runner.prompt_logits(row, 1, &out).expect("logits").into_iter().map(f32::to_bits).collect()
    };
    let (last, first) = (logits_of((prompt - 1) % CHUNK), logits_of(0));
    let slices: Vec<_> = runner.forward.cache.pools().flat_map(|(k, v)| [k.all(), v.all()]).collect();
    let pools = slices.into_iter().map(|slice| runner.stream.download(slice).expect("a download")).collect();
    Left { last, first, pools, launches }
}

/// One test, on one thread: what is opened on a thread is closed on it before it ends.
#[test]
fn layers_behind_the_last_with_k_and_v_run_for_the_rows_that_are_read() {
    let device = load_device(DeviceChoice::Soft).expect("the software device loads");
    for (name, layers_behind) in [("ple", 3), ("dense", 0)] {
        let mut runner = runner(device, name);
        // Inside a page, at the end of a chunk, one past it, and chunks beyond the window of 16.
        for prompt in [1, 5, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7] {
            let (all, read) = (prefill(&mut runner, prompt, true), prefill(&mut runner, prompt, false));
            assert!(all.last.iter().any(|&bits| bits != 0) && all.last == read.last, "{name}: {prompt} tokens");
            // A row that is not read stops where the shared layers begin.
            let is_read = layers_behind == 0 || prompt % CHUNK == 1;
            assert_eq!(all.first == read.first, is_read, "{name}: the first row of the last chunk of {prompt} tokens");
            assert!(all.pools == read.pools, "{name}: K and V of {prompt} tokens");
            // Per layer: the products q, o, gate and up, down; norms and RoPE of q; attention; twice a norm; GELU. Per
            // branch of a per-layer embedding: two products, GELU, a norm.
            let skipped = layers_behind * (4 + 1 + 1 + 2 + 1 + 4);
            let chunks = all.launches.len();
            for (index, (all, read)) in all.launches.iter().zip(&read.launches).enumerate() {
                let skipped = if index + 1 == chunks { 0 } else { skipped };
                assert_eq!(read + skipped, *all, "{name}: chunk {index} of {prompt} tokens");
            }
        }
    }
}
