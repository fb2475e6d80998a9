//! `POST /v1/completions` and `POST /v1/chat/completions`: one path, two forms of prompt and answer.
//!
//! Cheap refusals come first: state, then size, then syntax, then a place in the queue; only then is text tokenised.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::Rejection;
use crate::limits::{
    BODY_BYTES_MAX, LOGGED_FIELD_BYTES_MAX, REQUEST_ID_BYTES_MAX, SMALL_BODY_BYTES_MAX, TOKENISE_INLINE_BYTES_MAX,
};
use crate::metrics::Outcome;
use crate::request::Failure;
use crate::server::admission::{Accepted, admit, off_reactor};
use crate::server::app::unix_time_s;
use crate::server::generation::Choices;
use crate::server::routes::ClientRequestId;
use crate::server::wire::{self, CompletionRequest, Route};
use crate::server::{App, reply};

pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<ClientRequestId>,
    request: Request,
) -> Response {
    answer(app, id, request, Route::Completions).await
}

pub async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<ClientRequestId>,
    request: Request,
) -> Response {
    answer(app, id, request, Route::Chat).await
}

async fn answer(app: Arc<App>, id: ClientRequestId, request: Request, route: Route) -> Response {
    let mut early = Early { id: id.id.clone(), over: false };
    let answer = serve(app, &id, request, route, &mut early).await;
    early.over = true;
    match answer {
        Ok(response) => response,
        Err(rejection) => {
            // What failed after it was accepted has been counted by its choices.
            if !matches!(rejection, Rejection::Failed(_) | Rejection::Cancelled) {
                Outcome::Refused.count();
            }
            let (status, code) = (rejection.status().as_u16(), rejection.code());
            match &rejection {
                Rejection::Failed(Failure::Engine(_)) | Rejection::Panicked => {
                    tracing::error!(request_id = %id.id, status, code, "{rejection}")
                }
                _ => tracing::info!(request_id = %id.id, status, code, "{rejection}"),
            }
            reply::refusal(&rejection, route)
        }
    }
}

/// A request that is neither refused nor admitted. hyper drops its handler when its client leaves while the body
/// arrives or is tokenised: that end is counted and logged, too.
struct Early {
    id: String,
    over: bool,
}

impl Drop for Early {
    fn drop(&mut self) {
        if !self.over {
            Outcome::Aborted.count();
            tracing::info!(request_id = %self.id, "aborted before it was admitted: the client went away");
        }
    }
}

async fn serve(
    app: Arc<App>,
    id: &ClientRequestId,
    request: Request,
    route: Route,
    early: &mut Early,
) -> Result<Response, Rejection> {
    let arrived = Instant::now();
    if !id.valid {
        return Err(Rejection::BadRequestId { limit: REQUEST_ID_BYTES_MAX });
    }
    let in_flight = app.enter(&id.id)?;
    app.accepting()?;
    let model = app.model()?;
    let (parts, body) = request.into_parts();
    let (bytes, share) = read_body(&app, &parts.headers, body).await?;
    // The share goes with what the body becomes, on other threads too, until the prompts are ids.
    let long = bytes.len() > TOKENISE_INLINE_BYTES_MAX;
    let (mut request, share) =
        off_reactor(long, move || wire::parse(&bytes, route).map(|request| (request, share))).await?;
    let accepted = admit(&app, &model, &mut request, long, share).await?;
    log_accepted(id, &request, &accepted);
    let choices = Choices::new(&model, accepted, &request, arrived, in_flight);
    early.over = true;
    let prefix = match route {
        Route::Completions => "cmpl",
        Route::Chat => "chatcmpl",
    };
    let header = reply::Header {
        route,
        id: format!("{prefix}-{}", id.id),
        created_s: unix_time_s(),
        model: model.id.as_str().into(),
        return_token_ids: request.return_token_ids,
        include_usage: request.include_usage,
        logprobs: request.logprobs.is_some(),
    };
    if request.stream {
        reply::stream(header, choices, app.config.stream_keep_alive).await
    } else {
        reply::gather(header, choices).await
    }
}

/// Reads the body within its limits of size and time; one that announces too much is refused unread. A body of which
/// more than [`SMALL_BODY_BYTES_MAX`] have come takes its share of what large bodies may use together before the rest
/// is read: so a client that sends little keeps nobody out, and the wait for a share is not the client's slowness.
async fn read_body(
    app: &App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Rejection> {
    let limit_bytes = BODY_BYTES_MAX;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let bytes_max = match announced {
        Some(n) if n > limit_bytes as u64 => return Err(Rejection::BodyTooLarge { limit_bytes }),
        Some(n) => n as usize,
        None => limit_bytes,
    };
    let mut body = Limited::new(body, limit_bytes);
    let mut bytes = BytesMut::new();
    let started = Instant::now();
    let limit = app.config.body_timeout;
    let whole = read_until(&mut body, &mut bytes, SMALL_BODY_BYTES_MAX, limit, limit).await?;
    if whole {
        return Ok((bytes.freeze(), None));
    }
    let left = limit.saturating_sub(started.elapsed());
    let units = bytes_max.div_ceil(SMALL_BODY_BYTES_MAX) as u32;
    // Never closed, so there is no error to see.
    let share = app.large_bodies.clone().acquire_many_owned(units).await.ok();
    read_until(&mut body, &mut bytes, usize::MAX, left, limit).await?;
    Ok((bytes.freeze(), share))
}

/// Reads on until there are more than `enough` bytes, for at most `left` of the `limit` of the whole body; true when
/// the body is whole.
async fn read_until(
    body: &mut Limited<Body>,
    bytes: &mut BytesMut,
    enough: usize,
    left: Duration,
    limit: Duration,
) -> Result<bool, Rejection> {
    let read = async {
        while bytes.len() <= enough {
            match body.frame().await {
                None => return Ok(true),
                Some(frame) => bytes.extend(frame?.into_data()),
            }
        }
        Ok(false)
    };
    match tokio::time::timeout(left, read).await {
        Ok(result) => result.map_err(|e: axum::BoxError| match e.is::<LengthLimitError>() {
            true => Rejection::BodyTooLarge { limit_bytes: BODY_BYTES_MAX },
            false => Rejection::BodyUnreadable(e.to_string()),
        }),
        Err(_) => Err(Rejection::BodyTooSlow { limit_s: limit.as_secs_f64() }),
    }
}

fn log_accepted(id: &ClientRequestId, request: &CompletionRequest, accepted: &[Accepted]) {
    let choices = request.sampling.n.unwrap_or(1);
    let prompts = accepted.iter().step_by(choices);
    let metadata = request.metadata.as_ref().map(|m| cut(m.to_string()));
    let user = request.user.clone().map(cut);
    tracing::info!(
        request_id = %id.id,
        prompts = prompts.len(),
        prompt_tokens = prompts.map(|prompt| prompt.prompt_ids.len()).sum::<usize>(),
        n = choices,
        max_tokens = request.max_tokens,
        stream = request.stream,
        user = ?user,
        metadata = ?metadata,
        "accepted"
    );
}

/// A client's text for the log: bounded, and printed with escapes by `?`, so that it cannot forge a line.
fn cut(mut text: String) -> String {
    if text.len() > LOGGED_FIELD_BYTES_MAX {
        let end = (0..=LOGGED_FIELD_BYTES_MAX).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
