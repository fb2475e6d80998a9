//! The end of a process that does not wait for the driver.

use std::ffi::c_int;

// SAFETY: the C library's, as POSIX has it; it takes any code.
unsafe extern "C" {
    safe fn _exit(code: c_int) -> !;
}

/// Ends the process at once with `code`. No exit handler runs and no library is torn down: the driver's own would wait
/// for a kernel that never ends, and a thread may be inside one of its calls.
pub fn leave(code: u8) -> ! {
    // What this process has not written by now is lost; its memory, sockets and device are the kernel's to take back.
    _exit(code.into())
}
