//! From flags to a runner that is ready: device, checkpoint, sizes, weights, graphs.

use crate::device::{Context, DeviceChoice, DeviceKind, DriverError, LoadError, Stream, load_driver};
use crate::engine::runner::Runner;
use crate::images;
use crate::model::checkpoint::{Checkpoint, CheckpointError};
use crate::model::config::ModelConfig;
use crate::model::forward::Forward;
use crate::model::geometry::{FamilyGeometry, Geometry};
use crate::model::kernels::{KernelError, KernelImage, Kernels};
use crate::model::weights::Weights;

/// Why the server refuses to start. `Display` names the knob, file or tensor.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Device(#[from] LoadError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Kernels(#[from] KernelError),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Sizes asked for by flags.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub max_running: usize,
    pub max_context: Option<usize>,
    /// Global pages; none: what `max_running` contexts need.
    pub kv_pages: Option<usize>,
    pub prefill_chunk: usize,
    /// Rows of the largest decode step.
    pub bucket_max: usize,
    /// Keys of an attention segment for both families; none: 128 sliding, 256 global.
    pub segment: Option<usize>,
}

const PAGE_TOKENS: usize = 16;
const SEGMENT_SLIDING: usize = 128;
const SEGMENT_GLOBAL: usize = 256;

/// Loads the driver the flag asks for.
pub fn load_device(choice: DeviceChoice) -> Result<DeviceKind, StartError> {
    Ok(load_driver(choice, !images::FATBINS.is_empty())?)
}

/// Opens the device on the calling thread, loads kernels and weights, allocates everything a step needs. `progress`
/// hears bytes of weights uploaded and in total.
pub fn build_runner(
    checkpoint: &Checkpoint,
    device: DeviceKind,
    image: KernelImage,
    sizes: &Sizes,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Runner, StartError> {
    let context = Context::open(device.ordinal())?;
    let stream = Stream::new(&context)?;
    let kernels = Kernels::load(&context, image)?;
    let geometry = geometry(&checkpoint.config, sizes);
    let positions = geometry.context_max;
    let weights = Weights::load(&context, &stream, &kernels, checkpoint, positions, &mut |done| progress(done, 0))?;
    let forward = Forward::new(&context, &stream, checkpoint.config.clone(), geometry, kernels, weights)?;
    Ok(Runner::new(context, stream, forward)?)
}

/// Cuts everything to size.
fn geometry(config: &ModelConfig, sizes: &Sizes) -> Geometry {
    let context_max = sizes.max_context.unwrap_or(config.max_position);
    let (segment_s, segment_g) = sizes.segment.map_or((SEGMENT_SLIDING, SEGMENT_GLOBAL), |segment| (segment, segment));
    let ring_pages = (config.window - 1 + 2).div_ceil(PAGE_TOKENS);
    let table_pages = context_max.div_ceil(PAGE_TOKENS);
    let global_pages = sizes.kv_pages.unwrap_or(table_pages * sizes.max_running);
    Geometry {
        slots: sizes.max_running,
        context_max,
        prefill_chunk: sizes.prefill_chunk,
        bucket_max: sizes.bucket_max,
        sliding: FamilyGeometry {
            page_tokens: PAGE_TOKENS,
            pages: ring_pages * sizes.max_running,
            table_pages: ring_pages,
            segment: segment_s,
            segments_max: sizes.bucket_max * ((config.window + segment_s - 2) / segment_s + 1),
        },
        global: FamilyGeometry {
            page_tokens: PAGE_TOKENS,
            pages: global_pages,
            table_pages,
            segment: segment_g,
            segments_max: global_pages * PAGE_TOKENS / segment_g + sizes.bucket_max,
        },
        window: config.window,
    }
}
