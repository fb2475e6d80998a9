//! gemma4-serve: a decode runtime for the Gemma 4 family, driven by CUDA graphs.
//!
//! The modules stand in the order in which a request meets them:
//!
//! 1. [`server`]: routes, wire types, SSE, health, drain (async side).
//! 2. [`text`]: tokenizer, detokenizer, stop strings (async side).
//! 3. [`request`], [`sampling`], [`engine::handle`]: the door to the engine thread.
//! 4. [`engine`]: the step loop. [`scheduler`] plans, [`kv`] accounts for pages.
//! 5. [`step`]: device step tables. [`graph`]: buckets, capture, replay. [`sampler`]: the sampler graph. [`slots`]:
//!    pinned readback slots.
//! 6. [`model`]: configuration, weights, the forward pass and the kernel launchers.
//! 7. [`device`]: context, streams, events, buffers, graphs over the driver API, and the software device.
//!
//! Beside the path: [`config`] (flags), [`limits`], [`error`], [`metrics`], [`trace`], [`alloc`]; [`score`], [`bench`]
//! and [`bench_step`], which run the model without a server; and [`inspect`], which runs nothing.

pub mod config;
pub mod trace;

pub mod server;
pub mod text;

pub mod bench;
pub mod bench_step;
pub mod engine;
pub mod inspect;
pub mod request;
pub mod sampling;
pub mod score;

pub mod kv;
pub mod scheduler;

pub mod graph;
pub mod sampler;
pub mod slots;
pub mod step;

pub mod model;

pub mod device;
pub mod images;

pub mod alloc;
pub mod error;
pub mod limits;
pub mod metrics;
