//! Gate: the tracer kernels against an oracle that knows the token list alone.
//!
//! The "model" of csrc/tracer hashes every token through the page tables, so a wrong page, a stale table, a lost copy
//! or a mixed-up row changes the token stream. Every request of every scenario must give the oracle's tokens and
//! terminal, with the pipeline, the fingerprint and the graphs on and off, under seeds that permute the device and
//! delay its copies; at rest everything must be free. Between roster changes a step must cost no upload.
//!
//! `--seed N` runs the random traces of one seed alone.
//!
//! Seen red, each planted in turn: the fingerprint compares row counts; slot and pages, pages alone, or the slot alone
//! skip the quarantine (the engine's own assertion); the tail skips the position now and then, or the step; a padding
//! row advances slot 0; the next smaller bucket's graph runs; the host writes positions on a rebuild; the readback is
//! enqueued before the sampler; a staging buffer is filled before its last copy ran; a record is read before its event;
//! the slot is uploaded with an older generation; the sampler keeps the last token once.

mod common;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/rig.rs"]
mod rig;
#[path = "common/scenarios.rs"]
mod scenarios;
#[path = "common/serve.rs"]
mod serve;
#[path = "common/tracer_model.rs"]
mod tracer_model;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::Gate;
use futures_util::FutureExt;
use gemma4_serve::alloc::{CountingAllocator, allocations};
use gemma4_serve::device::soft::SoftImage;
use gemma4_serve::device::{DeviceChoice, DeviceKind, soft};
use gemma4_serve::engine::Switches;
use gemma4_serve::engine::handle::EngineState;
use gemma4_serve::engine::start::load_device;
use gemma4_serve::images::TRACER_KERNELS;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::{G4Slot, KernelImage};
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::{Failure, GenerateRequest, Terminal};
use gemma4_serve::sampling::SamplingParams;
use gemma4_serve::slots::Waited;
use oracle::Oracle;
use rig::Rig;
use scenarios::{SCENARIOS, prompt, random_trace, sampling};
use serve::{Random, Serve};

/// A regular step that allocates is a fact that fails.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What every rig is built from.
pub struct World {
    pub checkpoint: Checkpoint,
    pub device: DeviceKind,
    pub image: KernelImage,
    pub oracle: Oracle,
}

/// What runs now, for the report of a panic.
static NOW: Mutex<String> = Mutex::new(String::new());

fn main() {
    let mut gate = Gate::start("tracer");
    let device = load_device(DeviceChoice::Soft).expect("the software device loads");
    let image = KernelImage::Soft(SoftImage::load(TRACER_KERNELS).expect("the tracer image loads"));
    let checkpoint = tracer_model::checkpoint();
    let config = &checkpoint.config;
    let oracle = Oracle { window: config.window, vocab: config.vocab, eos_ids: config.eos_ids.clone() };
    assert_eq!(oracle.window, tracer_model::WINDOW);
    let world = World { checkpoint, device, image, oracle };
    report_panics();
    // One multiprocessor: the attention grids, most of which would be idle, are small.
    soft::set("sms", 1);
    if gate.full {
        soft::set("delay_us", 100);
    } else {
        // Blocks are so short that waking a second worker costs more than it runs.
        soft::set("workers", 1);
        soft::set("delay_us", 50);
    }

    if let Some(seed) = seed_argument() {
        traces(&mut gate, &world, seed..seed + 1);
        gate.finish();
    }
    the_oracle_needs_the_list_alone(&mut gate, &world);
    regular_steps_cost_two_launches_and_a_readback(&mut gate, &world);
    any_mix_of_parameters_costs_the_same(&mut gate, &world);
    a_long_output_costs_a_step_no_more(&mut gate, &world);
    a_wait_parks_past_its_bound(&mut gate, &world);
    a_torn_slot_upload_stops_the_engine(&mut gate, &world);
    a_row_index_of_other_slots_stops_the_engine(&mut gate, &world);
    a_panic_of_the_engine_thread_ends_every_request(&mut gate, &world);
    the_device_counter_wraps_under_way(&mut gate, &world);
    for (name, options, scenario) in SCENARIOS {
        named(&mut gate, &world, name, options, *scenario);
    }
    let count = if gate.full { 200 } else { 3 };
    traces(&mut gate, &world, 1..count + 1);
    gate.finish();
}

/// A greedy request that only its length ends.
fn greedy(prompt: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    let (stop_token_ids, sampling) = (Vec::new(), Default::default());
    GenerateRequest { prompt, max_tokens, ignore_eos: true, stop_token_ids, sampling }
}

fn seed_argument() -> Option<u64> {
    let mut arguments = std::env::args().skip_while(|a| a != "--seed");
    arguments.nth(1).map(|n| n.parse().expect("--seed N"))
}

fn report_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        println!("FAIL panicked in {}", NOW.lock().map(|now| now.clone()).unwrap_or_default());
        before(info);
    }));
}

/// The ways to run a step that must give the same tokens.
fn switches() -> impl Iterator<Item = (bool, Switches)> {
    (0..16).map(|bits| {
        let switches = Switches { pipeline: bits & 2 == 0, fingerprint: bits & 4 == 0, tail: bits & 8 == 0 };
        (bits & 1 == 0, switches)
    })
}

fn label(name: &str, graphs: bool, switches: Switches, seed: u64) -> String {
    let Switches { pipeline, fingerprint, tail } = switches;
    let label =
        format!("{name}, graphs {graphs}, pipeline {pipeline}, fingerprint {fingerprint}, tail {tail}, seed {seed}");
    NOW.lock().expect("no panic holds it").clone_from(&label);
    label
}

/// One scenario with every switch; without `--full`, with none off, one off, or all off. A seed costs delays: without
/// `--full`, one run with the shipped switches has one.
fn named(
    gate: &mut Gate,
    world: &World,
    name: &str,
    options: &[fn() -> PlanOptions],
    scenario: fn(&mut Rig, &mut Random),
) {
    let (started, mut steps, mut wrong) = (Instant::now(), 0, Vec::new());
    for options in options {
        for (graphs, switches) in switches() {
            let all = [graphs, switches.pipeline, switches.fingerprint, switches.tail];
            let off_count = all.iter().filter(|&&on| !on).count();
            if ![0, 1, all.len()].contains(&off_count) && !gate.full {
                continue;
            }
            let mut rig = Rig::new(world, &options(), graphs, switches);
            let shipped = off_count == 0;
            let seeds = if gate.full { 0..4 } else { 0..1 + u64::from(shipped) };
            for seed in seeds {
                soft::set("seed", seed);
                let label = label(name, graphs, switches, seed);
                scenario(&mut rig, &mut Random(seed));
                rig.rest();
                wrong.extend(rig.wrong.drain(..).map(|text| format!("\n  {label}: {text}")));
                if rig.dead {
                    break;
                }
            }
            steps += rig.steps;
            soft::set("seed", 0);
        }
    }
    verdict(gate, name, started, steps, &wrong);
}

/// Random traces over tight and wide pools; each seed on fresh engines, so that `--seed N` repeats it. Of many seeds
/// each runs the shipped switches, all of them off, and two other combinations in turn.
fn traces(gate: &mut Gate, world: &World, seeds: std::ops::Range<u64>) {
    let (started, mut steps, mut wrong) = (Instant::now(), 0, Vec::new());
    for seed in seeds.clone() {
        for (index, (graphs, switches)) in switches().enumerate() {
            let in_turn = index as u64 % 8 == seed % 8;
            if seeds.end - seeds.start > 16 && ![0, 15].contains(&index) && !in_turn {
                continue;
            }
            let label = label("random trace", graphs, switches, seed);
            soft::set("seed", seed);
            let mut random = Random(seed);
            let options = scenarios::random_options(&mut random);
            let mut rig = Rig::new(world, &options, graphs, switches);
            random_trace(&mut rig, &mut random);
            rig.rest();
            wrong.extend(rig.wrong.drain(..).map(|text| format!("\n  {label}: {text}")));
            steps += rig.steps;
            soft::set("seed", 0);
        }
    }
    let name = format!("random traces of {} seeds", seeds.end - seeds.start);
    verdict(gate, &name, started, steps, &wrong);
}

fn verdict(gate: &mut Gate, name: &str, started: Instant, steps: u64, wrong: &[String]) {
    let seconds = started.elapsed().as_secs_f64();
    let first: String = wrong.iter().take(6).map(String::as_str).collect();
    gate.fact(wrong.is_empty(), &format!("{name} ({steps} steps, {seconds:.1} s){first}"));
}

/// The oracle's streams are made of nothing but the list, one token at a time.
fn the_oracle_needs_the_list_alone(gate: &mut Gate, world: &World) {
    let request = greedy(prompt(&mut Random(3), 37), 60);
    let answer = world.oracle.answer(&request);
    let mut list = request.prompt;
    let same = answer.tokens.iter().all(|&token| {
        let next = world.oracle.next_token(&list);
        list.push(token);
        next == token
    });
    let mut other = list.clone();
    other[0] ^= 1;
    let depends = world.oracle.next_token(&other) != world.oracle.next_token(&list);
    gate.fact(same && depends, "the oracle's token is a function of the whole list");
}

/// Between roster changes, at every width from 1 to 40 and over page turns: no upload, two graph launches and no other,
/// one readback, one wait for its event and for nothing else, no allocation.
fn regular_steps_cost_two_launches_and_a_readback(gate: &mut Gate, world: &World) {
    const STEPS: u64 = 20;
    let options = PlanOptions { max_running: 40, max_context: Some(256), prefill_chunk: 64, ..PlanOptions::default() };
    for pipeline in [true, false] {
        let switches = Switches { pipeline, ..Switches::default() };
        let mut rig = Rig::spinning(world, &options, true, switches, Duration::ZERO);
        let mut wrong = Vec::new();
        for rows in 1..=40 {
            label(&format!("{rows} regular rows"), true, switches, 0);
            let counts = regular_counts(&mut rig, rows, STEPS, 2, |_| SamplingParams::greedy());
            rig.rest();
            let expected = [0, 0, 2 * STEPS, 0, STEPS, STEPS, 0];
            if counts != expected || !rig.wrong.is_empty() {
                wrong.push(format!("\n  {rows} rows: {counts:?} {}", rig.wrong.join("; ")));
            }
            rig.wrong.clear();
        }
        let text = format!(
            "{STEPS} steps of 1 to 40 rows, pipeline {pipeline}: no upload, two graphs, one readback, one wait, no \
             allocation a step{}",
            wrong.concat()
        );
        gate.fact(wrong.is_empty(), &text);
    }
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    gate.fact(allocations() == before + 1, "an allocation is counted");
}

/// The same for any mix of parameters, at 1, 8 and 64 rows (000-1, 004-2): rows that are sampled, penalised or ask for
/// log-probabilities cost no upload, no launch and no copy more. Log-probabilities take memory as they come, a block of
/// 31 at a time for each row that asks.
fn any_mix_of_parameters_costs_the_same(gate: &mut Gate, world: &World) {
    const STEPS: u64 = 20;
    let options = PlanOptions { max_running: 64, max_context: Some(512), prefill_chunk: 64, ..PlanOptions::default() };
    let mut rig = Rig::spinning(world, &options, true, Switches::default(), Duration::ZERO);
    let mut wrong = Vec::new();
    for rows in [1, 8, 64] {
        for seed in 0..6 {
            label(&format!("{rows} rows of any kind"), true, Switches::default(), seed);
            let (mut random, mut asking) = (Random(seed), 0);
            let [counts @ .., allocated] = regular_counts(&mut rig, rows, STEPS, 2, |_| {
                let sampling = SamplingParams { prompt_logprobs: None, ..sampling(&mut random) };
                asking += u64::from(sampling.logprobs.is_some());
                sampling
            });
            rig.rest();
            if counts != [0, 0, 2 * STEPS, 0, STEPS, STEPS] || allocated > asking || !rig.wrong.is_empty() {
                let what = rig.wrong.join("; ");
                wrong.push(format!("\n  {rows} rows, seed {seed}: {counts:?}, {allocated} of {asking} {what}"));
            }
            rig.wrong.clear();
        }
    }
    let text = format!(
        "{STEPS} steps of 1, 8 and 64 rows of any kind cost what greedy ones do, and are right{}",
        wrong.concat()
    );
    gate.fact(wrong.is_empty(), &text);
}

/// B63: what a step of penalised rows costs the host does not depend on how much they have put out.
fn a_long_output_costs_a_step_no_more(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 4, max_context: Some(1024), prefill_chunk: 64, ..PlanOptions::default() };
    let mut rig = Rig::spinning(world, &options, true, Switches::default(), Duration::ZERO);
    let penalised = |row: usize| SamplingParams {
        temperature: 0.2,
        seed: row as u64,
        repetition_penalty: 1.2,
        frequency_penalty: 0.1,
        logit_bias: vec![(5, 1.0)],
        bad_words: vec![vec![7], vec![8, 9]],
        min_tokens: 950,
        ..SamplingParams::greedy()
    };
    let counts = [100, 900].map(|length| {
        let counts = regular_counts(&mut rig, 3, 20, length, penalised);
        rig.rest();
        counts
    });
    let same = counts[0] == counts[1] && counts[0][0] == 0 && counts[0][6] == 0 && rig.wrong.is_empty();
    let text = format!("penalised rows cost the same after 100 and 900 tokens: {counts:?} {}", rig.wrong.join("; "));
    gate.fact(same, &text);
}

/// Uploads, bytes, graphs, kernels, readbacks, host waits and allocations of that many steps of a roster at rest, once
/// every row has put out `length` tokens.
fn regular_counts(
    rig: &mut Rig,
    rows: usize,
    steps: u64,
    length: usize,
    mut sampling: impl FnMut(usize) -> SamplingParams,
) -> [u64; 7] {
    let mut random = Random(rows as u64);
    let ids: Vec<_> = (0..rows)
        .map(|row| {
            // Lengths of every remainder, so that some row turns a page in every step.
            let prompt = prompt(&mut random, 3 + row);
            rig.submit(GenerateRequest {
                prompt,
                // The first rows run while the prompts of the others are computed.
                max_tokens: (78 + length + rows) as u32,
                ignore_eos: true,
                stop_token_ids: Vec::new(),
                sampling: sampling(row),
            })
        })
        .collect();
    while ids.iter().any(|&id| rig.count(id) < length) && rig.step() {}
    let waits = || soft::counter("synchronisations").unwrap_or(0);
    let (before, waited) = (rig.serve.engine.runner().context.traffic(), waits());
    let mut allocated = 0;
    for _ in 0..steps {
        // The engine's step alone: the rig's own reading of streams allocates.
        let before = allocations();
        rig.serve.engine.step().expect("a step");
        allocated += allocations() - before;
    }
    let (after, waited) = (rig.serve.engine.runner().context.traffic(), waits() - waited);
    [
        after.h2d_copies - before.h2d_copies,
        after.h2d_bytes - before.h2d_bytes,
        after.graph_launches - before.graph_launches,
        after.kernel_launches - before.kernel_launches,
        after.d2h_copies - before.d2h_copies,
        waited,
        allocated,
    ]
}

/// A step that takes longer than the spin is asked for during the spin, then waited for asleep.
fn a_wait_parks_past_its_bound(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 2, max_context: Some(64), prefill_chunk: 16, ..PlanOptions::default() };
    for spin_us in [0, 200] {
        label(&format!("a stalled step, spin {spin_us} us"), true, Switches::default(), 0);
        let spin = Duration::from_micros(spin_us);
        let (world_device, image) = (world.device, world.image);
        let mut serve = Serve::with(&world.checkpoint, world_device, image, &options, true, Switches::default(), spin);
        let runner = serve.engine.runner();
        let queries = || soft::counter("queries").unwrap_or(0);
        soft::stall();
        let flight = runner.launch_padding(1).expect("a launch");
        let release = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            soft::release();
        });
        let (before, started) = (queries(), Instant::now());
        let how = runner.collect(&flight, &mut Vec::new()).expect("a collection");
        let (asked, waited) = (queries() - before, started.elapsed());
        release.join().expect("it only sleeps");
        // 200 us hold at most some thousand questions; 300 ms would hold a hundred times as many.
        let bounded = if spin_us == 0 { asked == 0 } else { (1..20_000).contains(&asked) };
        let slept = how == Waited::Park && waited >= Duration::from_millis(200);
        gate.fact(bounded && slept, &format!("a stalled step, spin {spin_us} us: {how:?}, asked {asked} times"));
    }
}

/// A slot whose upload arrived in part: the generation is still that of the slot's last owner. The records show it, and
/// no token made from that slot leaves.
fn a_torn_slot_upload_stops_the_engine(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 2, max_context: Some(128), prefill_chunk: 32, ..PlanOptions::default() };
    for pipeline in [true, false] {
        let switches = Switches { pipeline, ..Switches::default() };
        label("a torn slot", true, switches, 0);
        let mut rig = Rig::new(world, &options, true, switches);
        let request = |length| greedy(prompt(&mut Random(5), length), 20);
        rig.submit(request(9));
        rig.rest();
        let before = rig.serve.engine.runner().slots().expect("slots")[0];
        let id = rig.submit(request(11));
        while rig.count(id) < 2 && rig.step() {}
        let now = rig.serve.engine.runner().slots().expect("slots")[0];
        let torn = G4Slot { generation: before.generation, ignore_eos: before.ignore_eos, ..now };
        rig.serve.engine.runner().set_slot(0, torn).expect("a write");
        let tokens = rig.count(id);
        rig.steps(3);
        // What was launched before the tear is good, and nothing after it came.
        let good = rig.wrong.len() == 1 && rig.wrong[0].contains("wrong state") && rig.count(id) <= tokens + 1;
        let differs = now.generation != before.generation;
        gate.fact(rig.dead && good && differs, &format!("a torn slot, pipeline {pipeline}: {}", rig.wrong.join("; ")));
    }
}

/// Two sequences of fresh slots, whose rows change places on the device: the first record of the other's stops the
/// engine, before its token is anybody's.
fn a_row_index_of_other_slots_stops_the_engine(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 2, max_context: Some(128), prefill_chunk: 32, ..PlanOptions::default() };
    for pipeline in [true, false] {
        let switches = Switches { pipeline, ..Switches::default() };
        label("rows that change places", true, switches, 0);
        let mut rig = Rig::new(world, &options, true, switches);
        let ids = [9, 11].map(|length| rig.submit(greedy(prompt(&mut Random(length), length as usize), 40)));
        while ids.iter().any(|&id| rig.count(id) < 3) && rig.step() {}
        rig.serve.engine.runner().set_rows(&[1, 0]).expect("a write");
        let tokens = ids.map(|id| rig.count(id));
        rig.steps(3);
        // What was launched before is good, and nothing after it came.
        let more = (0..2).map(|i| rig.count(ids[i]) - tokens[i]).max();
        let told = rig.wrong.len() == 1 && rig.wrong[0].contains("wrong state");
        gate.fact(
            rig.dead && told && more <= Some(1),
            &format!("rows that change places, pipeline {pipeline}: {}", rig.wrong.join("; ")),
        );
    }
}

/// Requests that run and wait when the engine thread panics, with a step in flight: each gets its terminal, the door
/// says why, and the device is left alone.
fn a_panic_of_the_engine_thread_ends_every_request(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 2, max_context: Some(128), prefill_chunk: 32, ..PlanOptions::default() };
    label("a panic", true, Switches::default(), 0);
    let Rig { serve, .. } = Rig::new(world, &options, true, Switches::default());
    let Serve { engine, handle, .. } = serve;
    // The door never lets a request for no tokens in: its first one has no place in the ring.
    let submit = |max_tokens| {
        let request = greedy(vec![2, 5, 9], max_tokens);
        handle.reserve(1).expect("a place").remove(0).submit(request).expect("a stream")
    };
    let mut streams = [40, 0, 40].map(submit);
    println!("     the panic that follows is part of the check");
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|info| println!("     {info}")));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.run())).is_err();
    std::panic::set_hook(before);
    let dead = matches!(handle.state(), EngineState::Dead(why) if why.contains("panicked: "));
    gate.fact(panicked && dead, "a panic of the engine thread: it goes on, and the door says what it said");
    let ends = streams.each_mut().map(|stream| stream.next().now_or_never().and_then(|update| update.terminal));
    let failed = ends.iter().all(|end| matches!(end, Some(Terminal::Failed(Failure::Engine(_)))));
    gate.fact(failed, &format!("a panic of the engine thread: one terminal each, {ends:?}"));
}

/// The device counts steps in 32 bits; requests live through the wrap of its sign and of the counter itself.
fn the_device_counter_wraps_under_way(gate: &mut Gate, world: &World) {
    let options = PlanOptions { max_running: 4, max_context: Some(128), prefill_chunk: 16, ..PlanOptions::default() };
    let (mut steps, mut wrong) = (0, Vec::new());
    let started = Instant::now();
    for switches in switches().map(|(_, switches)| switches).take(8) {
        for wrap in [1u64 << 31, 1 << 32] {
            let label = label("the counter wraps", true, switches, wrap);
            let mut rig = Rig::new(world, &options, true, switches);
            rig.serve.engine.count_from(wrap - 12).expect("a count");
            for row in 0..6 {
                let prompt = prompt(&mut Random(row), 5 + 7 * row as usize);
                let max_tokens = 8 + row as u32;
                rig.submit(greedy(prompt, max_tokens));
            }
            rig.rest();
            if rig.serve.engine.runner().steps_launched() <= wrap {
                wrong.push(format!("\n  {label}: it never came to the wrap"));
            }
            wrong.extend(rig.wrong.drain(..).map(|text| format!("\n  {label}: {text}")));
            steps += rig.steps;
        }
    }
    verdict(gate, "the device's step counter wraps under way", started, steps, &wrong);
}
