//! The runner driven by hand: copies, prompts and decode steps between timed events, in the engine's order (a step is
//! launched before the one in front of it is collected), without its bookkeeping.

use std::collections::VecDeque;
use std::time::Instant;

use super::BenchError;
use super::report::{DecodeRound, PromptRound, Settings};
use crate::device::{DeviceBuffer, DriverError, Event};
use crate::engine::runner::{InFlight, PromptChunk, RowOwner, Runner};
use crate::limits::ROWS_MAX;
use crate::model::config::LayerKind;
use crate::model::kernels::{G4Record, G4Slot};
use crate::model::plan::Geometry;
use crate::model::synthetic::Spread;
use crate::request::RequestId;

/// Copies of one round; the first of all is not measured.
const COPIES: usize = 4;
/// Steps in flight, as in the engine.
const DEPTH: usize = 2;

pub struct Direct {
    runner: Runner,
    source: DeviceBuffer<u16>,
    target: DeviceBuffer<u16>,
    /// One more than the steps of a round: step i is what lies between the events i and i + 1.
    marks: Vec<Event>,
    steps: usize,
    warm_up_steps: usize,
    generation: u32,
    roster: u64,
    /// Of the last collected step.
    records: Vec<G4Record>,
}

impl Direct {
    /// Fills the KV cache and allocates the copy's buffers, half of what is free at most.
    pub fn new(runner: Runner, settings: &Settings) -> Result<Self, DriverError> {
        let (free_bytes, _) = runner.context.memory()?;
        let elements = (settings.copy_bytes as usize).min(free_bytes / 4) / 2;
        let source = DeviceBuffer::new(&runner.context, elements)?;
        let target = DeviceBuffer::new(&runner.context, elements)?;
        let (s, kernels, spread) = (&runner.stream, &runner.forward.kernels, Spread::of_cache());
        for (layer, (k, v)) in runner.forward.cache.pools().enumerate() {
            kernels.synthetic(s, &format!("cache.{layer}.k"), spread, k.all())?;
            kernels.synthetic(s, &format!("cache.{layer}.v"), spread, v.all())?;
        }
        kernels.synthetic(s, "copy", spread, source.all())?;
        s.copy(target.all(), source.all())?;
        s.synchronize()?;
        let marks = (0..=settings.steps.max(1)).map(|_| Event::timed(&runner.context)).collect::<Result<_, _>>()?;
        Ok(Direct {
            runner,
            source,
            target,
            marks,
            steps: settings.steps,
            warm_up_steps: settings.warm_up_steps,
            generation: 0,
            roster: 0,
            records: Vec::with_capacity(ROWS_MAX),
        })
    }

    pub fn into_runner(mut self) -> Runner {
        self.runner.forget_roster();
        self.runner
    }

    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// Bytes of one copy: as many are read as written.
    pub fn copy_bytes(&self) -> u64 {
        self.source.bytes() as u64
    }

    /// Milliseconds of one copy on the device, the mean of a few in a row.
    pub fn copy(&mut self) -> Result<f64, BenchError> {
        let s = &self.runner.stream;
        self.marks[0].record(s)?;
        for _ in 0..COPIES {
            s.copy(self.target.all(), self.source.all())?;
        }
        self.marks[1].record(s)?;
        self.marks[1].wait()?;
        Ok(self.marks[1].milliseconds_since(&self.marks[0])? / COPIES as f64)
    }

    /// Pages of the global pool that `rows` rows need, and how many there are.
    pub fn pages(&self, rows: usize, context: usize) -> (usize, usize) {
        (rows * self.pages_a_row(context), self.geometry().global_pages)
    }

    /// One prompt through slot 0, chunk by chunk, its first token sampled.
    pub fn prompt(&mut self, tokens: usize) -> Result<PromptRound, BenchError> {
        let what = || format!("prompt of {tokens} tokens");
        let pages = tokens.div_ceil(self.geometry().page_tokens_global);
        self.grant(0, pages)?;
        self.generation += 1;
        let owner = RowOwner { slot: 0, generation: self.generation, id: RequestId(0), wants_logprobs: false };
        let ids = self.token_ids(tokens);
        let chunk_tokens = self.geometry().chunk_tokens;
        self.runner.stream.synchronize()?;

        let mut in_flight = VecDeque::new();
        let started = Instant::now();
        self.marks[0].record(&self.runner.stream)?;
        for (index, chunk) in ids.chunks(chunk_tokens).enumerate() {
            let start = index * chunk_tokens;
            let end = start + chunk.len() == tokens;
            let last = end.then(|| G4Slot::unstoppable(tokens, 0, tokens + 1, self.generation));
            let owners = if end { vec![owner] } else { Vec::new() };
            let chunk = PromptChunk {
                slot: 0,
                start,
                tokens: chunk,
                scored: None,
                every_row: false,
                pages: None,
                last,
                sampling: None,
            };
            in_flight.push_back(self.runner.launch_prompt(chunk, owners)?);
            self.drain(&mut in_flight, DEPTH - 1, what)?;
        }
        self.marks[1].record(&self.runner.stream)?;
        self.drain(&mut in_flight, 0, what)?;
        let first_token_seconds = started.elapsed().as_secs_f64();
        self.marks[1].wait()?;
        Ok(PromptRound { first_token_seconds, device_ms: self.marks[1].milliseconds_since(&self.marks[0])? })
    }

    /// One round of decode steps of `rows` rows that begin at position `context`.
    pub fn decode(&mut self, rows: usize, context: usize) -> Result<DecodeRound, BenchError> {
        let what = || format!("decode, {rows} rows, context {context}");
        self.generation += 1;
        self.roster += 1;
        let limit = context + self.warm_up_steps + self.steps + 1;
        for (slot, token) in self.token_ids(rows).into_iter().enumerate() {
            self.grant(slot, self.pages_a_row(context))?;
            self.runner.set_slot(slot, G4Slot::unstoppable(context, token, limit, self.generation))?;
        }
        let owners: Vec<RowOwner> = (0..rows)
            .map(|slot| RowOwner { slot, generation: self.generation, id: RequestId(0), wants_logprobs: false })
            .collect();
        self.runner.stream.synchronize()?;

        let mut in_flight = VecDeque::new();
        let mut started = Instant::now();
        for step in 0..self.warm_up_steps + self.steps {
            let (flight, _) = self.runner.launch_decode(self.roster, owners.clone())?;
            in_flight.push_back(flight);
            if step + 1 >= self.warm_up_steps {
                self.marks[step + 1 - self.warm_up_steps].record(&self.runner.stream)?;
            }
            self.drain(&mut in_flight, DEPTH - 1, what)?;
            // The last step of the warm-up has just been collected: from here to the last record is the wall time.
            if step == self.warm_up_steps {
                started = Instant::now();
            }
        }
        self.drain(&mut in_flight, 0, what)?;
        let wall_seconds = started.elapsed().as_secs_f64();
        self.marks[self.steps].wait()?;
        let between = |i: usize| self.marks[i + 1].milliseconds_since(&self.marks[i]);
        let step_ms = (0..self.steps).map(between).collect::<Result<_, _>>()?;
        Ok(DecodeRound { wall_seconds, step_ms })
    }

    fn geometry(&self) -> &Geometry {
        &self.runner.forward.geometry
    }

    fn pages_a_row(&self, context: usize) -> usize {
        (context + self.warm_up_steps + self.steps + 1).div_ceil(self.geometry().page_tokens_global)
    }

    /// Gives a slot its ring and `pages` global pages of its own.
    fn grant(&mut self, slot: usize, pages: usize) -> Result<(), DriverError> {
        let range = |count: usize| (slot * count..(slot + 1) * count).map(|page| page as u32).collect::<Vec<_>>();
        let ring = range(self.geometry().family(LayerKind::Sliding).table_pages);
        self.runner.grant_pages(slot, &ring, &range(pages))
    }

    /// Token ids that differ from row to row.
    fn token_ids(&self, count: usize) -> Vec<u32> {
        let vocab = self.runner.forward.config.vocab;
        (0..count).map(|i| ((i + 1) * 7919 % vocab) as u32).collect()
    }

    /// Collects the oldest steps until `stay` are in flight. A record that is no token ends the bench.
    fn drain(
        &mut self,
        in_flight: &mut VecDeque<InFlight>,
        stay: usize,
        what: impl Fn() -> String,
    ) -> Result<(), BenchError> {
        while in_flight.len() > stay {
            let Some(flight) = in_flight.pop_front() else { break };
            self.runner.collect(&flight, &mut self.records)?;
            if let Some(row) = self.records.iter().position(|record| record.token < 0) {
                return Err(BenchError::Status { what: what(), row, token: self.records[row].token });
            }
        }
        Ok(())
    }
}
