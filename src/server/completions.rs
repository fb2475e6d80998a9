//! `POST /v1/completions` and `POST /v1/chat/completions`: one path, two forms of prompt and answer.
//!
//! Cheap refusals come first: state, then size, then syntax, then a place in the queue; only then is text tokenised.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::SemaphorePermit;

use crate::error::Rejection;
use crate::limits::{
    BODY_BYTES_MAX, LOGGED_FIELD_BYTES_MAX, REQUEST_ID_BYTES_MAX, SMALL_BODY_BYTES_MAX, TOKENISE_INLINE_BYTES_MAX,
};
use crate::metrics::Outcome;
use crate::request::Failure;
use crate::server::admission::{admit, off_reactor};
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
    match serve(app, &id, request, route).await {
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

async fn serve(app: Arc<App>, id: &ClientRequestId, request: Request, route: Route) -> Result<Response, Rejection> {
    let arrived = Instant::now();
    if !id.valid {
        return Err(Rejection::BadRequestId { limit: REQUEST_ID_BYTES_MAX });
    }
    let in_flight = app.enter(&id.id)?;
    app.accepting()?;
    let model = app.model()?;
    let (parts, body) = request.into_parts();
    // The share is held until the prompts are admitted, in ids.
    let (bytes, _share) = read_body(&app, &parts.headers, body).await?;
    let mut request = off_reactor(bytes.len() > TOKENISE_INLINE_BYTES_MAX, move || wire::parse(&bytes, route)).await?;
    let accepted = admit(&app, &model, &mut request).await?;
    log_accepted(id, &request, &accepted.iter().map(|a| a.prompt_ids.len()).collect::<Vec<_>>());
    let choices = Choices::new(&model, accepted, &request, arrived, in_flight);
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

/// Reads the body within its limits of size and time; one that announces too much is refused unread. A large body first
/// takes its share of what large bodies may use together.
async fn read_body<'a>(
    app: &'a App,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<SemaphorePermit<'a>>), Rejection> {
    let limit_bytes = BODY_BYTES_MAX;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let bytes_max = match announced {
        Some(n) if n > limit_bytes as u64 => return Err(Rejection::BodyTooLarge { limit_bytes }),
        Some(n) => n as usize,
        None => limit_bytes,
    };
    let read = async {
        let share = match bytes_max {
            0..=SMALL_BODY_BYTES_MAX => None,
            // Never closed, so there is no error to see.
            _ => app.large_bodies.acquire_many(bytes_max.div_ceil(SMALL_BODY_BYTES_MAX) as u32).await.ok(),
        };
        Ok((Limited::new(body, limit_bytes).collect().await?.to_bytes(), share))
    };
    let limit = app.config.body_timeout;
    match tokio::time::timeout(limit, read).await {
        Ok(result) => result.map_err(|e: axum::BoxError| match e.is::<LengthLimitError>() {
            true => Rejection::BodyTooLarge { limit_bytes },
            false => Rejection::BodyUnreadable(e.to_string()),
        }),
        Err(_) => Err(Rejection::BodyTooSlow { limit_s: limit.as_secs_f64() }),
    }
}

fn log_accepted(id: &ClientRequestId, request: &CompletionRequest, prompt_tokens: &[usize]) {
    let metadata = request.metadata.as_ref().map(|m| cut(m.to_string()));
    let user = request.user.clone().map(cut);
    tracing::info!(
        request_id = %id.id,
        prompts = prompt_tokens.len(),
        prompt_tokens = prompt_tokens.iter().sum::<usize>(),
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
