//! Tokens of the engine to deltas of the answer: one [`Choice`] each, [`Choices`] for the whole request. Streamed and
//! gathered answers both read deltas from here.
//!
//! A choice ends once: with a finish reason, or with an error that ends the request. Dropping it earlier (the client's
//! connection is gone, so hyper dropped the handler or the body) cancels it in the engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::engine::handle::TokenStream;
use crate::error::Rejection;
use crate::metrics::{GENERATED_TOKENS_TOTAL, INTER_TOKEN, Outcome, PROMPT_TOKENS_TOTAL, TIME_TO_FIRST_TOKEN};
use crate::request::{Cancel, Failure, Terminal, TokenLogprobs};
use crate::server::ServedModel;
use crate::server::admission::Accepted;
use crate::server::app::InFlight;
use crate::server::wire::{CompletionRequest, Route};
use crate::text::chat_template::thought_ids;
use crate::text::{PromptText, TextOutput};

/// Why a choice ended, in the API's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stop,
    Length,
}

impl Finish {
    pub fn word(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
        }
    }
}

/// What one choice adds to the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    pub index: usize,
    pub text: String,
    pub token_ids: Vec<u32>,
    /// One a token where the request asked, else none. A token may come before its text, which a stop string can hold
    /// back.
    pub scored: Vec<ScoredToken>,
    /// With the choice's first delta, where the request asked: one a token of the prompt.
    pub prompt_scored: Vec<ScoredToken>,
    pub finish: Option<Finish>,
}

impl Delta {
    /// Tokens with log-probabilities, which are most of the work of writing it.
    pub fn scored_tokens(&self) -> usize {
        self.scored.len() + self.prompt_scored.len()
    }
}

/// A token of the text with its log-probabilities: what every shape of reply is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredToken {
    pub token: u32,
    /// Where its text begins, in characters, before a stop string cut the text.
    pub text_offset: usize,
    /// None: nothing stands before it.
    pub logprobs: Option<TokenLogprobs>,
}

/// What a choice says of its prompt, with its first token.
struct Opening {
    prompt_ids: Vec<u32>,
    echo: Option<Arc<PromptText>>,
    /// Most likely tokens that the request asked for: in the answer's lists, which begin with the prompt's where it is
    /// echoed, and in the prompt's own.
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
}

impl Opening {
    /// Puts the prompt into the choice's first delta; `sent`: what the engine says of its tokens but the first.
    fn write(&self, delta: &mut Delta, sent: &[TokenLogprobs]) {
        if let Some(echo) = &self.echo {
            delta.text.push_str(&echo.text);
            if let Some(count) = self.logprobs {
                delta.scored = self.scored(&echo.offsets, sent, count);
            }
        }
        if let Some(count) = self.prompt_logprobs {
            delta.prompt_scored = self.scored(&[], sent, count);
        }
    }

    /// The prompt's tokens, with the first `count` of the most likely ones of each; no `offsets`: nobody asks for them.
    fn scored(&self, offsets: &[usize], sent: &[TokenLogprobs], count: u32) -> Vec<ScoredToken> {
        let sent = std::iter::once(None).chain(sent.iter().copied().map(Some));
        let scored = self.prompt_ids.iter().zip(sent).enumerate().map(|(i, (&token, logprobs))| ScoredToken {
            token,
            text_offset: offsets.get(i).copied().unwrap_or(0),
            logprobs: logprobs.map(|logprobs| logprobs.cut(count as usize)),
        });
        scored.collect()
    }
}

struct Choice {
    index: usize,
    /// What of the prompt stands before the first token; none, and none afterwards.
    opening: Option<Opening>,
    /// Nothing is generated: the token that comes is not given out.
    only_prompt: bool,
    model: Arc<ServedModel>,
    stream: TokenStream,
    output: TextOutput,
    keeps_stop: bool,
    arrived: Instant,
    last_token: Option<Instant>,
    /// The engine's failure, kept until the tokens before it are out.
    failed: Option<Rejection>,
    ended: bool,
    /// Set when a sibling failed: then this one's early end is not the client's.
    request_failed: Arc<AtomicBool>,
}

impl Choice {
    /// The next delta: some text, or ids, or the end. Cancellation-safe: nothing is taken before the only await ends.
    async fn next(&mut self) -> Result<Delta, Rejection> {
        if let Some(rejection) = self.failed.take() {
            return Err(self.fail(rejection));
        }
        let update = self.stream.next().await;
        let mut delta = Delta { index: self.index, ..Delta::default() };
        if !update.tokens.is_empty()
            && let Some(opening) = self.opening.take()
        {
            opening.write(&mut delta, &update.prompt_logprobs);
            if self.only_prompt {
                self.stream.stop();
                self.end(&mut delta, Finish::Length);
                return Ok(delta);
            }
        }
        for (i, &token) in update.tokens.iter().enumerate() {
            delta.token_ids.push(token);
            if let Some(&logprobs) = update.logprobs.get(i)
                && !self.output.leaves_out(token)
            {
                let text_offset = self.output.offset(&self.model.tokenizer, token);
                delta.scored.push(ScoredToken { token, text_offset, logprobs: Some(logprobs) });
            }
            // The text of a stop id is left out as that of a stop string is.
            let stops = !self.keeps_stop && self.stream.request().stop_token_ids.contains(&token);
            let silent = self.model.is_eos(token) || stops;
            if self.output.push(&self.model.tokenizer, token, silent, &mut delta.text) {
                // Tokens the engine made meanwhile are not the answer's: text, ids and usage end at the match.
                self.stream.stop();
                self.end(&mut delta, Finish::Stop);
                break;
            }
        }
        self.record(delta.token_ids.len());
        if delta.finish.is_some() {
            return Ok(delta);
        }
        match update.terminal {
            None => {}
            Some(Terminal::Stop) => self.finish(&mut delta, Finish::Stop),
            Some(Terminal::Length) => self.finish(&mut delta, Finish::Length),
            Some(terminal) => {
                let rejection = match (terminal, self.stream.cancelled()) {
                    (Terminal::Failed(failure), _) => Rejection::Failed(failure),
                    (_, Some(Cancel::DrainTimeout)) => Rejection::Failed(Failure::DrainTimeout),
                    _ => Rejection::Cancelled,
                };
                if delta.token_ids.is_empty() {
                    return Err(self.fail(rejection));
                }
                self.failed = Some(rejection);
            }
        }
        Ok(delta)
    }

    /// The engine ended the choice: what was held back comes out, and may yet complete a stop string.
    fn finish(&mut self, delta: &mut Delta, finish: Finish) {
        let matched = self.output.finish(&mut delta.text);
        self.end(delta, if matched { Finish::Stop } else { finish });
    }

    fn end(&mut self, delta: &mut Delta, finish: Finish) {
        delta.finish = Some(finish);
        self.ended = true;
        match finish {
            Finish::Stop => Outcome::Stop.count(),
            Finish::Length => Outcome::Length.count(),
        }
    }

    fn fail(&mut self, rejection: Rejection) -> Rejection {
        self.ended = true;
        self.request_failed.store(true, Ordering::Release);
        Outcome::Failed.count();
        rejection
    }

    fn record(&mut self, tokens: usize) {
        if tokens == 0 {
            return;
        }
        metrics::counter!(GENERATED_TOKENS_TOTAL).increment(tokens as u64);
        let now = Instant::now();
        // Tokens that came together share the time since the one before them; the very first has none.
        match self.last_token.replace(now) {
            None => metrics::histogram!(TIME_TO_FIRST_TOKEN).record((now - self.arrived).as_secs_f64()),
            Some(last) => {
                let histogram = metrics::histogram!(INTER_TOKEN);
                (0..tokens).for_each(|_| histogram.record((now - last).as_secs_f64() / tokens as f64));
            }
        }
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        if !self.ended {
            let failed = self.request_failed.load(Ordering::Acquire);
            if failed { Outcome::Failed } else { Outcome::Aborted }.count();
        }
    }
}

/// The one line of the log on how a request ended.
impl Drop for Choices {
    fn drop(&mut self) {
        let end = match (self.request_failed.load(Ordering::Acquire), self.running.is_empty()) {
            (true, _) => "failed",
            (false, true) => "finished",
            (false, false) => "aborted: the client went away",
        };
        let (request_id, seconds) = (self.in_flight.id(), self.arrived.elapsed().as_secs_f64());
        tracing::info!(%request_id, completion_tokens = self.completion_tokens, seconds, "{end}");
    }
}

type Pending = Pin<Box<dyn Future<Output = (Choice, Result<Delta, Rejection>)> + Send>>;

/// The choices of one request that have not ended.
pub struct Choices {
    model: Arc<ServedModel>,
    running: FuturesUnordered<Pending>,
    prompt_ids: Vec<Vec<u32>>,
    /// Choices a prompt.
    choices: usize,
    completion_tokens: usize,
    arrived: Instant,
    request_failed: Arc<AtomicBool>,
    in_flight: InFlight,
}

impl Choices {
    /// The choices of each prompt follow one another in `accepted`.
    pub fn new(
        model: &Arc<ServedModel>,
        accepted: Vec<Accepted>,
        request: &CompletionRequest,
        arrived: Instant,
        in_flight: InFlight,
    ) -> Self {
        let (choices, min_tokens) = (request.sampling.n.unwrap_or(1), request.sampling.min_tokens);
        let keeps_stop = request.include_stop_str_in_output;
        // The completions route shows what was generated, as it was generated.
        let thought = match request.route {
            Route::Chat => thought_ids(&model.tokenizer),
            Route::Completions => None,
        };
        let request_failed = Arc::new(AtomicBool::new(false));
        let (running, mut prompt_ids) = (FuturesUnordered::new(), Vec::new());
        for (index, Accepted { prompt_ids: ids, echo, stream }) in accepted.into_iter().enumerate() {
            metrics::counter!(PROMPT_TOKENS_TOTAL).increment(ids.len() as u64);
            let chars = echo.as_ref().map_or(0, |echo| echo.chars);
            let opening = (echo.is_some() || request.prompt_logprobs.is_some()).then(|| Opening {
                prompt_ids: ids.clone(),
                echo,
                logprobs: request.logprobs,
                prompt_logprobs: request.prompt_logprobs,
            });
            prompt_ids.push(ids);
            running.push(advance(Choice {
                index,
                model: model.clone(),
                stream,
                opening,
                only_prompt: request.max_tokens == Some(0),
                output: TextOutput::new(&request.stop, keeps_stop, min_tokens).behind(chars).without_thoughts(thought),
                keeps_stop,
                arrived,
                last_token: None,
                failed: None,
                ended: false,
                request_failed: request_failed.clone(),
            }));
        }
        let model = model.clone();
        Self { model, running, prompt_ids, choices, completion_tokens: 0, arrived, request_failed, in_flight }
    }

    /// The next delta of any choice; none when all have ended. After an error the request is over.
    pub async fn next(&mut self) -> Option<Result<Delta, Rejection>> {
        let (choice, result) = self.running.next().await?;
        if let Ok(delta) = &result {
            self.completion_tokens += delta.token_ids.len();
            if delta.finish.is_none() {
                self.running.push(advance(choice));
            }
        }
        Some(result)
    }

    pub fn model(&self) -> &ServedModel {
        &self.model
    }

    /// Prompt ids of each choice, by index.
    pub fn prompt_ids(&self) -> &[Vec<u32>] {
        &self.prompt_ids
    }

    /// Tokens of the prompts, each counted once however many choices it has.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_ids.iter().step_by(self.choices).map(Vec::len).sum()
    }

    /// Generated tokens given out so far, stop tokens included.
    pub fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }
}

fn advance(mut choice: Choice) -> Pending {
    Box::pin(async move {
        let result = choice.next().await;
        (choice, result)
    })
}
