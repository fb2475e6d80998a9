//! The device: context, streams, events, buffers, modules and graphs over the CUDA driver API, and the software device
//! behind the same API. This module knows nothing of Gemma.
//!
//! Fenced unsafe: every call into the driver stands here, each with the fact it relies on. Calls go through cudarc's
//! `sys` layer with the context bound once to the engine thread; cudarc's safe layer records events per slice, which
//! breaks capture, and queries the context on each call.
#![allow(unsafe_code)]

mod buffer;
mod context;
mod error;
mod graph;
mod leave;
mod loader;
pub mod mmap;
mod module;
pub mod nvtx;
pub mod soft;
mod stream;

pub use buffer::{DeviceBuffer, DeviceSlice, PinnedBuffer};
pub use context::{Context, DeviceInfo, Traffic};
pub use error::DriverError;
pub use graph::{Graph, GraphExec};
pub use leave::leave;
pub use loader::{DeviceChoice, DeviceKind, LoadError, load_driver};
pub use module::{Function, Launch, Module};
pub use stream::{Event, Stream};
