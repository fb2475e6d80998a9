//! The form of answers: one object, or a stream of chunks; and of refusals.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;

use crate::error::Rejection;
use crate::limits::SCORED_INLINE_MAX;
use crate::server::admission::off_reactor;
use crate::server::generation::{Choices, Delta, Finish};
use crate::server::wire::Route;
use crate::server::{ServedModel, logprobs};

/// What stays the same over all objects of one answer.
#[derive(Clone)]
pub struct Header {
    pub route: Route,
    pub id: String,
    pub created_s: u64,
    pub model: Arc<str>,
    pub return_token_ids: bool,
    pub include_usage: bool,
    /// The request asked for log-probabilities.
    pub logprobs: bool,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceReply<'a>>,
    /// Absent, null, or the numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    /// Of a chat, whose choices have one prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct ChoiceReply<'a> {
    index: usize,
    #[serde(flatten)]
    said: Said<'a>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<logprobs::PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
}

/// Log-probabilities of what a choice says, in the form of its route.
#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs {
    Legacy(logprobs::Legacy),
    Chat(logprobs::Chat),
}

/// What a choice says, in the form of its route.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Said<'a> {
    Text(&'a str),
    Message(Spoken<'a>),
    Delta(Spoken<'a>),
}

#[derive(Serialize)]
struct Spoken<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    /// Null in a whole message, absent in a delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Option<()>>,
}

/// Whether an object is the whole answer, or the first or a later chunk of a choice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Later,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    fn of(choices: &Choices) -> Self {
        let (prompt_tokens, completion_tokens) = (choices.prompt_tokens(), choices.completion_tokens());
        Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
    }
}

impl Header {
    /// `prompt_ids` stand here on the chat route and with each choice on the other.
    fn object<'a>(
        &'a self,
        part: Part,
        choices: Vec<ChoiceReply<'a>>,
        usage: Option<Option<Usage>>,
        prompt_ids: &'a [u32],
    ) -> Completion<'a> {
        let object = match (self.route, part) {
            (Route::Completions, _) => "text_completion",
            (Route::Chat, Part::Whole) => "chat.completion",
            (Route::Chat, _) => "chat.completion.chunk",
        };
        let shows_prompt = self.route == Route::Chat && self.return_token_ids && part != Part::Later;
        Completion {
            id: &self.id,
            object,
            created: self.created_s,
            model: &self.model,
            choices,
            usage,
            prompt_token_ids: shows_prompt.then_some(prompt_ids),
        }
    }

    fn choice<'a>(&self, part: Part, model: &ServedModel, delta: &'a Delta, prompt_ids: &'a [u32]) -> ChoiceReply<'a> {
        let says_something = !delta.text.is_empty();
        let said = match (self.route, part) {
            (Route::Completions, _) => Said::Text(&delta.text),
            (Route::Chat, Part::Whole) => {
                Said::Message(Spoken { role: Some("assistant"), content: Some(&delta.text), refusal: Some(None) })
            }
            // A delta without text has no content (B11), but for the first, where clients look for it.
            (Route::Chat, _) => Said::Delta(Spoken {
                role: (part == Part::First).then_some("assistant"),
                content: (says_something || part == Part::First).then_some(&delta.text),
                refusal: None,
            }),
        };
        let shows_prompt = self.route == Route::Completions && self.return_token_ids && part != Part::Later;
        ChoiceReply {
            index: delta.index,
            said,
            logprobs: self.logprobs.then(|| match self.route {
                Route::Completions => Logprobs::Legacy(logprobs::legacy(&model.tokenizer, &delta.scored)),
                Route::Chat => Logprobs::Chat(logprobs::chat(&model.tokenizer, &delta.scored)),
            }),
            finish_reason: delta.finish.map(Finish::word),
            prompt_logprobs: (!delta.prompt_scored.is_empty())
                .then(|| logprobs::prompt(&model.tokenizer, &delta.prompt_scored)),
            token_ids: self.return_token_ids.then_some(&delta.token_ids),
            prompt_token_ids: shows_prompt.then_some(prompt_ids),
        }
    }
}

/// Gathers all deltas into one object.
pub async fn gather(header: Header, mut choices: Choices) -> Result<Response, Rejection> {
    let mut whole: Vec<Delta> =
        (0..choices.prompt_ids().len()).map(|index| Delta { index, ..Delta::default() }).collect();
    while let Some(delta) = choices.next().await {
        let delta = delta?;
        let choice = &mut whole[delta.index];
        choice.text.push_str(&delta.text);
        choice.token_ids.extend(delta.token_ids);
        choice.scored.extend(delta.scored);
        choice.prompt_scored.extend(delta.prompt_scored);
        choice.finish = delta.finish;
    }
    let long = whole.iter().map(Delta::scored_tokens).sum::<usize>() > SCORED_INLINE_MAX;
    let (json, choices) = off_reactor(long, move || {
        let (model, prompt_ids) = (choices.model(), choices.prompt_ids());
        let replies = whole.iter().map(|d| header.choice(Part::Whole, model, d, &prompt_ids[d.index])).collect();
        let object = header.object(Part::Whole, replies, Some(Some(Usage::of(&choices))), &prompt_ids[0]);
        Ok((to_json(&object), choices))
    })
    .await?;
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CONTENT_LENGTH, HeaderValue::from(json.len())),
    ];
    // The choices, which hold the request's place in the drain's count, live until the bytes are the kernel's.
    let answer = Bytes::from_owner(Written { json, _choices: choices });
    Ok((head, Body::from(answer)).into_response())
}

/// An answer's bytes, with what goes when they are written.
struct Written {
    json: Vec<u8>,
    _choices: Choices,
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

/// Streams the deltas as server-sent events. The head is sent with the first delta, so a failure before it still has a
/// status of its own; a long wait for it sends the head and a comment line instead.
pub async fn stream(header: Header, mut choices: Choices, keep_alive: Duration) -> Result<Response, Rejection> {
    let first = match tokio::time::timeout(keep_alive, choices.next()).await {
        Ok(Some(Err(rejection))) => return Err(rejection),
        Ok(delta) => Event::Next(delta),
        Err(_) => Event::Silence,
    };
    let begun = vec![false; choices.prompt_ids().len()];
    let quiet_since = Instant::now();
    let state = Streaming { header, choices, begun, first: Some(first), keep_alive, quiet_since, over: false };
    let body = Body::from_stream(futures_util::stream::unfold(state, |state| async move {
        let (bytes, mut state) = state.next().await?;
        state.quiet_since = Instant::now();
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), state))
    }));
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // Asks reverse proxies that buffer (nginx) not to.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((head, body).into_response())
}

enum Event {
    Next(Option<Result<Delta, Rejection>>),
    Silence,
}

struct Streaming {
    header: Header,
    choices: Choices,
    /// Which choices have had a chunk; the first carries the prompt's ids.
    begun: Vec<bool>,
    first: Option<Event>,
    keep_alive: Duration,
    /// When the last event was made, whether or not tokens came since.
    quiet_since: Instant,
    over: bool,
}

impl Streaming {
    /// Bytes of the next event; none after the last.
    async fn next(mut self) -> Option<(Vec<u8>, Self)> {
        while !self.over {
            let left = self.keep_alive.saturating_sub(self.quiet_since.elapsed());
            let event = match self.first.take() {
                Some(event) => event,
                None if left.is_zero() => Event::Silence,
                None => match tokio::time::timeout(left, self.choices.next()).await {
                    Ok(delta) => Event::Next(delta),
                    Err(_) => Event::Silence,
                },
            };
            match event {
                Event::Silence => return Some((b": keep-alive\n\n".to_vec(), self)),
                Event::Next(Some(Ok(delta))) => {
                    // A delta of held-back text says nothing, unless its ids were asked for, or what comes with them.
                    let scored = delta.scored_tokens();
                    let has_tokens = self.header.return_token_ids || scored > 0;
                    if delta.text.is_empty() && delta.finish.is_none() && !has_tokens {
                        continue;
                    }
                    // Nobody is told of a panic there: the stream ends without [DONE].
                    return off_reactor(scored > SCORED_INLINE_MAX, move || Ok((self.chunk(&delta), self))).await.ok();
                }
                Event::Next(Some(Err(rejection))) => {
                    // No [DONE] after it: truncation is never mistaken for success.
                    self.over = true;
                    return Some((event_bytes(&rejection.body()), self));
                }
                Event::Next(None) => {
                    self.over = true;
                    return Some((self.end(), self));
                }
            }
        }
        None
    }

    fn chunk(&mut self, delta: &Delta) -> Vec<u8> {
        let first = !std::mem::replace(&mut self.begun[delta.index], true);
        let part = if first { Part::First } else { Part::Later };
        let prompt_ids = self.choices.prompt_ids()[delta.index].as_slice();
        let usage = self.header.include_usage.then_some(None);
        let choice = self.header.choice(part, self.choices.model(), delta, prompt_ids);
        event_bytes(&self.header.object(part, vec![choice], usage, prompt_ids))
    }

    fn end(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.header.include_usage {
            bytes =
                event_bytes(&self.header.object(Part::Later, Vec::new(), Some(Some(Usage::of(&self.choices))), &[]));
        }
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        bytes
    }
}

/// One server-sent event. JSON has no raw line breaks, so it is one line.
fn event_bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = b"data: ".to_vec();
    bytes.extend(to_json(value));
    bytes.extend_from_slice(b"\n\n");
    bytes
}

/// These types have string keys and finite numbers only: serialising them cannot fail.
fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|_| b"{}".to_vec())
}

/// JSON with a status.
pub fn json(status: StatusCode, value: &impl Serialize) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], to_json(value)).into_response()
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        refusal(&self, Route::Completions)
    }
}

/// The answer to a refused request. What is wrong with a prompt is on the chat route wrong with `messages`.
pub fn refusal(rejection: &Rejection, route: Route) -> Response {
    let mut body = rejection.body();
    let is_field = matches!(rejection, Rejection::UnsupportedField(_));
    if route == Route::Chat && rejection.param() == Some("prompt") && !is_field {
        body["error"]["param"] = "messages".into();
    }
    let mut response = json(rejection.status(), &body);
    let headers = response.headers_mut();
    if let Some(seconds) = rejection.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if closes_connection(rejection) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The connection is of no further use: this process goes away, or the rest of a body was not read.
fn closes_connection(rejection: &Rejection) -> bool {
    use crate::engine::handle::Refusal;
    use crate::request::Failure;
    matches!(
        rejection,
        Rejection::Refused(Refusal::Draining | Refusal::Dead(_))
            | Rejection::Failed(Failure::Engine(_) | Failure::DrainTimeout)
            | Rejection::BodyTooLarge { .. }
            | Rejection::BodyTooSlow { .. }
            | Rejection::BodyUnreadable(_)
    )
}
