//! The software device: loading the embedded shared objects, and the controls beside the driver API
//! (`csrc/soft/control.h`).

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

static DRIVER: OnceLock<Library> = OnceLock::new();

/// Loads the embedded `libcuda.so` so that cudarc's own `dlopen("libcuda.so")` finds it by its SONAME.
pub(super) fn load_driver() -> Result<(), String> {
    if DRIVER.get().is_none() {
        let library = load_object("libcuda.so", crate::images::SOFT_DRIVER, RTLD_NOW | RTLD_GLOBAL)?;
        let _ = DRIVER.set(library);
    }
    Ok(())
}

/// Loads a shared object from bytes through a memory file.
fn load_object(name: &str, bytes: &[u8], flags: c_int) -> Result<Library, String> {
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).map_err(|e| e.to_string())?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: the object is ours, compiled by build.rs; its initialisers only fill static tables.
    let library = unsafe { Library::open(Some(path), flags) }.map_err(|e| e.to_string())?;
    // The loader knows libraries by path: a descriptor number used again would name the first object for ever.
    std::mem::forget(file);
    Ok(library)
}

/// A kernel image for the software device, loaded for good: modules point into it.
#[derive(Clone, Copy, Debug)]
pub struct SoftImage(*const c_void);

impl SoftImage {
    /// Loads the shared object that holds `g4_kernel_image`.
    pub fn load(bytes: &[u8]) -> Result<Self, String> {
        let library = load_object("kernels.so", bytes, RTLD_NOW | RTLD_LOCAL)?;
        // SAFETY: the symbol is a G4SoftImage object (csrc/soft/abi.h).
        let symbol = unsafe { library.get::<*const c_void>(b"g4_kernel_image\0") }.map_err(|e| e.to_string())?;
        let address = symbol.as_raw_ptr();
        std::mem::forget(library);
        Ok(SoftImage(address.cast_const()))
    }

    /// What `cuModuleLoadData` wants.
    pub fn as_ptr(&self) -> *const c_void {
        self.0
    }
}

/// Calls a control by name when the software device is loaded.
fn control<F: Copy, R>(name: &str, call: impl FnOnce(F) -> R) -> Option<R> {
    let library = DRIVER.get()?;
    let name = CString::new(name).ok()?;
    // SAFETY: callers pass the signature control.h declares for the name.
    let function = unsafe { library.get::<F>(name.as_bytes_with_nul()) }.ok()?;
    Some(call(*function))
}

/// A counter of the device by name; `None` on a GPU or for an unknown name.
pub fn counter(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    control("g4soft_counter", |f: unsafe extern "C" fn(*const c_char) -> i64| {
        // SAFETY: NUL-terminated name, as the control's declaration asks.
        unsafe { f(name.as_ptr()) }
    })
    .and_then(|value| u64::try_from(value).ok())
}

/// All counters by name; empty on a GPU. The functions are looked up once, not once a counter.
pub fn counters() -> Vec<(&'static str, u64)> {
    type Name = unsafe extern "C" fn(c_int) -> *const c_char;
    type Value = unsafe extern "C" fn(c_int) -> u64;
    let (Some(name_at), Some(value_at)) =
        (control("g4soft_counter_name", |f: Name| f), control("g4soft_counter_at", |f: Value| f))
    else {
        return Vec::new();
    };
    let mut all = Vec::new();
    loop {
        let id = all.len() as c_int;
        // SAFETY: any id is allowed; past the last the name is null.
        let (name, value) = unsafe { (name_at(id), value_at(id)) };
        if name.is_null() {
            return all;
        }
        // SAFETY: a static NUL-terminated string of a library that is never unloaded.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        all.push((name.to_str().unwrap_or("?"), value));
    }
}

/// Sets an option of the device; false when it is not loaded, the name is unknown or it is too late.
pub fn set(option: &str, value: u64) -> bool {
    let Ok(option) = CString::new(option) else { return false };
    control("g4soft_set", |f: unsafe extern "C" fn(*const c_char, u64) -> c_int| {
        // SAFETY: NUL-terminated name.
        unsafe { f(option.as_ptr(), value) }
    }) == Some(0)
}

/// End of start-up: from here allocations, loads and captures count as `armed_*`; with `refuse` they fail.
pub fn arm(refuse: bool) {
    control("g4soft_arm", |f: unsafe extern "C" fn(c_int)| {
        // SAFETY: no preconditions.
        unsafe { f(c_int::from(refuse)) }
    });
}

pub fn disarm() {
    control("g4soft_disarm", |f: unsafe extern "C" fn()| {
        // SAFETY: no preconditions.
        unsafe { f() }
    });
}

/// The n-th driver call from now fails with `code`; 0 cancels.
pub fn fail_call(n: u64, code: i32) {
    control("g4soft_fail_call", |f: unsafe extern "C" fn(u64, c_int)| {
        // SAFETY: no preconditions.
        unsafe { f(n, code) }
    });
}

/// The n-th kernel from now fails and the error sticks to the context; 0 cancels.
pub fn fail_launch(n: u64, code: i32) {
    control("g4soft_fail_launch", |f: unsafe extern "C" fn(u64, c_int)| {
        // SAFETY: no preconditions.
        unsafe { f(n, code) }
    });
}

/// Every stream finishes what it executes and starts nothing more until [`release`].
pub fn stall() {
    control("g4soft_stall", |f: unsafe extern "C" fn(*mut c_void)| {
        // SAFETY: null means every stream.
        unsafe { f(std::ptr::null_mut()) }
    });
}

pub fn release() {
    control("g4soft_release", |f: unsafe extern "C" fn()| {
        // SAFETY: no preconditions.
        unsafe { f() }
    });
}

/// The device's last error report (kernel failure, guard zone, refused capture call).
pub fn last_report() -> String {
    let mut text = vec![0u8; 4096];
    let length = control("g4soft_last_report", |f: unsafe extern "C" fn(*mut c_char, usize) -> usize| {
        // SAFETY: the buffer's length is passed.
        unsafe { f(text.as_mut_ptr().cast(), text.len()) }
    });
    text.truncate(length.unwrap_or(0).min(4096));
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
}
