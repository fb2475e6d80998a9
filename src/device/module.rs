//! Kernel images and their functions.

use std::ffi::{CString, c_void};
use std::rc::Rc;

use cudarc::driver::sys;

use super::context::{Context, ContextInner};
use super::error::{DriverError, cu};
use super::stream::Stream;

/// A loaded kernel image.
pub struct Module {
    raw: sys::CUmodule,
    context: Rc<ContextInner>,
}

impl Module {
    /// Loads a fatbin or a software-device image.
    ///
    /// # Safety
    /// `image` points at a whole image of a kind the loaded driver knows, which outlives the module.
    pub unsafe fn load(context: &Context, image: *const c_void) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the caller's contract.
        unsafe { cu!(cuModuleLoadData(&mut raw, image))? };
        Ok(Module { raw, context: context.inner.clone() })
    }

    /// Looks a kernel up and loads it now: lazy loading inside a capture would fail or synchronise.
    pub fn function(self: &Rc<Self>, name: &str) -> Result<Function, DriverError> {
        let c_name = CString::new(name).expect("kernel names have no NUL");
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is alive, the name NUL-terminated.
        unsafe {
            cu!(cuModuleGetFunction(&mut raw, self.raw, c_name.as_ptr()))?;
            cu!(cuFuncLoad(raw))?;
        }
        Ok(Function { raw, _module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by us; functions hold an Rc of the module, so none is left.
        let result = unsafe { cu!(cuModuleUnload(self.raw)) };
        self.context.record(result);
    }
}

/// One kernel.
#[derive(Clone)]
pub struct Function {
    raw: sys::CUfunction,
    _module: Rc<Module>,
}

/// Geometry of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
}

impl Function {
    /// Lets launches ask for up to `bytes` of dynamic shared memory.
    pub fn allow_shared(&self, bytes: u32) -> Result<(), DriverError> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is alive.
        unsafe { cu!(cuFuncSetAttribute(self.raw, attribute, bytes as i32)) }
    }

    /// Blocks of this shape that fit on one multiprocessor at a time.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32, DriverError> {
        let mut blocks = 0;
        // SAFETY: out-pointer to a local, the function is alive.
        unsafe {
            cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.raw,
                threads as i32,
                shared_bytes as usize
            ))?
        };
        Ok(blocks.max(1) as u32)
    }

    /// Enqueues the kernel with one by-value parameter struct (copied at the call, also in a capture).
    ///
    /// # Safety
    /// `P` is the parameter struct the kernel was compiled with, and every pointer in it covers what the kernel's file
    /// says it reads and writes until the work has run (for a capture: until the graph is gone).
    pub unsafe fn launch<P>(&self, stream: &Stream, launch: Launch, params: &P) -> Result<(), DriverError> {
        stream.context.count(|t| t.kernel_launches += 1);
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        let [x, y, z] = launch.grid;
        // SAFETY: one argument, as every kernel here takes; the rest is the caller's contract.
        unsafe {
            cu!(cuLaunchKernel(
                self.raw,
                x,
                y,
                z,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                stream.raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }
    }
}
