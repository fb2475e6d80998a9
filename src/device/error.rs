//! Driver errors: which call, which code.

use cudarc::driver::sys;

/// A driver call that did not return `CUDA_SUCCESS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed with {} ({})", self.name(), self.code as u32)]
pub struct DriverError {
    pub call: &'static str,
    pub code: sys::CUresult,
}

impl DriverError {
    /// The driver's own name of the code, without asking the driver (it may be what is broken).
    pub fn name(&self) -> String {
        format!("{:?}", self.code)
    }

    pub fn is_not_found(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_NOT_FOUND
    }

    pub fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }
}

/// Turns a driver result into ours.
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), DriverError> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(DriverError { call, code }) }
}

/// Calls one function of `cudarc::driver::sys` by name and checks it. The caller's `unsafe` block vouches for the
/// arguments.
macro_rules! cu {
    ($name:ident ( $($arg:expr),* $(,)? )) => {
        $crate::device::error::check(stringify!($name), cudarc::driver::sys::$name($($arg),*))
    };
}
pub(super) use cu;
