//! Start of the engine: device, checkpoint, memory plan, capture, then the engine thread.

use std::thread::JoinHandle;

use crate::config::Config;
use crate::engine::handle::EngineDoor;
use crate::server::ServedModel;

/// Why there is no engine. `Display` is what the operator reads.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A bad checkpoint, a knob or too little memory: names it, with the arithmetic (exit code 2).
    #[error("{0}")]
    Refused(String),
    /// The device failed (exit code 1).
    #[error("{0}")]
    Device(String),
}

/// The engine thread ended because of this (exit code 1).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EngineFailure(pub String);

/// What the engine thread returns: `Ok` after an orderly stop.
pub type EngineThread = JoinHandle<Result<(), EngineFailure>>;

/// Loads and captures on the calling thread, then starts the engine thread. `on_ready` is called once, before the door
/// says ready.
pub fn start_engine(
    _config: &Config,
    _door: EngineDoor,
    _on_ready: impl FnOnce(ServedModel),
) -> Result<EngineThread, StartError> {
    Err(StartError::Refused("this build has no engine".into()))
}
