//! The form of answers: one object, or a stream of chunks; and of refusals.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;

use crate::error::Rejection;
use crate::server::generation::{Choices, Delta, Finish};
use crate::server::{ServedModel, logprobs};

/// What stays the same over all objects of one answer.
#[derive(Clone)]
pub struct Header {
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
}

#[derive(Serialize)]
struct ChoiceReply<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<logprobs::Legacy>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<logprobs::PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
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
    fn object<'a>(&'a self, choices: Vec<ChoiceReply<'a>>, usage: Option<Option<Usage>>) -> Completion<'a> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created_s,
            model: &self.model,
            choices,
            usage,
        }
    }

    fn choice<'a>(&self, model: &ServedModel, delta: &'a Delta, prompt_ids: Option<&'a [u32]>) -> ChoiceReply<'a> {
        ChoiceReply {
            index: delta.index,
            text: &delta.text,
            logprobs: self.logprobs.then(|| logprobs::legacy(&model.tokenizer, &delta.scored)),
            finish_reason: delta.finish.map(Finish::word),
            prompt_logprobs: (!delta.prompt_scored.is_empty())
                .then(|| logprobs::prompt(&model.tokenizer, &delta.prompt_scored)),
            token_ids: self.return_token_ids.then_some(&delta.token_ids),
            prompt_token_ids: prompt_ids.filter(|_| self.return_token_ids),
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
    let (model, ids) = (choices.model(), choices.prompt_ids());
    let replies = whole.iter().map(|d| header.choice(model, d, Some(&ids[d.index]))).collect();
    let json = to_json(&header.object(replies, Some(Some(Usage::of(&choices)))));
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CONTENT_LENGTH, HeaderValue::from(json.len())),
    ];
    // The choices, which hold the request's place in the drain's count, go with the body until it is written.
    let body = futures_util::stream::once(async move {
        let _choices = choices;
        Ok::<_, Infallible>(Bytes::from(json))
    });
    Ok((head, Body::from_stream(body)).into_response())
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
    let state = Streaming { header, choices, begun, first: Some(first), keep_alive, over: false };
    let body = Body::from_stream(futures_util::stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
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
    over: bool,
}

impl Streaming {
    /// Bytes of the next event; none after the last.
    async fn next(&mut self) -> Option<Vec<u8>> {
        while !self.over {
            let event = match self.first.take() {
                Some(event) => event,
                None => match tokio::time::timeout(self.keep_alive, self.choices.next()).await {
                    Ok(delta) => Event::Next(delta),
                    Err(_) => Event::Silence,
                },
            };
            match event {
                Event::Silence => return Some(b": keep-alive\n\n".to_vec()),
                Event::Next(Some(Ok(delta))) => {
                    // A delta of held-back text says nothing, unless its ids were asked for, or what comes with them.
                    let has_tokens =
                        self.header.return_token_ids || !delta.scored.is_empty() || !delta.prompt_scored.is_empty();
                    if delta.text.is_empty() && delta.finish.is_none() && !has_tokens {
                        continue;
                    }
                    return Some(self.chunk(&delta));
                }
                Event::Next(Some(Err(rejection))) => {
                    // No [DONE] after it: truncation is never mistaken for success.
                    self.over = true;
                    return Some(event_bytes(&rejection.body()));
                }
                Event::Next(None) => {
                    self.over = true;
                    return Some(self.end());
                }
            }
        }
        None
    }

    fn chunk(&mut self, delta: &Delta) -> Vec<u8> {
        let first = !std::mem::replace(&mut self.begun[delta.index], true);
        let prompt_ids = first.then(|| self.choices.prompt_ids()[delta.index].as_slice());
        let usage = self.header.include_usage.then_some(None);
        let choice = self.header.choice(self.choices.model(), delta, prompt_ids);
        event_bytes(&self.header.object(vec![choice], usage))
    }

    fn end(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.header.include_usage {
            bytes = event_bytes(&self.header.object(Vec::new(), Some(Some(Usage::of(&self.choices)))));
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
        let mut response = json(self.status(), &self.body());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if closes_connection(&self) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
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
