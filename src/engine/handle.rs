//! The door between the async side and the engine thread.
//!
//! Life of a request: (1) [`EngineHandle::reserve`] takes a place among the waiting, before any work is spent on it;
//! (2) [`Reservation::submit`] turns the place into a [`Ticket`] in the bounded queue; (3) the engine takes the ticket,
//! and [`Ticket::leave_waiting`] gives the place back when the request starts to run; (4) tokens are published into the
//! ticket's ring, one wake-up of the dispatcher a step; (5) one terminal, an atomic cell: whoever sets it first wins;
//! (6) the [`TokenStream`] yields what is left and the terminal. Dropping the stream earlier cancels the request.
//!
//! The engine thread takes no lock here: it receives from a channel, writes atomics and notifies.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError, unbounded};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::request::{Cancel, Failure, GenerateRequest, RequestId, Terminal, TokenLogprobs};

/// Why a request is refused at the door. `Display` is the client's sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the waiting queue is full: {wanted} more would pass its limit of {waiting_max} ({waiting} wait now)")]
    QueueFull { waiting: usize, wanted: usize, waiting_max: usize },
    #[error("the server is still loading")]
    Loading,
    #[error("the server is draining and takes no new requests")]
    Draining,
    #[error("the engine is dead: {0}")]
    Dead(String),
}

/// State of the engine as probes and the door see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    Loading,
    Ready,
    /// Accepts nothing new; what is in flight goes on.
    Draining,
    Dead(String),
}

const LOADING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;
const DEAD: u8 = 3;

/// One accepted request, shared by the engine thread (writes tokens and the terminal) and the async side (reads them,
/// writes `cancel`).
pub struct Ticket {
    pub id: RequestId,
    pub request: GenerateRequest,
    pub submitted: Instant,
    /// Ring of `max_tokens` entries, written once each, in order; entry i is valid when `published` > i.
    tokens: Box<[AtomicU32]>,
    published: AtomicU32,
    /// Log-probabilities of the prompt's tokens but the first, then of the answer's, as far as the request asks for
    /// either, in order; each is sent before its token (the prompt's: before the answer's first) is published. No
    /// more than tokens; memory is taken as they come, a block of 31 at a time.
    logprobs: Option<(Sender<TokenLogprobs>, Receiver<TokenLogprobs>)>,
    terminal: OnceLock<Terminal>,
    cancel: AtomicU8,
    waiting: AtomicBool,
    ready: Notify,
    /// Tokens of which the stream has been told. The dispatcher's own.
    told: AtomicU32,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Engine side: appends one token. Panics past `max_tokens`: the device's limit and the ring's are the same number.
    pub fn publish(&self, token: u32) {
        let n = self.published.load(Ordering::Relaxed);
        self.tokens[n as usize].store(token, Ordering::Relaxed);
        self.published.store(n + 1, Ordering::Release);
    }

    /// Engine side: appends a token behind which the ring has room for another; false, and nothing done, where it would
    /// be the last one.
    #[inline]
    pub(super) fn publish_unless_last(&self, token: u32) -> bool {
        let n = self.published.load(Ordering::Relaxed) as usize;
        if n + 1 >= self.tokens.len() {
            return false;
        }
        self.tokens[n].store(token, Ordering::Relaxed);
        self.published.store((n + 1) as u32, Ordering::Release);
        true
    }

    /// Engine side: the log-probabilities of the token that is published next.
    pub fn publish_logprobs(&self, logprobs: TokenLogprobs) {
        if let Some((sender, _)) = &self.logprobs {
            // Its receiver stands beside it.
            let _ = sender.send(logprobs);
        }
    }

    /// Tokens published so far.
    pub fn published(&self) -> u32 {
        self.published.load(Ordering::Acquire)
    }

    /// Either side: ends the request. The first terminal wins; returns whether this was it.
    pub fn finish(&self, terminal: Terminal) -> bool {
        let won = self.terminal.set(terminal).is_ok();
        self.leave_waiting();
        won
    }

    #[inline]
    pub fn is_finished(&self) -> bool {
        self.terminal.get().is_some()
    }

    /// Dispatcher's side: wakes the stream if there is something new for it; true when that was the end. Whether it was
    /// is read before the stream is woken: an end that comes behind the look finds the ticket still among the live.
    fn tell(&self) -> bool {
        let over = self.is_finished();
        let published = self.published();
        if over || self.told.swap(published, Ordering::Relaxed) != published {
            // Stores a permit, so a stream that is not waiting at this moment still sees it.
            self.ready.notify_one();
        }
        over
    }

    /// Async side: asks the engine to end the request at the next step boundary. The first reason stays.
    pub fn cancel(&self, why: Cancel) {
        if self.cancel.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            // Behind the reason, so that whoever sees the news finds it.
            self.shared.cancel_news.store(true, Ordering::Release);
        }
    }

    /// Either side: whether the request should end, and why.
    pub fn cancelled(&self) -> Option<Cancel> {
        match self.cancel.load(Ordering::Acquire) {
            1 => Some(Cancel::ClientGone),
            2 => Some(Cancel::StopString),
            3 => Some(Cancel::DrainTimeout),
            _ => None,
        }
    }

    /// Engine side: the request starts to run (or ended while it waited); its place in the queue is free.
    pub fn leave_waiting(&self) {
        if self.waiting.swap(false, Ordering::AcqRel) {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

enum Message {
    Submit(Arc<Ticket>),
    /// Something changed (drain, shutdown): look at the state.
    Wake,
}

struct Shared {
    state: AtomicU8,
    dead: OnceLock<String>,
    stop: AtomicBool,
    waiting: AtomicUsize,
    waiting_max: usize,
    next_id: AtomicU64,
    /// Some request was cancelled since the engine last asked. Set by the async side, cleared by the engine.
    cancel_news: AtomicBool,
    /// Accepted and not yet reaped by the dispatcher. Never taken by the engine thread in a step.
    live: Mutex<Vec<Arc<Ticket>>>,
    /// Set by the engine once a step that published something.
    step: Notify,
    epoch: Instant,
    /// Milliseconds from `epoch` to the engine's last sign of life. Written by the engine, read by the readiness probe.
    beat_ms: AtomicU64,
}

impl Shared {
    /// The engine thread is at the top or the end of its loop.
    fn beat(&self) {
        self.beat_ms.store(self.epoch.elapsed().as_millis() as u64, Ordering::Release);
    }

    fn state(&self) -> EngineState {
        match self.state.load(Ordering::Acquire) {
            LOADING => EngineState::Loading,
            READY => EngineState::Ready,
            DRAINING => EngineState::Draining,
            _ => EngineState::Dead(self.dead.get().cloned().unwrap_or_default()),
        }
    }

    fn die(&self, reason: &str) {
        let _ = self.dead.set(reason.to_owned());
        self.state.store(DEAD, Ordering::Release);
        for ticket in self.live.lock().iter() {
            ticket.finish(Terminal::Failed(Failure::Engine(reason.to_owned())));
            ticket.ready.notify_one();
        }
        self.step.notify_one();
    }
}

/// The async side's end: cheap to clone.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    submit: Sender<Message>,
}

/// The engine thread's end. Dropping it (also by a panic) declares the engine dead unless it was stopped in order.
pub struct EngineDoor {
    shared: Arc<Shared>,
    submissions: Receiver<Message>,
}

/// Makes the two ends; `waiting_max` bounds requests accepted but not yet running.
pub fn door(waiting_max: usize) -> (EngineHandle, EngineDoor) {
    // Room for every waiting request and the wake-ups of drain and shutdown.
    let (submit, submissions) = crossbeam_channel::bounded(waiting_max + 8);
    let shared = Arc::new(Shared {
        state: AtomicU8::new(LOADING),
        dead: OnceLock::new(),
        stop: AtomicBool::new(false),
        waiting: AtomicUsize::new(0),
        waiting_max,
        next_id: AtomicU64::new(1),
        cancel_news: AtomicBool::new(false),
        live: Mutex::new(Vec::new()),
        step: Notify::new(),
        epoch: Instant::now(),
        beat_ms: AtomicU64::new(0),
    });
    (EngineHandle { shared: shared.clone(), submit }, EngineDoor { shared, submissions })
}

impl EngineHandle {
    pub fn state(&self) -> EngineState {
        self.shared.state()
    }

    /// Requests accepted but not yet running, reservations included.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    /// Requests accepted and not yet ended.
    pub fn live(&self) -> usize {
        self.shared.live.lock().iter().filter(|t| !t.is_finished()).count()
    }

    /// Takes `count` places among the waiting, all or none, before any work is spent on the request.
    pub fn reserve(&self, count: usize) -> Result<Vec<Reservation>, Refusal> {
        match self.state() {
            EngineState::Ready => {}
            EngineState::Loading => return Err(Refusal::Loading),
            EngineState::Draining => return Err(Refusal::Draining),
            EngineState::Dead(reason) => return Err(Refusal::Dead(reason)),
        }
        let waiting_max = self.shared.waiting_max;
        self.shared
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n + count <= waiting_max).then_some(n + count))
            .map_err(|waiting| Refusal::QueueFull { waiting, wanted: count, waiting_max })?;
        Ok((0..count).map(|_| Reservation { handle: self.clone(), used: false }).collect())
    }

    /// Stops accepting; what is in flight goes on.
    pub fn drain(&self) {
        let _ = self.shared.state.compare_exchange(READY, DRAINING, Ordering::AcqRel, Ordering::Acquire);
        let _ = self.shared.state.compare_exchange(LOADING, DRAINING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Cancels everything in flight for the given reason.
    pub fn cancel_all(&self, why: Cancel) {
        for ticket in self.shared.live.lock().iter() {
            ticket.cancel(why);
        }
    }

    /// Ends everything in flight from this side, for when the engine does not answer to `cancel_all`.
    pub fn fail_all(&self, failure: Failure) {
        for ticket in self.shared.live.lock().iter() {
            ticket.finish(Terminal::Failed(failure.clone()));
            ticket.ready.notify_one();
        }
        // The dispatcher reaps them.
        self.shared.step.notify_one();
    }

    /// How long the engine has shown no sign of life although there was work: none without work. The age of the oldest
    /// request bounds it, since an engine that had nothing to do is allowed to have slept.
    pub fn stalled_for(&self) -> Option<Duration> {
        let oldest = self.shared.live.lock().iter().filter(|t| !t.is_finished()).map(|t| t.submitted).min()?;
        let beat = Duration::from_millis(self.shared.beat_ms.load(Ordering::Acquire));
        Some(oldest.elapsed().min(self.shared.epoch.elapsed().saturating_sub(beat)))
    }

    /// How long the start has shown no progress; none once it is over.
    pub fn loading_stalled_for(&self) -> Option<Duration> {
        let beat = Duration::from_millis(self.shared.beat_ms.load(Ordering::Acquire));
        (self.state() == EngineState::Loading).then(|| self.shared.epoch.elapsed().saturating_sub(beat))
    }

    /// Asks the engine thread to return once nothing is in flight.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = self.submit.try_send(Message::Wake);
    }

    /// The watchdog's way out: every request ends with an error, readiness goes red.
    pub fn declare_dead(&self, reason: &str) {
        self.shared.die(reason);
    }

    /// Wakes the streams of requests that got something, once a step. One task runs this for the whole server.
    pub async fn dispatch(self) {
        loop {
            self.shared.step.notified().await;
            self.shared.live.lock().retain(|ticket| !ticket.tell());
        }
    }
}

/// A place among the waiting. Dropping it unused gives it back.
pub struct Reservation {
    handle: EngineHandle,
    used: bool,
}

impl Reservation {
    pub fn submit(mut self, request: GenerateRequest) -> Result<TokenStream, Refusal> {
        self.used = true;
        let shared = &self.handle.shared;
        let ticket = Arc::new(Ticket {
            id: RequestId(shared.next_id.fetch_add(1, Ordering::Relaxed)),
            submitted: Instant::now(),
            // Memory that nobody has touched: a queue of long requests costs what they generate.
            tokens: bytemuck::zeroed_slice_box(request.max_tokens as usize),
            logprobs: request.sampling.logprobs.or(request.sampling.prompt_logprobs).map(|_| unbounded()),
            request,
            published: AtomicU32::new(0),
            terminal: OnceLock::new(),
            cancel: AtomicU8::new(0),
            waiting: AtomicBool::new(true),
            ready: Notify::new(),
            told: AtomicU32::new(0),
            shared: shared.clone(),
        });
        shared.live.lock().push(ticket.clone());
        let refused = match self.handle.submit.try_send(Message::Submit(ticket.clone())) {
            Ok(()) => None,
            Err(TrySendError::Full(_)) => {
                let waiting_max = shared.waiting_max;
                Some(Refusal::QueueFull { waiting: waiting_max, wanted: 1, waiting_max })
            }
            Err(TrySendError::Disconnected(_)) => Some(Refusal::Dead("the engine thread has ended".into())),
        };
        // The engine may have died between the check in `reserve` and the push above: then nobody will finish it.
        let refused = refused.or_else(|| match shared.state() {
            EngineState::Dead(reason) => Some(Refusal::Dead(reason)),
            _ => None,
        });
        match refused {
            None => Ok(TokenStream { ticket, read: 0, ended: false }),
            Some(refusal) => {
                ticket.finish(Terminal::Cancelled);
                shared.live.lock().retain(|t| !Arc::ptr_eq(t, &ticket));
                Err(refusal)
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.used {
            self.handle.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What a stream yields: new tokens, and the terminal when it came (then it is the last update).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    pub tokens: Vec<u32>,
    /// With the first token, where the request asked: one for each token of the prompt but the first.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// One a token where the request asked, else none.
    pub logprobs: Vec<TokenLogprobs>,
    pub terminal: Option<Terminal>,
}

/// The reader of one request. Dropping it before the terminal cancels the request as `ClientGone`.
pub struct TokenStream {
    ticket: Arc<Ticket>,
    read: u32,
    ended: bool,
}

impl TokenStream {
    pub fn id(&self) -> RequestId {
        self.ticket.id
    }

    pub fn submitted(&self) -> Instant {
        self.ticket.submitted
    }

    pub fn request(&self) -> &GenerateRequest {
        &self.ticket.request
    }

    /// Waits for more: at least one token or the terminal. After the terminal it must not be called again.
    pub async fn next(&mut self) -> Update {
        loop {
            // The terminal is read first: it is written after the last token, so none can be missed.
            let terminal = self.ticket.terminal.get().cloned();
            let published = self.ticket.published();
            if published > self.read || terminal.is_some() {
                let tokens =
                    (self.read..published).map(|i| self.ticket.tokens[i as usize].load(Ordering::Relaxed)).collect();
                let is_first = self.read == 0 && published > 0;
                let request = &self.ticket.request;
                let scored =
                    if is_first && request.sampling.prompt_logprobs.is_some() { request.prompt.len() - 1 } else { 0 };
                let asked = if request.sampling.logprobs.is_some() { published - self.read } else { 0 };
                let (prompt_logprobs, logprobs) = (self.sent(scored), self.sent(asked as usize));
                self.read = published;
                self.ended = terminal.is_some();
                return Update { tokens, prompt_logprobs, logprobs, terminal };
            }
            self.ticket.ready.notified().await;
        }
    }

    /// The next log-probabilities, which have been sent.
    fn sent(&self, count: usize) -> Vec<TokenLogprobs> {
        let next = |(_, sent): &(_, Receiver<TokenLogprobs>)| sent.try_recv().ok();
        let next = || self.ticket.logprobs.as_ref().and_then(next);
        (0..count).map(|_| next().expect("log-probabilities are sent before their token")).collect()
    }

    /// Why this side asked the engine to end the request early, if it did.
    pub fn cancelled(&self) -> Option<Cancel> {
        self.ticket.cancelled()
    }

    /// Ends generation early because a stop string matched; the stream may then be dropped.
    pub fn stop(&mut self) {
        self.ticket.cancel(Cancel::StopString);
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.ended {
            self.ticket.cancel(Cancel::ClientGone);
        }
    }
}

impl EngineDoor {
    /// A phase of the start is done, or a tensor placed.
    pub fn loading_goes_on(&self) {
        self.shared.beat();
    }

    /// The engine is ready to serve.
    pub fn ready(&self) {
        let _ = self.shared.state.compare_exchange(LOADING, READY, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Next submission if one is there.
    pub fn try_next(&self) -> Option<Arc<Ticket>> {
        self.shared.beat();
        loop {
            match self.submissions.try_recv() {
                Ok(Message::Submit(ticket)) => return Some(ticket),
                Ok(Message::Wake) => continue,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return None,
            }
        }
    }

    /// Whether some request was cancelled since the last call. A ticket that is still in the queue counts too, so the
    /// engine looks at each it takes.
    pub fn cancel_news(&self) -> bool {
        self.shared.cancel_news.load(Ordering::Relaxed) && self.shared.cancel_news.swap(false, Ordering::AcqRel)
    }

    /// Parks until a submission comes, the state changes, or `limit` passes.
    pub fn wait(&self, limit: Duration) -> Option<Arc<Ticket>> {
        let message = self.submissions.recv_timeout(limit);
        self.shared.beat();
        match message {
            Ok(Message::Submit(ticket)) => Some(ticket),
            Ok(Message::Wake) | Err(RecvTimeoutError::Timeout) => None,
            // Every handle is gone, so nobody is left to ask for anything, or to stop this thread: without this it
            // would spin for ever.
            Err(RecvTimeoutError::Disconnected) => {
                self.shared.stop.store(true, Ordering::Release);
                None
            }
        }
    }

    /// Whether the engine thread should return when nothing is in flight.
    pub fn stopping(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire)
    }

    /// Wakes the dispatcher: once a step that published tokens or terminals.
    pub fn step_done(&self) {
        self.shared.beat();
        self.shared.step.notify_one();
    }

    /// Ends every request with an error and turns readiness off.
    pub fn die(&self, reason: &str) {
        self.shared.die(reason);
    }
}

impl Drop for EngineDoor {
    fn drop(&mut self) {
        if !self.stopping() && self.shared.state.load(Ordering::Acquire) != DEAD {
            self.shared.die("the engine thread ended unexpectedly");
        } else {
            // Whatever is still queued gets its terminal all the same.
            for ticket in self.shared.live.lock().iter() {
                ticket.finish(Terminal::Failed(Failure::DrainTimeout));
                ticket.ready.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn request(max_tokens: u32) -> GenerateRequest {
        let (prompt, stop_token_ids) = (vec![2], Vec::new());
        GenerateRequest { prompt, max_tokens, ignore_eos: true, stop_token_ids, sampling: Default::default() }
    }

    #[test]
    fn a_step_wakes_whom_it_gave_something_and_nobody_else() {
        let (handle, door) = door(8);
        door.ready();
        let places = handle.reserve(2).unwrap();
        let _streams: Vec<_> = places.into_iter().map(|place| place.submit(request(4)).unwrap()).collect();
        let tickets = [door.try_next().unwrap(), door.try_next().unwrap()];
        let step = || {
            door.step_done();
            assert!(handle.clone().dispatch().now_or_never().is_none(), "it serves for ever");
            [0, 1].map(|i| tickets[i].ready.notified().now_or_never().is_some())
        };
        tickets[0].publish(7);
        assert_eq!(step(), [true, false]);
        assert_eq!(step(), [false, false]);
        tickets[0].publish(8);
        tickets[1].finish(Terminal::Length);
        assert_eq!((handle.live(), step(), handle.live()), (1, [true, true], 1));
        assert_eq!(handle.shared.live.lock().len(), 1, "who has ended is told once and forgotten");
        tickets[0].finish(Terminal::Length);
        assert_eq!((step(), handle.shared.live.lock().len()), ([true, false], 0));
    }
}
