//! The table of routes, and what holds for all of them: a request id, one 500 for a panic, errors in one shape.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;

use crate::error::Rejection;
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::server::completions::{chat_completions, completions};
use crate::server::{App, health};

pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of an HTTP request: the client's, or one made here.
#[derive(Clone, Debug)]
pub struct ClientRequestId {
    pub id: String,
    /// False when the client sent one that cannot be used; `id` is then ours.
    pub valid: bool,
}

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/models", get(health::models))
        .route("/health", get(health::ready))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .route("/metrics", get(health::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), outermost))
        .with_state(app)
}

async fn no_route(method: Method, uri: Uri) -> Response {
    Rejection::NoRoute { method: method.to_string(), path: uri.path().to_owned() }.into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    Rejection::WrongMethod { method: method.to_string(), path: uri.path().to_owned() }.into_response()
}

/// Gives the request its id, echoes it, and turns a panic of a handler into one 500.
async fn outermost(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request_id(&app, request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(id.clone());
    let result = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = result.unwrap_or_else(|_| {
        tracing::error!(request_id = %id.id, %method, path, "the handler panicked");
        Rejection::Panicked.into_response()
    });
    // Both kinds of id are visible ASCII.
    if let Ok(value) = HeaderValue::from_str(&id.id) {
        response.headers_mut().insert(X_REQUEST_ID, value);
    }
    tracing::debug!(request_id = %id.id, %method, path, status = response.status().as_u16());
    response
}

fn request_id(app: &App, headers: &HeaderMap) -> ClientRequestId {
    let Some(value) = headers.get(X_REQUEST_ID) else { return ClientRequestId { id: app.make_id(), valid: true } };
    let usable = (1..=REQUEST_ID_BYTES_MAX).contains(&value.len())
        && value.as_bytes().iter().all(|b| b.is_ascii_graphic())
        && headers.get_all(X_REQUEST_ID).iter().count() == 1;
    match value.to_str() {
        Ok(id) if usable => ClientRequestId { id: id.to_owned(), valid: true },
        _ => ClientRequestId { id: app.make_id(), valid: false },
    }
}
