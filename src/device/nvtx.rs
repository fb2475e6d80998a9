//! Named ranges on the engine thread, for nsys. In a build without the NVTX header they are nothing at all.

use std::ffi::CStr;
use std::marker::PhantomData;

#[cfg(gemma4_nvtx)]
mod shim {
    use std::ffi::c_char;

    // SAFETY: declarations of csrc/nvtx/ranges.c as they stand there.
    unsafe extern "C" {
        pub fn g4_range_push(name: *const c_char);
        pub fn g4_range_pop();
    }
}

/// A range that ends when it is dropped. Ranges of a thread nest, so it stays on the thread that began it.
#[must_use = "a range ends when it is dropped"]
pub struct Range(PhantomData<*const ()>);

/// Begins a range.
#[inline]
pub fn range(name: &'static CStr) -> Range {
    #[cfg(gemma4_nvtx)]
    // SAFETY: a NUL-terminated string that lives for ever.
    unsafe {
        shim::g4_range_push(name.as_ptr())
    };
    let _ = name;
    Range(PhantomData)
}

impl Drop for Range {
    #[inline]
    fn drop(&mut self) {
        #[cfg(gemma4_nvtx)]
        // SAFETY: pops what `range` pushed, on the same thread: a Range is not Send.
        unsafe {
            shim::g4_range_pop()
        };
    }
}
