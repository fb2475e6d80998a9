//! An engine without a device: emits a planned list of tokens for each request, at the test's command.
//!
//! It keeps the engine's side of the contract: tickets in order of arrival, at most `max_running` at once, cancellation
//! looked at before each step, one terminal each, one `step_done` a step.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use gemma4_serve::engine::handle::{EngineDoor, Ticket};
use gemma4_serve::request::{Cancel, Failure, GenerateRequest, Terminal, TokenLogprobs};
use gemma4_serve::server::EngineEnd;
use parking_lot::Mutex;

/// Tokens for a request; after the last comes EOS.
pub type Plan = Box<dyn Fn(&Ticket) -> Vec<u32> + Send>;

pub enum Command {
    /// Loading is over.
    Ready,
    /// From now on only so many steps, added up over calls.
    Step(usize),
    /// Steps run freely again.
    Free,
    /// Whether waiting requests may start to run.
    Admit(bool),
    /// Pause between free steps.
    Pace(Duration),
    /// Several tokens a step.
    TokensPerStep(usize),
    /// The thread is stuck until the sender is dropped.
    Stall(Receiver<()>),
    /// Every running request fails with this.
    Fail(Failure),
    /// Device error: every request in flight fails, the thread returns.
    Die(&'static str),
    Panic,
}

#[derive(Clone)]
pub struct Control {
    commands: Sender<Command>,
    seen: Arc<Mutex<Vec<GenerateRequest>>>,
    running: Arc<AtomicUsize>,
    steps: Arc<AtomicUsize>,
}

impl Control {
    pub fn send(&self, command: Command) {
        self.commands.send(command).expect("the scripted engine runs");
    }

    /// Requests that started to run, in order.
    pub fn seen(&self) -> Vec<GenerateRequest> {
        self.seen.lock().clone()
    }

    pub fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// The engine is stuck as long as the guard lives.
    pub fn stall(&self) -> Sender<()> {
        let (guard, until) = unbounded();
        self.send(Command::Stall(until));
        guard
    }

    pub fn steps(&self) -> usize {
        self.steps.load(Ordering::Acquire)
    }
}

/// Starts the thread; the future resolves when it ended.
pub fn start(
    door: EngineDoor,
    plan: Plan,
    max_running: usize,
) -> (Control, impl Future<Output = EngineEnd> + Send + 'static) {
    let (commands, receiver) = unbounded();
    let control = Control { commands, seen: Arc::default(), running: Arc::default(), steps: Arc::default() };
    let engine = Engine {
        door,
        plan,
        max_running,
        commands: receiver,
        control: control.clone(),
        waiting: Vec::new(),
        running: Vec::new(),
        budget: None,
        admit: true,
        pace: Duration::ZERO,
        tokens_per_step: 1,
    };
    let (sender, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let thread = std::thread::spawn(move || engine.run());
        let end = match thread.join() {
            Ok(Ok(())) => EngineEnd::Stopped,
            Ok(Err(reason)) => EngineEnd::Failed(reason.to_owned()),
            Err(_) => EngineEnd::Failed("the engine thread panicked".into()),
        };
        let _ = sender.send(end);
    });
    (control, async { end.await.expect("the watcher thread sends") })
}

struct Engine {
    door: EngineDoor,
    plan: Plan,
    max_running: usize,
    commands: Receiver<Command>,
    control: Control,
    waiting: Vec<Arc<Ticket>>,
    running: Vec<(Arc<Ticket>, Vec<u32>)>,
    budget: Option<usize>,
    admit: bool,
    pace: Duration,
    tokens_per_step: usize,
}

impl Engine {
    fn run(mut self) -> Result<(), &'static str> {
        loop {
            // Tickets before commands: what a test commanded before it sent a request holds for that request.
            while let Some(ticket) = self.door.try_next() {
                self.waiting.push(ticket);
            }
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command)?;
            }
            let ended = self.cancel() + self.start();
            let stepped = !self.running.is_empty() && self.budget != Some(0);
            if stepped {
                self.step();
                std::thread::sleep(self.pace);
            }
            self.control.running.store(self.running.len(), Ordering::Release);
            if stepped || ended > 0 {
                self.door.step_done();
            } else {
                if self.door.stopping() && self.running.is_empty() && self.waiting.is_empty() {
                    return Ok(());
                }
                if let Some(ticket) = self.door.wait(Duration::from_millis(1)) {
                    self.waiting.push(ticket);
                }
            }
        }
    }

    fn obey(&mut self, command: Command) -> Result<(), &'static str> {
        match command {
            Command::Ready => self.door.ready(),
            Command::Step(n) => *self.budget.get_or_insert(0) += n,
            Command::Free => self.budget = None,
            Command::Admit(admit) => self.admit = admit,
            Command::Pace(pace) => self.pace = pace,
            Command::TokensPerStep(n) => self.tokens_per_step = n,
            Command::Stall(until) => drop(until.recv()),
            Command::Fail(failure) => {
                // First of all: who hears a terminal must not find its request still running.
                self.control.running.store(0, Ordering::Release);
                for (ticket, _) in self.running.drain(..) {
                    ticket.finish(Terminal::Failed(failure.clone()));
                }
                self.door.step_done();
            }
            Command::Die(reason) => {
                self.door.die(reason);
                return Err(reason);
            }
            Command::Panic => panic!("planned panic of the scripted engine"),
        }
        Ok(())
    }

    fn cancel(&mut self) -> usize {
        let mut ended = 0;
        let mut keep = |ticket: &Arc<Ticket>| {
            let terminal = match ticket.cancelled() {
                None => return !ticket.is_finished(),
                Some(Cancel::DrainTimeout) => Terminal::Failed(Failure::DrainTimeout),
                Some(_) => Terminal::Cancelled,
            };
            ticket.finish(terminal);
            ended += 1;
            false
        };
        self.waiting.retain(&mut keep);
        self.running.retain(|(ticket, _)| keep(ticket));
        ended
    }

    fn start(&mut self) -> usize {
        while self.admit && self.running.len() < self.max_running && !self.waiting.is_empty() {
            let ticket = self.waiting.remove(0);
            ticket.leave_waiting();
            self.control.seen.lock().push(ticket.request.clone());
            let plan = (self.plan)(&ticket);
            self.running.push((ticket, plan));
        }
        0
    }

    fn step(&mut self) {
        self.budget = self.budget.map(|n| n - 1);
        self.control.steps.fetch_add(1, Ordering::AcqRel);
        for _ in 0..self.tokens_per_step {
            self.running.retain(|(ticket, plan)| {
                let i = ticket.published() as usize;
                if let (0, Some(_)) = (i, ticket.request.sampling.prompt_logprobs) {
                    let behind_the_first = ticket.request.prompt[1..].iter();
                    // As the engine does: as many as there can be, whatever was asked.
                    behind_the_first.for_each(|&token| ticket.publish_logprobs(logprobs_of(token, 20)));
                }
                let token = plan.get(i).copied().unwrap_or(super::EOS);
                if let Some(count) = ticket.request.sampling.logprobs {
                    ticket.publish_logprobs(logprobs_of(token, count));
                }
                ticket.publish(token);
                let is_eos = [1, 50, 106].contains(&token) && !ticket.request.ignore_eos;
                let stop = is_eos || ticket.request.stop_token_ids.contains(&token);
                let length = i + 1 == ticket.request.max_tokens as usize;
                if stop {
                    ticket.finish(Terminal::Stop);
                } else if length {
                    ticket.finish(Terminal::Length);
                }
                !(stop || length)
            });
        }
    }
}

/// Made up: ids around the token's, and the token itself only where it is even.
pub fn logprobs_of(token: u32, count: u32) -> TokenLogprobs {
    let top: Vec<(u32, f32)> = (0..count).map(|i| ((token & !1) ^ (2 * i), -1.0 - i as f32)).collect();
    TokenLogprobs::new(token, if token.is_multiple_of(2) { -1.0 } else { -25.5 }, 1, &top)
}
