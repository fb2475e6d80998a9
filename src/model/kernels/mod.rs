//! The kernel library as the runtime calls it: bindings of `csrc/gemma4_kernels.h`, the loaded functions, and one
//! launcher per kernel that computes its geometry ([`launch`], [`launch_rows`], [`launch_experts`]).
//!
//! Fenced unsafe: parameter structs hold raw device addresses. Launchers take [`DeviceSlice`]s, assert the lengths the
//! kernel's file states, and stand for the pointers.
#![allow(unsafe_code)]

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, missing_docs, clippy::all)]
#[rustfmt::skip]
pub mod bindings;
mod geometry;
mod launch;
mod launch_experts;
mod launch_rows;

use std::ffi::c_void;
use std::rc::Rc;

use crate::device::soft::SoftImage;
use crate::device::{Context, DeviceKind, DriverError, Function, Launch, Module, Stream};
use crate::images;
use crate::limits::STOP_TOKEN_IDS_MAX;

pub use bindings::{G4Bias, G4ExpertTile, G4KvView, G4Logprobs, G4Record, G4SampleParams, G4Sampling, G4Slot, G4Words};
pub use geometry::{gemm_instance_tokens, slab_count};
pub use launch::{AttnDecode, AttnPrompt, Gemm, QkvPrep, ScatterRun, StepBegin};
pub use launch_experts::{
    ExpertCombine, ExpertGemm, ExpertInput, ExpertRoute, Routed, expert_rows_many, expert_tile_tokens,
};
pub use launch_rows::{PerLayerInput, Strided};

impl G4Slot {
    /// A live slot that nothing stops before `position_limit`, about to feed `token` at `position`: for `score` and
    /// `bench`, which drive slots by hand.
    pub fn unstoppable(position: usize, token: u32, position_limit: usize, generation: u32) -> Self {
        G4Slot {
            live: 1,
            position: position as i32,
            last_token: token as i32,
            output_index: 0,
            output_limit: i32::MAX,
            position_limit: position_limit as i32,
            generation,
            ignore_eos: 1,
            stop_count: 0,
            stop_ids: [-1; STOP_TOKEN_IDS_MAX],
            sampling: bytemuck::Zeroable::zeroed(),
        }
    }
}

const _: () = assert!(STOP_TOKEN_IDS_MAX == bindings::G4_SLOT_STOP_IDS as usize);

// SAFETY: integers and floats without padding (bindgen asserts the size: 9 words, 16 stop ids, 18 words of sampling),
// any bits valid.
unsafe impl bytemuck::Zeroable for G4Slot {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Slot {}
// SAFETY: four words without padding, any bits valid.
unsafe impl bytemuck::Zeroable for G4Record {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Record {}
// SAFETY: pointers, which may be null, and integers.
unsafe impl bytemuck::Zeroable for G4SampleParams {}
// SAFETY: 18 words without padding (bindgen asserts the size), any bits valid.
unsafe impl bytemuck::Zeroable for G4Sampling {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Sampling {}
// SAFETY: two words without padding, any bits valid.
unsafe impl bytemuck::Zeroable for G4Bias {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Bias {}
// SAFETY: 32-bit integers without padding, any bits valid.
unsafe impl bytemuck::Zeroable for G4ExpertTile {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4ExpertTile {}
// SAFETY: 32-bit integers without padding, any bits valid.
unsafe impl bytemuck::Zeroable for G4Words {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Words {}
// SAFETY: 32-bit integers and floats without padding, any bits valid.
unsafe impl bytemuck::Zeroable for G4Logprobs {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for G4Logprobs {}

/// Names in the order of `G4_KERNEL_TABLE`, so that a `G4_ID_*` is an index (a test reads the bindings to check it).
const NAMES: [&str; bindings::G4_KERNEL_COUNT as usize] = [
    "g4_pack",
    "g4_rope_table",
    "g4_embed",
    "g4_rmsnorm",
    "g4_add_norm",
    "g4_gelu_gate",
    "g4_per_layer_input",
    "g4_expert_input",
    "g4_expert_route",
    "g4_expert_group",
    "g4_expert_gemm_t1",
    "g4_expert_gemm_t8",
    "g4_expert_combine",
    "g4_gemm_t1",
    "g4_gemm_t2",
    "g4_gemm_t4",
    "g4_gemm_t8",
    "g4_gemm_t16",
    "g4_logits_t1",
    "g4_logits_t2",
    "g4_logits_t4",
    "g4_logits_t8",
    "g4_logits_t16",
    "g4_logits_tiled",
    "g4_gemm_tiled",
    "g4_qkv_prep",
    "g4_kv_copy",
    "g4_attn_decode_h256_s128",
    "g4_attn_decode_h256_s32",
    "g4_attn_decode_h512_s256",
    "g4_attn_decode_h512_s32",
    "g4_attn_decode_fold",
    "g4_attn_prompt_h256_s128",
    "g4_attn_prompt_h256_s32",
    "g4_attn_prompt_h512_s256",
    "g4_attn_prompt_h512_s32",
    "g4_step_begin",
    "g4_tail",
    "g4_scatter",
    "g4_synthetic",
    "g4_sample_groups",
    "g4_sample_rows",
];

/// Which compiled kernels to load.
#[derive(Clone, Copy, Debug)]
pub enum KernelImage {
    /// What ships, for the driver that was loaded.
    Shipped(DeviceKind),
    /// Another image for the software device (tests: planted mistakes).
    Soft(SoftImage),
}

/// Why the kernels could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("no kernel file has a name that begins {name}")]
    NoFile { name: &'static str },
    #[error("kernel {name} is not in the image {file}: {source}")]
    Missing { name: &'static str, file: &'static str, source: DriverError },
    #[error("the kernel image could not be loaded: {0}")]
    Image(String),
}

/// The loaded kernels, indexed by `G4_ID_*`.
pub struct Kernels {
    functions: Vec<Function>,
    /// Blocks of an attention grid: multiprocessors times occupancy, read once, so that no graph depends on context.
    attention_blocks: u32,
    /// Dynamic shared memory a block may have.
    shared_bytes_max: usize,
}

impl Kernels {
    /// Loads every kernel of the image now (nothing is loaded while serving) and opts into large shared memory.
    pub fn load(context: &Context, image: KernelImage) -> Result<Self, KernelError> {
        let modules = load_modules(context, image)?;
        let mut functions = Vec::with_capacity(NAMES.len());
        for name in NAMES {
            let (file, module) = module_of(name, &modules).ok_or(KernelError::NoFile { name })?;
            let function = module.function(name).map_err(|source| match source.is_not_found() {
                true => {
                    let file = if file.is_empty() { "of the software device" } else { file };
                    KernelError::Missing { name, file, source }
                }
                false => KernelError::Driver(source),
            })?;
            function.allow_shared(geometry::shared_bytes_max(name, context.info().shared_bytes_max))?;
            functions.push(function);
        }
        let shared_bytes_max = context.info().shared_bytes_max as usize;
        let mut kernels = Kernels { functions, attention_blocks: 1, shared_bytes_max };
        kernels.attention_blocks = context.info().multiprocessors * kernels.attention_occupancy()?;
        Ok(kernels)
    }

    /// The smallest occupancy of the attention instances.
    fn attention_occupancy(&self) -> Result<u32, DriverError> {
        let mut blocks = u32::MAX;
        for (name, function) in NAMES.iter().zip(&self.functions) {
            if name.starts_with("g4_attn_decode_h") {
                let shared = geometry::shared_bytes_max(name, self.shared_bytes_max as u32);
                blocks = blocks.min(function.blocks_per_multiprocessor(bindings::G4_ATTN_THREADS, shared)?);
            }
        }
        Ok(blocks)
    }

    /// Enqueues kernel `id` with its parameter struct.
    ///
    /// # Safety
    /// `P` is the struct of `id` in `G4_KERNEL_TABLE`, and its pointers cover what the kernel touches.
    unsafe fn launch<P>(
        &self,
        stream: &Stream,
        id: bindings::G4KernelId,
        launch: Launch,
        params: &P,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract.
        unsafe { self.functions[id as usize].launch(stream, launch, params) }
    }
}

/// The images by the name of their kernel file; the software device has one for all, whose name is empty.
fn load_modules(context: &Context, image: KernelImage) -> Result<Vec<(&'static str, Rc<Module>)>, KernelError> {
    let pointers: Vec<(&str, *const c_void)> = match image {
        KernelImage::Shipped(DeviceKind::Cuda(_)) => {
            images::FATBINS.iter().map(|(file, bytes)| (*file, bytes.as_ptr().cast())).collect()
        }
        KernelImage::Shipped(DeviceKind::Soft) => {
            vec![("", SoftImage::load(images::SOFT_KERNELS).map_err(KernelError::Image)?.as_ptr())]
        }
        KernelImage::Soft(soft) => vec![("", soft.as_ptr())],
    };
    let mut modules = Vec::with_capacity(pointers.len());
    for (file, pointer) in pointers {
        // SAFETY: whole images of the kind the loaded driver knows, static or loaded for good.
        modules.push((file, Rc::new(unsafe { Module::load(context, pointer)? })));
    }
    Ok(modules)
}

/// The file a kernel stands in: the one with the longest name that begins the kernel's own, behind `g4_`. Asking each
/// image in turn would be an error of the driver's for every one that does not have it.
fn module_of<'a, M>(name: &str, modules: &'a [(&'static str, M)]) -> Option<(&'static str, &'a M)> {
    let name = name.strip_prefix("g4_").unwrap_or(name);
    let found = modules.iter().filter(|(file, _)| name.starts_with(file)).max_by_key(|(file, _)| file.len());
    found.map(|(file, module)| (*file, module))
}

#[cfg(test)]
mod tests {
    use super::{NAMES, module_of};

    #[test]
    fn the_file_of_a_kernel_is_the_longest_name_that_begins_it() {
        let file = |name| module_of(name, &[("gemm", ()), ("gemm_tiled", ()), ("tail", ())]).map(|(file, ())| file);
        assert_eq!(file("g4_gemm_t16"), Some("gemm"));
        assert_eq!(file("g4_gemm_tiled"), Some("gemm_tiled"));
        assert_eq!(file("g4_embed"), None);
        assert_eq!(module_of("g4_embed", &[("", ())]), Some(("", &())));
    }

    #[test]
    fn a_kernel_id_is_the_index_of_its_name() {
        let text = include_str!("bindings.rs");
        for (index, name) in NAMES.iter().enumerate() {
            let line = format!("pub const G4_ID_{name}: G4KernelId = {index};");
            assert!(text.contains(&line), "{line} is not in the bindings");
        }
    }
}
