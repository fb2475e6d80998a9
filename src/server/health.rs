//! Probes, the list of models, metrics: from atomics only, never behind work (reliability rows 44, 45; B90).

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::metrics::REQUESTS_WAITING;
use crate::server::{App, reply};

/// 200 as long as the process can answer at all.
pub async fn live() -> Response {
    reply::json(StatusCode::OK, &json!({"status": "live"}))
}

/// 200 when a balancer should send requests, else 503 with the reason.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    let rejection = match app.ready() {
        Ok(()) => return reply::json(StatusCode::OK, &json!({"status": "ready"})),
        Err(rejection) => rejection,
    };
    let mut body = rejection.body();
    body["status"] = json!("unavailable");
    body["reason"] = json!(rejection.code());
    let mut response = reply::json(StatusCode::SERVICE_UNAVAILABLE, &body);
    if let Some(seconds) = rejection.retry_after_s() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub async fn models(State(app): State<Arc<App>>) -> Response {
    match app.model() {
        Err(rejection) => rejection.into_response(),
        Ok(model) => reply::json(
            StatusCode::OK,
            &json!({"object": "list", "data": [{
                "id": model.id,
                "object": "model",
                "created": app.started_s,
                "owned_by": "gemma4-serve",
                "max_model_len": model.max_context,
            }]}),
        ),
    }
}

/// Prometheus text.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    ::metrics::gauge!(REQUESTS_WAITING).set(app.engine.waiting() as f64);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], crate::metrics::page(&app.metrics))
        .into_response()
}
