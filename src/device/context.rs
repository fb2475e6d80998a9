//! The primary context of one device, bound to the thread that opened it.

use std::cell::Cell;
use std::marker::PhantomData;
use std::rc::Rc;

use cudarc::driver::sys;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::error::{DriverError, cu};

/// What the runtime reads of a device once, at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    /// Compute capability, e.g. (9, 0).
    pub compute: (i32, i32),
    pub multiprocessors: u32,
    /// Dynamic shared memory a block may ask for after opting in, in bytes.
    pub shared_bytes_max: u32,
    pub memory_bytes: usize,
    pub driver_version: i32,
}

/// What was enqueued since the context was opened, outside of captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub h2d_copies: u64,
    pub h2d_bytes: u64,
    pub d2h_copies: u64,
    pub kernel_launches: u64,
    pub graph_launches: u64,
}

/// Shared by everything allocated in the context; errors met in `Drop` wait here for the next fallible call.
pub(super) struct ContextInner {
    device: sys::CUdevice,
    dropped: Cell<Option<DriverError>>,
    traffic: Cell<Traffic>,
}

impl ContextInner {
    pub(super) fn traffic(&self) -> Traffic {
        self.traffic.get()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Traffic)) {
        let mut traffic = self.traffic.get();
        change(&mut traffic);
        self.traffic.set(traffic);
    }

    /// Records an error of a destructor; the first one stays.
    pub(super) fn record(&self, result: Result<(), DriverError>) {
        if let Err(error) = result
            && self.dropped.get().is_none()
        {
            self.dropped.set(Some(error));
        }
    }

    pub(super) fn take_dropped(&self) -> Result<(), DriverError> {
        self.dropped.take().map_or(Ok(()), Err)
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: the context was retained once by `Context::open` and nothing made in it is left.
        let _ = unsafe { cu!(cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// A device opened by the calling thread. Not `Send`: the context is bound once, and every call relies on it.
#[derive(Clone)]
pub struct Context {
    pub(super) inner: Rc<ContextInner>,
    info: Rc<DeviceInfo>,
    _bound_to_thread: PhantomData<*const ()>,
}

impl Context {
    /// Opens device `ordinal` and binds its primary context to the calling thread. [`super::load_driver`] comes first.
    pub fn open(ordinal: i32) -> Result<Self, DriverError> {
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        // SAFETY: plain out-pointers to locals; the driver is loaded (cudarc binds it on the first call).
        unsafe {
            cu!(cuInit(0))?;
            cu!(cuDeviceGet(&mut device, ordinal))?;
            cu!(cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        let inner = Rc::new(ContextInner { device, dropped: Cell::new(None), traffic: Cell::new(Traffic::default()) });
        // SAFETY: `context` was just retained.
        unsafe { cu!(cuCtxSetCurrent(context))? };
        let info = Rc::new(read_info(device)?);
        Ok(Context { inner, info, _bound_to_thread: PhantomData })
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Copies and launches enqueued so far.
    pub fn traffic(&self) -> Traffic {
        self.inner.traffic.get()
    }

    /// Free and total device memory in bytes.
    pub fn memory(&self) -> Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-pointers to locals; a context is current on this thread.
        unsafe { cu!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free, total))
    }

    /// An error met by a destructor since the last call, if any.
    pub fn take_dropped(&self) -> Result<(), DriverError> {
        self.inner.take_dropped()
    }
}

fn read_info(device: sys::CUdevice) -> Result<DeviceInfo, DriverError> {
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: out-pointer to a local, a valid device.
        unsafe { cu!(cuDeviceGetAttribute(&mut value, attribute, device))? };
        Ok::<i32, DriverError>(value)
    };
    let mut name = [0u8; 128];
    let (mut memory_bytes, mut driver_version) = (0, 0);
    // SAFETY: the name buffer's length is passed; the others are out-pointers to locals.
    unsafe {
        cu!(cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
        cu!(cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
        cu!(cuDriverGetVersion(&mut driver_version))?;
    }
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    Ok(DeviceInfo {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        compute: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        memory_bytes,
        driver_version,
    })
}
