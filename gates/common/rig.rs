//! An engine on the tracer kernels whose every token is compared with the oracle's as it arrives.

use std::time::Duration;

use futures_util::FutureExt;
use gemma4_serve::engine::Switches;
use gemma4_serve::engine::handle::TokenStream;
use gemma4_serve::kv::Family;
use gemma4_serve::model::plan::PlanOptions;
use gemma4_serve::request::{GenerateRequest, Terminal, TokenLogprobs};
use gemma4_serve::sampler::oracle::Logprobs;

use crate::World;
use crate::oracle::{Answer, Oracle};
use crate::serve::{Random, Serve};

/// Steps after which a run that does not come to rest is a failure.
const STEPS_MAX: usize = 20_000;

pub struct Rig<'a> {
    world: &'a World,
    pub serve: Serve,
    requests: Vec<Request>,
    /// What went wrong, first of each request.
    pub wrong: Vec<String>,
    /// The engine failed: no step may follow.
    pub dead: bool,
    pub steps: u64,
}

/// Index of a request since the rig last came to rest.
#[derive(Clone, Copy)]
pub struct Handle(usize);

struct Request {
    /// None once its client is gone, or its terminal read.
    stream: Option<TokenStream>,
    request: GenerateRequest,
    answer: Answer,
    tokens: Vec<u32>,
    aborted: bool,
}

impl<'a> Rig<'a> {
    pub fn new(world: &'a World, options: &PlanOptions, graphs: bool, switches: Switches) -> Self {
        // A spin gives the same bytes too; it rides with the pipeline, as on a GPU.
        let spin = Duration::from_micros(if switches.pipeline { 20 } else { 0 });
        Self::spinning(world, options, graphs, switches, spin)
    }

    pub fn spinning(world: &'a World, options: &PlanOptions, graphs: bool, switches: Switches, spin: Duration) -> Self {
        let serve = Serve::with(&world.checkpoint, world.device, world.image, options, graphs, switches, spin);
        Rig { world, serve, requests: Vec::new(), wrong: Vec::new(), dead: false, steps: 0 }
    }

    pub fn oracle(&self) -> &'a Oracle {
        &self.world.oracle
    }

    pub fn submit(&mut self, request: GenerateRequest) -> Handle {
        let answer = self.world.oracle.answer(&request);
        let stream = self.serve.submit(request.clone());
        let fresh = Request { stream: Some(stream), request, answer, tokens: Vec::new(), aborted: false };
        self.requests.push(fresh);
        Handle(self.requests.len() - 1)
    }

    /// One engine step and a look at every stream; false when the engine is idle or dead.
    pub fn step(&mut self) -> bool {
        if self.dead {
            return false;
        }
        let went_on = match self.serve.engine.step() {
            Ok(went_on) => went_on,
            Err(error) => {
                self.dead = true;
                self.wrong.push(format!("the engine failed: {error}"));
                return false;
            }
        };
        self.steps += 1;
        for index in 0..self.requests.len() {
            self.read(index);
        }
        went_on
    }

    pub fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Tokens a request has so far.
    pub fn count(&self, handle: Handle) -> usize {
        self.requests[handle.0].tokens.len()
    }

    /// Ends a request from outside: its stream stays and must say so, or its client goes away.
    pub fn abort(&mut self, handle: Handle, client_goes: bool) {
        let request = &mut self.requests[handle.0];
        request.aborted = true;
        match &mut request.stream {
            Some(_) if client_goes => request.stream = None,
            Some(stream) => stream.stop(),
            None => {}
        }
    }

    /// Some request that still has its client.
    pub fn any(&self, random: &mut Random) -> Option<Handle> {
        let live: Vec<usize> = (0..self.requests.len()).filter(|&i| self.requests[i].stream.is_some()).collect();
        (!live.is_empty()).then(|| Handle(live[random.below(live.len())]))
    }

    /// Steps until nothing is left, then checks that every request ended once and that everything is free.
    pub fn rest(&mut self) {
        let mut count = 0;
        while self.step() {
            count += 1;
            if count > STEPS_MAX {
                self.wrong.push(format!("no rest after {STEPS_MAX} steps"));
                self.dead = true;
            }
        }
        if !self.dead {
            for index in 0..self.requests.len() {
                let request = &self.requests[index];
                if request.stream.is_some() {
                    let text = format!("has {} tokens and no terminal at rest", request.tokens.len());
                    self.blame(index, text);
                }
            }
            self.check_free();
        }
        self.requests.clear();
    }

    fn check_free(&mut self) {
        let scheduler = self.serve.engine.scheduler();
        scheduler.kv().audit();
        scheduler.slots().audit();
        let (sliding, global) = (scheduler.kv().pool(Family::Sliding), scheduler.kv().pool(Family::Global));
        let slots = scheduler.slots();
        let free = [sliding.free_count(), global.free_count(), slots.free_count()];
        let all = [sliding.count(), global.count(), slots.count()];
        if free != all || !scheduler.is_empty() {
            self.wrong.push(format!("at rest {free:?} sliding pages, global pages and slots are free of {all:?}"));
        }
        let (live, waiting) = (self.serve.handle.live(), self.serve.handle.waiting());
        if live + waiting > 0 {
            self.wrong.push(format!("at rest {live} requests live and {waiting} wait"));
        }
    }

    /// Takes what a stream has and compares it.
    fn read(&mut self, index: usize) {
        let request = &mut self.requests[index];
        let Some(stream) = &mut request.stream else { return };
        let Some(update) = stream.next().now_or_never() else { return };
        let begin = request.tokens.len();
        let scores_differ = differ(&request.answer.logprobs, begin, &update.logprobs)
            || differ(&request.answer.prompt_logprobs, 0, &update.prompt_logprobs);
        request.tokens.extend(update.tokens);
        let (tokens, answer) = (&request.tokens, &request.answer);
        let same = tokens.iter().zip(&answer.tokens).take_while(|(a, b)| a == b).count();
        let mut blame = None;
        if same < tokens.len() && same >= begin {
            blame = Some(format!("token {same} is {}, expected {:?}", tokens[same], answer.tokens.get(same)));
        }
        if scores_differ {
            blame = blame.or(Some(format!("log-probabilities differ from token {begin} on")));
        }
        if let Some(terminal) = update.terminal {
            request.stream = None;
            let cut_short = request.aborted && terminal == Terminal::Cancelled;
            let whole = terminal == answer.terminal && tokens.len() == answer.tokens.len();
            if !cut_short && !whole {
                let (got, want) = (tokens.len(), answer.tokens.len());
                blame = blame.or(Some(format!(
                    "ended {terminal:?} after {got} tokens, expected {:?} after {want}",
                    answer.terminal
                )));
            }
        }
        if let Some(text) = blame {
            self.blame(index, text);
        }
    }

    fn blame(&mut self, index: usize, text: String) {
        let request = &self.requests[index].request;
        let (prompt, max, stops) = (request.prompt.len(), request.max_tokens, &request.stop_token_ids);
        self.wrong.push(format!("request {index} (prompt {prompt}, max_tokens {max}, stop ids {stops:?}) {text}"));
    }
}

/// Whether what came is not, bit for bit, what the oracle says from `begin` on. Entries hold as many of the most likely
/// tokens as can be where a prompt is scored, so the first of them are compared.
fn differ(want: &[Logprobs], begin: usize, got: &[TokenLogprobs]) -> bool {
    let same = |(want, got): (&Logprobs, &TokenLogprobs)| {
        let numbers = |top: &[(u32, f32)]| -> Vec<(u32, u32)> { top.iter().map(|t| (t.0, t.1.to_bits())).collect() };
        let top = &got.top()[..want.top.len().min(got.top().len())];
        want.of_token.to_bits() == got.logprob.to_bits()
            && want.rank == got.rank as usize
            && numbers(&want.top) == numbers(top)
    };
    got.len() > want.len().saturating_sub(begin) || !want.iter().skip(begin).zip(got).all(same)
}
