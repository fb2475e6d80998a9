//! The engine's own loop, in process and without HTTP, with each step switch off in turn: what pipelining, the roster
//! fingerprint and graphs are worth. Rounds alternate over all variants, each at each row count.

use std::time::Instant;

use futures_util::FutureExt;

use super::report::{EngineRound, Report, Settings};
use super::{BenchError, Runner, SWITCH_PROMPT, Save, SwitchPoint};
use crate::device::Event;
use crate::engine::handle::{EngineHandle, TokenStream, door};
use crate::engine::{Engine, Switches};
use crate::request::{GenerateRequest, Terminal};

/// What differs from the defaults.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    switches: Switches,
    graphs: bool,
}

fn variants(graphs: bool) -> Vec<Variant> {
    let on = Switches::default();
    let mut variants = vec![
        Variant { name: "defaults", switches: on, graphs },
        Variant { name: "no pipeline", switches: Switches { pipeline: false, ..on }, graphs },
        Variant { name: "no fingerprint", switches: Switches { fingerprint: false, ..on }, graphs },
    ];
    if graphs {
        variants.push(Variant { name: "no graphs", switches: on, graphs: false });
    }
    variants
}

/// Tokens a row may generate beside the measured ones: rows that start early decode while the others' prompts run.
pub fn spare_tokens(settings: &Settings) -> usize {
    settings.steps + settings.warm_up_steps + 2 * settings.switch_rows.iter().max().unwrap_or(&0) + 4
}

/// Measures every variant and appends the points to the report.
pub fn measure(runner: Runner, report: &mut Report, save: Save) -> Result<(), BenchError> {
    let settings = report.settings.clone();
    let begin = Event::timed(&runner.context)?;
    let end = Event::timed(&runner.context)?;
    let (handle, door) = door(settings.switch_rows.iter().sum::<usize>().max(1));
    door.ready();
    let mut loops = Loop { engine: Engine::new(runner, door, Switches::default()), handle, begin, end, settings };
    let variants = variants(report.settings.graphs);
    for &rows in &report.settings.switch_rows {
        for variant in &variants {
            report.switches.push(SwitchPoint::new(variant.name, rows));
        }
    }
    for _ in 0..report.settings.rounds {
        for (index, point) in report.switches.iter_mut().enumerate() {
            point.rounds.push(loops.round(variants[index % variants.len()], point.rows)?);
        }
        report.conclude();
        save(report)?;
    }
    Ok(())
}

struct Loop {
    engine: Engine,
    handle: EngineHandle,
    begin: Event,
    end: Event,
    settings: Settings,
}

impl Loop {
    fn round(&mut self, variant: Variant, rows: usize) -> Result<EngineRound, BenchError> {
        let what = format!("{}, {rows} rows", variant.name);
        self.engine.set_switches(variant.switches);
        self.engine.runner().replay_graphs(variant.graphs);
        let vocab = self.engine.runner().forward.config.vocab;
        let mut streams = Vec::with_capacity(rows);
        for (row, place) in self.handle.reserve(rows)?.into_iter().enumerate() {
            let prompt = (0..SWITCH_PROMPT).map(|i| ((row * 31 + i * 7 + 5) % vocab) as u32).collect();
            let max_tokens = spare_tokens(&self.settings) as u32;
            let request = GenerateRequest {
                prompt,
                max_tokens,
                ignore_eos: true,
                stop_token_ids: Vec::new(),
                sampling: Default::default(),
            };
            streams.push((place.submit(request)?, 0usize));
        }
        while streams.iter().any(|(_, tokens)| *tokens == 0) {
            self.step(&what)?;
            read(&mut streams, &what)?;
        }
        for _ in 0..self.settings.warm_up_steps {
            self.step(&what)?;
        }
        read(&mut streams, &what)?;
        let tokens_before: usize = streams.iter().map(|(_, tokens)| tokens).sum();
        let before = self.engine.runner().context.traffic();

        self.begin.record(&self.engine.runner().stream)?;
        let mut host_step_ms = Vec::with_capacity(self.settings.steps);
        for _ in 0..self.settings.steps {
            let started = Instant::now();
            self.step(&what)?;
            host_step_ms.push(started.elapsed().as_secs_f64() * 1e3);
        }
        self.end.record(&self.engine.runner().stream)?;
        self.end.wait()?;
        let device_ms = self.end.milliseconds_since(&self.begin)?;

        let after = self.engine.runner().context.traffic();
        read(&mut streams, &what)?;
        let tokens = streams.iter().map(|(_, tokens)| tokens).sum::<usize>() - tokens_before;
        if tokens != rows * self.settings.steps {
            let why = format!("{tokens} tokens came in {} steps", self.settings.steps);
            return Err(BenchError::Request { what, why });
        }
        // The clients leave; the engine comes to rest.
        drop(streams);
        while self.engine.step()? {}
        Ok(EngineRound {
            device_ms,
            host_step_ms,
            h2d_copies: after.h2d_copies - before.h2d_copies,
            kernel_launches: after.kernel_launches - before.kernel_launches,
            graph_launches: after.graph_launches - before.graph_launches,
        })
    }

    fn step(&mut self, what: &str) -> Result<(), BenchError> {
        match self.engine.step()? {
            true => Ok(()),
            false => Err(BenchError::Request { what: what.to_owned(), why: "the engine is idle".to_owned() }),
        }
    }
}

/// Takes what the streams have; a request that ended, ended too early.
fn read(streams: &mut [(TokenStream, usize)], what: &str) -> Result<(), BenchError> {
    for (stream, tokens) in streams {
        let Some(update) = stream.next().now_or_never() else { continue };
        *tokens += update.tokens.len();
        let why = match update.terminal {
            None => continue,
            Some(Terminal::Failed(failure)) => failure.to_string(),
            Some(other) => format!("it ended {other:?} after {tokens} tokens"),
        };
        return Err(BenchError::Request { what: format!("{what}, {}", stream.id()), why });
    }
    Ok(())
}
