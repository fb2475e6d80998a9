//! Gate: captured graphs.
//!
//! Replay after every input changed equals eager; padding rows touch no page; a call forbidden in capture is refused
//! with the driver's code and leaves the stream usable; nothing is loaded, captured or allocated after readiness.

mod common;
#[path = "common/serve.rs"]
mod serve;

use std::time::Duration;

use common::Gate;
use gemma4_serve::device::{DeviceKind, DriverError, Graph, soft};
use gemma4_serve::engine::start::build_runner;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::KernelImage;
use gemma4_serve::model::plan::{PlanOptions, TablePlace};
use gemma4_serve::request::GenerateRequest;
use serve::{Random, Serve};

fn main() {
    let mut gate = Gate::start("graphs");
    let device = Gate::device();
    for (name, place) in [
        ("dense", TablePlace::Device),
        ("ple", TablePlace::Device),
        ("ple", TablePlace::Host),
        ("moe", TablePlace::Device),
    ] {
        let checkpoint = Checkpoint::open(&Gate::reference(name)).expect("a reference checkpoint opens");
        the_plan_is_what_is_allocated(&mut gate, name, &checkpoint, device, place);
    }
    let checkpoint = Checkpoint::open(&Gate::reference("dense")).expect("a reference checkpoint opens");
    replay_equals_eager(&mut gate, &checkpoint, device);
    padding_touches_no_page(&mut gate, &checkpoint, device);
    forbidden_in_capture(&mut gate, &checkpoint, device);
    nothing_after_readiness(&mut gate, &checkpoint, device);
    gate.finish();
}

fn options(max_running: usize) -> PlanOptions {
    PlanOptions { max_running, max_context: Some(200), prefill_chunk: 32, ..PlanOptions::default() }
}

fn requests(seed: u64, count: usize) -> Vec<GenerateRequest> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| GenerateRequest {
            prompt: (0..1 + random.below(60)).map(|_| random.below(512) as u32).collect(),
            max_tokens: 2 + random.below(12) as u32,
            ignore_eos: true,
            stop_token_ids: Vec::new(),
            sampling: Default::default(),
        })
        .collect()
}

/// Runs the requests together; the hash of each one's logits.
fn hashes(serve: &mut Serve, requests: &[GenerateRequest]) -> Vec<u64> {
    let streams: Vec<_> = requests.iter().map(|r| serve.submit(r.clone())).collect();
    while serve.step() {}
    streams.iter().map(|stream| serve.hash(stream.id())).collect()
}

fn replay_equals_eager(gate: &mut Gate, checkpoint: &Checkpoint, device: DeviceKind) {
    let mut graphs = Serve::new(checkpoint, device, &options(13), true);
    let mut eager = Serve::new(checkpoint, device, &options(13), false);
    // The same graphs again and again, with other tokens, positions, slots and pages each time.
    for (seed, count) in [(1, 1), (2, 3), (3, 13), (4, 7)] {
        let requests = requests(seed, count);
        let same = hashes(&mut graphs, &requests) == hashes(&mut eager, &requests);
        gate.fact(same, &format!("{count} requests give the same bits replayed and eager (seed {seed})"));
    }
    let replays = graphs.engine.runner().context.traffic().graph_launches;
    gate.fact(replays > 0, &format!("{replays} graphs were launched"));
}

/// The memory plan's total against the device's own count of live bytes, staging (freed after load) set aside; and what
/// it puts on the host, which is pinned.
fn the_plan_is_what_is_allocated(
    gate: &mut Gate,
    name: &str,
    checkpoint: &Checkpoint,
    device: DeviceKind,
    per_layer_table: TablePlace,
) {
    if device != DeviceKind::Soft {
        println!("note: a GPU does not count the bytes of one process");
        return;
    }
    let live = || soft::counter("live_bytes").expect("a counter");
    let pinned = || soft::counter("live_pinned_bytes").expect("a counter");
    let (before, pinned_before) = (live(), pinned());
    let options = PlanOptions { per_layer_table, ..options(16) };
    let image = KernelImage::Shipped(device);
    let (runner, plan) =
        build_runner(checkpoint, device, image, &options, Duration::ZERO, &mut |_, _| {}).expect("a runner");
    let staging = plan.lines.iter().find(|line| line.name == "staging of packing").expect("a staging line").bytes;
    let (planned, real) = (plan.total_bytes - staging, live() - before);
    let off = planned.abs_diff(real) as f64 / planned as f64;
    gate.fact(
        off < 0.01,
        &format!("{name}: the memory plan says {planned} bytes, the device holds {real}: {:.2} % off", off * 100.0),
    );
    let host: u64 = plan.host_lines.iter().map(|line| line.bytes).sum();
    let more = pinned() - pinned_before;
    gate.fact(
        more >= host && (host > 0) == (per_layer_table == TablePlace::Host),
        &format!("{name}: {host} bytes planned on the host, {more} pinned there, of them the readback's"),
    );
    drop(runner);
    gate.fact(live() == before, &format!("{name}: everything is given back: {} bytes of {before} before", live()));
}

/// Everything in the KV pools.
fn pools(serve: &mut Serve) -> Vec<Vec<u16>> {
    let runner = serve.engine.runner();
    let slices: Vec<_> = runner.forward.cache.pools().flat_map(|(k, v)| [k.all(), v.all()]).collect();
    slices.into_iter().map(|slice| runner.stream.download(slice).expect("a download")).collect()
}

fn padding_touches_no_page(gate: &mut Gate, checkpoint: &Checkpoint, device: DeviceKind) {
    let mut serve = Serve::new(checkpoint, device, &options(16), true);
    hashes(&mut serve, &requests(5, 16));
    let before = pools(&mut serve);
    for bucket in [1, 2, 4, 8, 12, 16] {
        let runner = serve.engine.runner();
        // A roster of nobody in a bucket of its own: every row is padding.
        let flight = runner.launch_padding(bucket).expect("a launch");
        runner.collect(&flight, &mut Vec::new()).expect("a collection");
        gate.fact(pools(&mut serve) == before, &format!("{bucket} padding rows leave every page as it was"));
    }
}

fn forbidden_in_capture(gate: &mut Gate, checkpoint: &Checkpoint, device: DeviceKind) {
    let mut serve = Serve::new(checkpoint, device, &options(2), true);
    let before = hashes(&mut serve, &requests(6, 2));
    let stream = &serve.engine.runner().stream;
    let refused: Result<Graph, DriverError> = Graph::capture(stream, |s| s.synchronize());
    let code = refused.err().map(|e| e.code as u32);
    gate.fact(code == Some(900), &format!("a synchronisation inside a capture gives {code:?}, of 900"));
    let after = hashes(&mut serve, &requests(6, 2));
    gate.fact(before == after, "the stream goes on after the refused capture");
}

fn nothing_after_readiness(gate: &mut Gate, checkpoint: &Checkpoint, device: DeviceKind) {
    const COUNTERS: [&str; 4] = ["armed_allocations", "armed_module_loads", "armed_captures", "armed_instantiations"];
    let mut serve = Serve::new(checkpoint, device, &options(13), true);
    if device != DeviceKind::Soft {
        // No counters of the driver's: what it gives out is seen in what is left.
        let context = serve.engine.runner().context.clone();
        let free = || context.memory().expect("a reading").0;
        hashes(&mut serve, &requests(7, 20));
        let before = free();
        hashes(&mut serve, &requests(8, 20));
        gate.fact(free() == before, &format!("20 requests after readiness: {before} bytes free, then {}", free()));
        return;
    }
    let read = || COUNTERS.map(|name| soft::counter(name).expect("a counter"));
    let before = read();
    soft::arm(true);
    hashes(&mut serve, &requests(8, 20));
    let after = read();
    // The counter itself can count: an allocation now is refused and seen.
    let context = serve.engine.runner().context.clone();
    let refused = gemma4_serve::device::DeviceBuffer::<u8>::new(&context, 16).is_err();
    let counted = read();
    soft::disarm();
    gate.fact(before == after, &format!("20 requests after readiness: {COUNTERS:?} {before:?} then {after:?}"));
    gate.fact(refused && counted[0] > after[0], "an allocation after readiness is refused and counted");
}
