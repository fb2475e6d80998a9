//! The async side: HTTP in, tickets out, text back. In the order a request meets them:
//!
//! 1. [`listen`]: connections, their limits and time-outs.
//! 2. [`routes`]: the table, request ids, panics, unknown routes.
//! 3. [`completions`]: the two routes that generate; [`wire`] parses their body, [`chat_fields`] and [`messages`]
//!    a conversation in it, [`sampling_fields`] what in it chooses tokens, [`admission`] checks and tokenises it.
//! 4. [`generation`]: tokens to deltas; [`reply`] gives them their form, streamed or gathered, and [`logprobs`] that of
//!    log-probabilities.
//! 5. [`health`]: probes, models, metrics.
//! 6. [`lifecycle`]: from bound socket to exit code: drain, second signal, death of the engine.
//!
//! [`app`] is what they share, [`model`] the served model.

pub mod admission;
pub mod app;
pub mod chat_fields;
pub mod completions;
pub mod generation;
pub mod health;
pub mod lifecycle;
pub mod listen;
pub mod logprobs;
pub mod messages;
pub mod model;
pub mod reply;
pub mod routes;
pub mod sampling_fields;
pub mod wire;

pub use app::App;
pub use lifecycle::{EngineEnd, Exit, run};
pub use listen::bind;
pub use model::ServedModel;
