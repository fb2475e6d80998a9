//! Which driver this process uses: decided once, before cudarc's first call binds it.

use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use super::soft;

/// The `--device` flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU when there is one, else the software device.
    Auto,
    Cuda(u32),
    Soft,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "soft" => Ok(DeviceChoice::Soft),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(DeviceChoice::Cuda)
                .ok_or_else(|| format!("{text:?} is none of auto, cuda:N, soft")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cuda(n) => write!(f, "cuda:{n}"),
            DeviceChoice::Soft => f.write_str("soft"),
        }
    }
}

/// The driver that was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A CUDA GPU by its ordinal.
    Cuda(u32),
    /// The software device.
    Soft,
}

impl DeviceKind {
    /// Label of `gemma4_device_info`.
    pub fn label(&self) -> &'static str {
        match self {
            DeviceKind::Cuda(_) => "cuda",
            DeviceKind::Soft => "soft",
        }
    }

    pub fn ordinal(&self) -> i32 {
        match self {
            DeviceKind::Cuda(n) => *n as i32,
            DeviceKind::Soft => 0,
        }
    }
}

/// Why no driver could be loaded. `Display` names the flag.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("--device {choice}: no CUDA driver with a device was found ({why})")]
    NoDriver { choice: DeviceChoice, why: String },
    #[error("--device {choice}: a CUDA driver is here and does not work ({why}); --device soft serves without it")]
    Broken { choice: DeviceChoice, why: String },
    #[error(
        "--device {choice}: a CUDA GPU is here, but this build has no GPU kernels (nvcc was not found when it was \
             built); build with CUDA_HOME set, or use --device soft"
    )]
    NoGpuKernels { choice: DeviceChoice },
    #[error("--device {choice}: this process already uses the {loaded} driver")]
    AlreadyLoaded { choice: DeviceChoice, loaded: &'static str },
    #[error("the software device could not be loaded: {0}")]
    Soft(String),
}

/// Loads the driver the choice asks for; `has_gpu_kernels` says whether this build could use a GPU. A process has one
/// driver: a second call with a choice that fits returns the same kind.
pub fn load_driver(choice: DeviceChoice, has_gpu_kernels: bool) -> Result<DeviceKind, LoadError> {
    static LOADED: OnceLock<DeviceKind> = OnceLock::new();
    static LOADING: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    let _one_at_a_time = LOADING.lock();
    if let Some(&kind) = LOADED.get() {
        return match (choice, kind) {
            (DeviceChoice::Auto, kind) => Ok(kind),
            (DeviceChoice::Soft, DeviceKind::Soft) => Ok(kind),
            (DeviceChoice::Cuda(n), DeviceKind::Cuda(_)) => Ok(DeviceKind::Cuda(n)),
            _ => Err(LoadError::AlreadyLoaded { choice, loaded: kind.label() }),
        };
    }
    let kind = match (choice, probe_gpu()) {
        (DeviceChoice::Soft, _) => DeviceKind::Soft,
        (_, Err(NoGpu::Broken(why))) => return Err(LoadError::Broken { choice, why }),
        (DeviceChoice::Cuda(_), Err(NoGpu::Absent(why))) => return Err(LoadError::NoDriver { choice, why }),
        (DeviceChoice::Auto, Err(NoGpu::Absent(why))) => {
            tracing::warn!("no CUDA driver with a device ({why}); serving on the software device, which is slow");
            DeviceKind::Soft
        }
        (_, Ok(())) if !has_gpu_kernels => return Err(LoadError::NoGpuKernels { choice }),
        (DeviceChoice::Cuda(n), Ok(())) => DeviceKind::Cuda(n),
        (DeviceChoice::Auto, Ok(())) => DeviceKind::Cuda(0),
    };
    if kind == DeviceKind::Soft {
        soft::load_driver().map_err(LoadError::Soft)?;
    }
    Ok(*LOADED.get_or_init(|| kind))
}

/// Why there is no GPU to use.
enum NoGpu {
    /// No driver, or one without a device: this machine has none.
    Absent(String),
    /// A driver that fails. To serve from the CPU in its place, in silence, would be the wrong answer.
    Broken(String),
}

/// `CUDA_ERROR_STUB_LIBRARY` and `CUDA_ERROR_NO_DEVICE`: a toolkit's stand-in for a driver, and a driver without a GPU.
const NOTHING_THERE: [c_int; 2] = [34, 100];

/// Looks for a driver with at least one device, without touching cudarc.
fn probe_gpu() -> Result<(), NoGpu> {
    let absent = |e: libloading::Error| NoGpu::Absent(e.to_string());
    let failed = |call: &str, code: c_int| {
        let why = format!("{call} returned {code}");
        if NOTHING_THERE.contains(&code) { NoGpu::Absent(why) } else { NoGpu::Broken(why) }
    };
    // SAFETY: the CUDA driver library has no initialiser with preconditions.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(absent)?;
    // SAFETY: the symbols have these C signatures in every driver since CUDA 2; out-pointer to a local.
    unsafe {
        let init: libloading::Symbol<unsafe extern "C" fn(u32) -> c_int> = library.get(b"cuInit\0").map_err(absent)?;
        let count: libloading::Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> =
            library.get(b"cuDeviceGetCount\0").map_err(absent)?;
        let code = init(0);
        if code != 0 {
            return Err(failed("cuInit", code));
        }
        let mut devices = 0;
        let code = count(&mut devices);
        if code != 0 {
            return Err(failed("cuDeviceGetCount", code));
        }
        if devices < 1 {
            return Err(NoGpu::Absent("the driver has no device".into()));
        }
    }
    // The driver stays loaded: unloading it is not supported.
    std::mem::forget(library);
    Ok(())
}
