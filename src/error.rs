//! Every way a request is refused or fails, with its numbers; one function maps it to an HTTP status.
//!
//! `Display` is the client's sentence. The JSON object is OpenAI's: `{"error":{"message","type","param","code"}}`, the
//! same in a response body and in an SSE error event.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::engine::handle::Refusal;
use crate::request::Failure;
use crate::text::ChatTemplateError;

/// A refused or failed HTTP request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    // The body as bytes and JSON.
    #[error("the body is larger than the limit of {limit_bytes} bytes")]
    BodyTooLarge { limit_bytes: usize },
    #[error("the body did not arrive within {limit_s} s")]
    BodyTooSlow { limit_s: f64 },
    #[error("the body could not be read: {0}")]
    BodyUnreadable(String),
    #[error("the body is not valid JSON: {0}")]
    MalformedJson(String),

    #[error("the body must be a JSON object: {0}")]
    NotAnObject(String),

    // Fields.
    #[error("{param}: {message}")]
    WrongType { param: String, message: String },
    #[error("unknown or unsupported field `{0}`")]
    UnsupportedField(String),
    #[error("{param}: {why}")]
    NotServed { param: String, why: &'static str },
    #[error("the field `{0}` appears twice")]
    DuplicateField(String),
    #[error("the field `{0}` is required")]
    MissingField(&'static str),
    #[error("{param} is {value}: expected {expected}")]
    OutOfRange { param: &'static str, value: String, expected: &'static str },
    #[error("{param}: token id {id} is not in 0..{vocab_size}")]
    NoSuchToken { param: &'static str, id: u64, vocab_size: usize },
    #[error("bad_words {index} cannot be banned: {why}")]
    BadWord { index: usize, why: String },
    #[error("min_tokens is {min_tokens}, but at most {max_tokens} tokens are generated")]
    MinTokens { min_tokens: u32, max_tokens: u32 },
    #[error(
        "each of the {allowed} allowed_token_ids ends the answer, and the first {min_tokens} tokens must not \
         (min_tokens)"
    )]
    OnlyEndsAllowed { allowed: usize, min_tokens: u32 },
    #[error("best_of is not served: every choice is sampled on its own, and none is discarded; use n")]
    BestOf,
    #[error(
        "{0} is not served: the repeat that each token would extend is a search through the whole context before every \
         step, and the state the device keeps for a row allows constant work; use the other penalties"
    )]
    Dry(String),
    #[error("stream_options is only allowed when stream is true")]
    StreamOptionsWithoutStream,
    #[error("max_tokens is 0: expected at least 1, unless echo asks for the prompt alone")]
    MaxTokensZero,
    #[error("stop has {count} strings; the limit is {limit}")]
    TooManyStops { count: usize, limit: usize },
    #[error("stop string {index} is empty")]
    EmptyStop { index: usize },
    #[error("stop string {index} has {bytes} bytes; the limit is {limit_bytes}")]
    StopTooLong { index: usize, bytes: usize, limit_bytes: usize },

    // Prompts.
    #[error("messages is an empty list")]
    NoMessages,
    #[error("this checkpoint has no chat template: use /v1/completions, or start the server with --chat-template")]
    NoChatTemplate,
    #[error("{0}")]
    Chat(#[from] ChatTemplateError),
    #[error("the prompt list is empty")]
    NoPrompts,
    #[error("prompt {prompt_index} is an empty list of token ids")]
    EmptyPrompt { prompt_index: usize },
    #[error("the request has {count} prompts; the limit is {limit}")]
    TooManyPrompts { count: usize, limit: usize },
    #[error("{prompts} prompts of {n} choices each are {} requests; --max-waiting is {limit}", prompts * n)]
    TooManyChoices { prompts: usize, n: usize, limit: usize },
    #[error("prompt {prompt_index}: token id {id} at position {position} is not in 0..{vocab_size}")]
    TokenIdOutOfRange { prompt_index: usize, position: usize, id: u64, vocab_size: usize },
    #[error(
        "prompt {prompt_index}: token id {id} at position {position} stands for {name} input, which is not supported"
    )]
    ModalityToken { prompt_index: usize, position: usize, id: u32, name: String },
    #[error("prompt {prompt_index} cannot be tokenised: {message}")]
    NotTokenised { prompt_index: usize, message: String },
    #[error(
        "prompt {prompt_index} has {prompt_tokens} tokens and max_tokens is {max_tokens}: {} together, \
         but the context holds {context} tokens", (*prompt_tokens as u64).saturating_add(*max_tokens)
    )]
    ContextExceeded { prompt_index: usize, prompt_tokens: usize, max_tokens: u64, context: usize },
    #[error(
        "prompt {prompt_index} has {bytes} bytes of text, at least {tokens_min} tokens, but the context holds \
         {context} tokens"
    )]
    PromptTooLong { prompt_index: usize, bytes: usize, tokens_min: usize, context: usize },
    #[error(
        "prompt {prompt_index} needs {needed} tokens of KV cache ({prompt_tokens} of the prompt, max_tokens \
         {max_tokens}, the last one not cached), but the whole pool holds {pool}: it can never run here"
    )]
    PoolExceeded { prompt_index: usize, prompt_tokens: usize, max_tokens: u64, needed: u64, pool: usize },

    // The request as a whole.
    #[error("the model `{asked}` does not exist; this server serves `{served}`")]
    UnknownModel { asked: String, served: String },
    #[error("X-Request-Id must be 1 to {limit} visible ASCII characters")]
    BadRequestId { limit: usize },
    #[error("a request with X-Request-Id `{0}` is still running")]
    DuplicateRequestId(String),
    #[error("there is no route {method} {path}")]
    NoRoute { method: String, path: String },
    #[error("the method {method} is not allowed on {path}")]
    WrongMethod { method: String, path: String },

    // The server and the engine.
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("{0}")]
    Failed(#[from] Failure),
    #[error("the request was cancelled by the server")]
    Cancelled,
    #[error("the engine has made no step for {stalled_s:.1} s")]
    Stalled { stalled_s: f64 },
    #[error("internal error: the request handler panicked")]
    Panicked,
}

impl Rejection {
    /// The one map from refusals to HTTP statuses.
    pub fn status(&self) -> StatusCode {
        use Rejection::*;
        match self {
            BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyTooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            BodyUnreadable(_)
            | MalformedJson(_)
            | NotAnObject(_)
            | WrongType { .. }
            | UnsupportedField(_)
            | NotServed { .. }
            | DuplicateField(_)
            | MissingField(_)
            | OutOfRange { .. }
            | NoSuchToken { .. }
            | BadWord { .. }
            | MinTokens { .. }
            | OnlyEndsAllowed { .. }
            | BestOf
            | Dry(_)
            | StreamOptionsWithoutStream
            | MaxTokensZero
            | TooManyStops { .. }
            | EmptyStop { .. }
            | StopTooLong { .. }
            | NoPrompts
            | NoMessages
            | NoChatTemplate
            | Chat(_)
            | EmptyPrompt { .. }
            | TooManyPrompts { .. }
            | TooManyChoices { .. }
            | TokenIdOutOfRange { .. }
            | ModalityToken { .. }
            | NotTokenised { .. }
            | ContextExceeded { .. }
            | PromptTooLong { .. }
            | PoolExceeded { .. }
            // Of the request's own masks: what it allows, bans and forbids to end.
            | Failed(Failure::AllMasked { .. })
            | BadRequestId { .. } => StatusCode::BAD_REQUEST,
            UnknownModel { .. } | NoRoute { .. } => StatusCode::NOT_FOUND,
            WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            DuplicateRequestId(_) => StatusCode::CONFLICT,
            Refused(_) | Stalled { .. } | Cancelled | Failed(Failure::Engine(_) | Failure::DrainTimeout) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Failed(Failure::NotANumber { .. } | Failure::PromptNotANumber { .. }) | Panicked => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// Seconds after which a retry makes sense; none when it does not (a client's mistake, a dead engine).
    pub fn retry_after_s(&self) -> Option<u32> {
        match self {
            Rejection::Refused(Refusal::QueueFull { .. }) => Some(1),
            Rejection::Refused(Refusal::Loading | Refusal::Draining) => Some(5),
            Rejection::Failed(Failure::DrainTimeout) | Rejection::Stalled { .. } => Some(5),
            _ => None,
        }
    }

    /// The request's field at fault.
    pub fn param(&self) -> Option<&str> {
        use Rejection::*;
        match self {
            WrongType { param, .. } | NotServed { param, .. } => Some(param),
            NoMessages | NoChatTemplate | Chat(_) => Some("messages"),
            UnsupportedField(name) | DuplicateField(name) | Dry(name) => Some(name),
            MissingField(name) => Some(name),
            OutOfRange { param, .. } | NoSuchToken { param, .. } => Some(param),
            BadWord { .. } => Some("bad_words"),
            MinTokens { .. } => Some("min_tokens"),
            OnlyEndsAllowed { .. } => Some("allowed_token_ids"),
            TooManyChoices { n: 2.., .. } => Some("n"),
            BestOf => Some("best_of"),
            StreamOptionsWithoutStream => Some("stream_options"),
            MaxTokensZero => Some("max_tokens"),
            TooManyStops { .. } | EmptyStop { .. } | StopTooLong { .. } => Some("stop"),
            NoPrompts
            | EmptyPrompt { .. }
            | TooManyPrompts { .. }
            | TokenIdOutOfRange { .. }
            | ModalityToken { .. }
            | NotTokenised { .. }
            | ContextExceeded { .. }
            | PromptTooLong { .. }
            | TooManyChoices { .. }
            | PoolExceeded { .. } => Some("prompt"),
            UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// A word a program can switch on.
    pub fn code(&self) -> &'static str {
        use Rejection::*;
        match self {
            BodyTooLarge { .. } => "body_too_large",
            BodyTooSlow { .. } => "body_too_slow",
            BodyUnreadable(_) => "body_unreadable",
            MalformedJson(_) => "malformed_json",
            NotAnObject(_) | WrongType { .. } => "invalid_type",
            UnsupportedField(_) | NotServed { .. } | BestOf | Dry(_) => "unsupported_field",
            DuplicateField(_) => "duplicate_field",
            MissingField(_) => "missing_field",
            OutOfRange { .. }
            | BadWord { .. }
            | MinTokens { .. }
            | OnlyEndsAllowed { .. }
            | StreamOptionsWithoutStream
            | MaxTokensZero
            | TooManyStops { .. }
            | EmptyStop { .. }
            | StopTooLong { .. } => "invalid_value",
            NoPrompts | NoMessages | EmptyPrompt { .. } => "empty_prompt",
            NoChatTemplate => "no_chat_template",
            Chat(_) => "invalid_messages",
            TooManyPrompts { .. } | TooManyChoices { .. } => "too_many_prompts",
            TokenIdOutOfRange { .. } | NoSuchToken { .. } => "token_id_out_of_range",
            ModalityToken { .. } => "unsupported_modality",
            NotTokenised { .. } => "invalid_prompt",
            ContextExceeded { .. } | PromptTooLong { .. } => "context_length_exceeded",
            PoolExceeded { .. } => "kv_pool_exceeded",
            UnknownModel { .. } => "model_not_found",
            BadRequestId { .. } => "invalid_request_id",
            DuplicateRequestId(_) => "duplicate_request_id",
            NoRoute { .. } => "route_not_found",
            WrongMethod { .. } => "method_not_allowed",
            Refused(Refusal::QueueFull { .. }) => "queue_full",
            Refused(Refusal::Loading) => "loading",
            Refused(Refusal::Draining) => "draining",
            Refused(Refusal::Dead(_)) | Failed(Failure::Engine(_)) => "engine_failed",
            Failed(Failure::NotANumber { .. } | Failure::PromptNotANumber { .. }) => "not_a_number",
            Failed(Failure::AllMasked { .. }) => "all_masked",
            Failed(Failure::DrainTimeout) => "drain_timeout",
            Cancelled => "cancelled",
            Stalled { .. } => "engine_stalled",
            Panicked => "internal_error",
        }
    }

    /// OpenAI's coarse class.
    pub fn kind(&self) -> &'static str {
        match self.status().as_u16() {
            503 => "unavailable_error",
            500..=599 => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// `{"error":{...}}`, for bodies and SSE events alike.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }
}
