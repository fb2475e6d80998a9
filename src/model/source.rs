//! Where a model comes from: one value from the flags, opened once.

use std::fmt;
use std::path::PathBuf;

use super::checkpoint::{Checkpoint, CheckpointError};
use super::synthetic::SyntheticModel;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The checkpoint compiled into the binary.
    Embedded,
    /// A folder as published.
    Folder(PathBuf),
    /// Made up on the device.
    Synthetic(SyntheticModel),
}

impl ModelSource {
    pub fn open(&self) -> Result<Checkpoint, CheckpointError> {
        match self {
            ModelSource::Embedded => Checkpoint::embedded(),
            ModelSource::Folder(folder) => Checkpoint::open(folder),
            ModelSource::Synthetic(model) => Checkpoint::synthetic(model),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ModelSource::Embedded => f.write_str("(embedded)"),
            ModelSource::Folder(folder) => write!(f, "{}", folder.display()),
            ModelSource::Synthetic(model) => write!(f, "{model}"),
        }
    }
}
