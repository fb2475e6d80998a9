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
use std::time::Instant;

use common::Gate;
use gemma4_serve::device::soft::SoftImage;
use gemma4_serve::device::{DeviceChoice, DeviceKind, soft};
use gemma4_serve::engine::Switches;
use gemma4_serve::engine::start::load_device;
use gemma4_serve::images::TRACER_KERNELS;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::kernels::KernelImage;
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::GenerateRequest;
use oracle::Oracle;
use rig::Rig;
use scenarios::{SCENARIOS, prompt, random_trace};
use serve::Random;

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
        soft::set("delay_us", 200);
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
    regular_steps_upload_nothing(&mut gate, &world);
    for (name, options, scenario) in SCENARIOS {
        named(&mut gate, &world, name, options, *scenario);
    }
    let count = if gate.full { 256 } else { 3 };
    traces(&mut gate, &world, 1..count + 1);
    gate.finish();
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
            let seeds = if gate.full { 0..8 } else { 0..1 + u64::from(shipped) };
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

/// Random traces over tight and wide pools; each seed on fresh engines, so that `--seed N` repeats it.
fn traces(gate: &mut Gate, world: &World, seeds: std::ops::Range<u64>) {
    let (started, mut steps, mut wrong) = (Instant::now(), 0, Vec::new());
    for seed in seeds.clone() {
        for (graphs, switches) in switches() {
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
    let request = GenerateRequest {
        prompt: prompt(&mut Random(3), 37),
        max_tokens: 60,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
    };
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

/// Between roster changes: no upload, two graph launches, one readback a step, page turns included.
fn regular_steps_upload_nothing(gate: &mut Gate, world: &World) {
    const STEPS: u64 = 70;
    let options = PlanOptions { max_running: 32, max_context: Some(256), prefill_chunk: 64, ..PlanOptions::default() };
    for pipeline in [true, false] {
        let switches = Switches { pipeline, ..Switches::default() };
        let mut rig = Rig::new(world, &options, true, switches);
        for rows in [1, 8, 32] {
            label(&format!("{rows} regular rows"), true, switches, 0);
            let mut random = Random(rows as u64);
            let ids: Vec<_> = (0..rows)
                .map(|row| {
                    // Lengths of every remainder, so that some row turns a page in every step.
                    let prompt = prompt(&mut random, 3 + row);
                    let max_tokens = 180;
                    rig.submit(GenerateRequest { prompt, max_tokens, ignore_eos: true, stop_token_ids: Vec::new() })
                })
                .collect();
            while ids.iter().any(|&id| rig.count(id) < 2) && rig.step() {}
            let before = rig.serve.engine.runner().context.traffic();
            rig.steps(STEPS as usize);
            let after = rig.serve.engine.runner().context.traffic();
            rig.rest();
            let counts = [
                after.h2d_copies - before.h2d_copies,
                after.h2d_bytes - before.h2d_bytes,
                after.graph_launches - before.graph_launches,
                after.kernel_launches - before.kernel_launches,
                after.d2h_copies - before.d2h_copies,
            ];
            let text = format!(
                "{STEPS} steps of {rows} rows, pipeline {pipeline}: uploads, bytes, graphs, kernels, readbacks \
                 {counts:?} {}",
                rig.wrong.join("; ")
            );
            gate.fact(counts == [0, 0, 2 * STEPS, 0, STEPS] && rig.wrong.is_empty(), &text);
            rig.wrong.clear();
        }
    }
}
