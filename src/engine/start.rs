//! From flags to a runner that is ready: device, checkpoint, memory plan, weights, graphs.

use crate::device::{Context, DeviceChoice, DeviceKind, DriverError, LoadError, Stream, load_driver};
use crate::engine::runner::Runner;
use crate::images;
use crate::model::checkpoint::{Checkpoint, CheckpointError};
use crate::model::forward::Forward;
use crate::model::kernels::{KernelError, KernelImage, Kernels};
use crate::model::plan::{MemoryPlan, PlanError, PlanOptions};
use crate::model::weights::Weights;

/// Why the server refuses to start. `Display` names the knob, file or tensor.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Device(#[from] LoadError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Kernels(#[from] KernelError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Loads the driver the flag asks for.
pub fn load_device(choice: DeviceChoice) -> Result<DeviceKind, StartError> {
    Ok(load_driver(choice, !images::FATBINS.is_empty())?)
}

/// Opens the device on the calling thread, resolves the memory plan against what is free, loads kernels and weights and
/// allocates everything a step needs. `progress` hears bytes of weights uploaded and in total.
pub fn build_runner(
    checkpoint: &Checkpoint,
    device: DeviceKind,
    image: KernelImage,
    options: &PlanOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Runner, MemoryPlan), StartError> {
    let context = Context::open(device.ordinal())?;
    let stream = Stream::new(&context)?;
    let kernels = Kernels::load(&context, image)?;
    let (free_bytes, _) = context.memory()?;
    let plan = MemoryPlan::resolve(&checkpoint.config, options, checkpoint.head().is_some(), free_bytes as u64)?;
    let geometry = plan.geometry.clone();
    let total = checkpoint.weight_bytes();
    let mut report = |done: usize| progress(done as u64, total);
    let weights = Weights::load(&context, &stream, &kernels, checkpoint, geometry.max_context, &mut report)?;
    let forward = Forward::new(&context, &stream, checkpoint.config.clone(), geometry, kernels, weights)?;
    Ok((Runner::new(context, stream, forward)?, plan))
}
