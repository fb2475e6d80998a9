//! Device memory and pinned host memory, typed by element. Allocated at start only.

use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use bytemuck::Pod;
use cudarc::driver::sys;

use super::context::{Context, ContextInner};
use super::error::{DriverError, cu};

/// `len` elements of device memory, 256-byte aligned, uninitialised until written.
pub struct DeviceBuffer<T> {
    address: sys::CUdeviceptr,
    len: usize,
    context: Rc<ContextInner>,
    _element: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates; a length of zero gets one element, so that every buffer has an address.
    pub fn new(context: &Context, len: usize) -> Result<Self, DriverError> {
        let mut address = 0;
        // SAFETY: out-pointer to a local; the context is current on this thread.
        unsafe { cu!(cuMemAlloc_v2(&mut address, len.max(1) * size_of::<T>()))? };
        Ok(DeviceBuffer { address, len, context: context.inner.clone(), _element: PhantomData })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The whole buffer.
    pub fn all(&self) -> DeviceSlice<T> {
        DeviceSlice { address: self.address, len: self.len, _element: PhantomData }
    }

    /// Part of the buffer, in elements. Panics outside of it.
    pub fn slice(&self, range: Range<usize>) -> DeviceSlice<T> {
        self.all().slice(range)
    }

    /// The address as kernels' parameter structs want it.
    pub fn ptr(&self) -> *mut T {
        self.address as *mut T
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by us, freed once; the driver waits for work in flight.
        let result = unsafe { cu!(cuMemFree_v2(self.address)) };
        self.context.record(result);
    }
}

/// A range of device memory. Plain data: whoever keeps it keeps its buffer alive.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<T> {
    address: sys::CUdeviceptr,
    len: usize,
    _element: PhantomData<*const T>,
}

impl<T> DeviceSlice<T> {
    /// No memory at all.
    pub const EMPTY: Self = DeviceSlice { address: 0, len: 0, _element: PhantomData };
}

impl<T: Pod> DeviceSlice<T> {
    /// The same bytes as elements of another type. Panics when they are no whole number of those.
    pub fn cast<U: Pod>(&self) -> DeviceSlice<U> {
        let (bytes, size) = (self.bytes(), size_of::<U>());
        assert!(bytes.is_multiple_of(size) && self.address.is_multiple_of(align_of::<U>() as u64));
        DeviceSlice { address: self.address, len: bytes / size, _element: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub fn slice(&self, range: Range<usize>) -> DeviceSlice<T> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        DeviceSlice {
            address: self.address + (range.start * size_of::<T>()) as u64,
            len: range.len(),
            _element: PhantomData,
        }
    }

    pub fn ptr(&self) -> *mut T {
        self.address as *mut T
    }

    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }
}

/// Page-locked host memory that copies run on without staging. Cached, not write-combined: the host reads it.
///
/// The device reads or writes it while copies are in flight; the host touches an element only before the copy is
/// enqueued or after an event behind it. Accesses to single elements are volatile, so that the compiler keeps them
/// where they stand.
pub struct PinnedBuffer<T> {
    address: *mut T,
    len: usize,
    context: Rc<ContextInner>,
}

impl<T: Pod> PinnedBuffer<T> {
    pub fn new(context: &Context, len: usize) -> Result<Self, DriverError> {
        let mut address = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current on this thread.
        unsafe { cu!(cuMemHostAlloc(&mut address, len.max(1) * size_of::<T>(), sys::CU_MEMHOSTALLOC_DEVICEMAP))? };
        // SAFETY: just allocated with this size; zero is a value of every Pod type.
        unsafe { address.cast::<u8>().write_bytes(0, len.max(1) * size_of::<T>()) };
        Ok(PinnedBuffer { address: address.cast(), len, context: context.inner.clone() })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole buffer at the address by which kernels read it, across the bus. The host must not write to it while
    /// they do.
    pub fn on_device(&self) -> Result<DeviceSlice<T>, DriverError> {
        let mut address = 0;
        // SAFETY: out-pointer to a local; the address is that of a live allocation of cuMemHostAlloc.
        unsafe { cu!(cuMemHostGetDevicePointer_v2(&mut address, self.address.cast(), 0))? };
        Ok(DeviceSlice { address, len: self.len, _element: PhantomData })
    }

    /// Copies the first `count` elements into `out`, in place of what it holds. The driver's calls before and after are
    /// opaque to the compiler, so the copy stays where it stands, as a volatile one would.
    pub fn copy_to(&self, count: usize, out: &mut Vec<T>) {
        assert!(count <= self.len, "{count} of {}", self.len);
        // SAFETY: in bounds; Pod values have no invalid bit patterns; the slice does not outlive this call, and no copy
        // of the device is under way, as for every access.
        let elements = unsafe { std::slice::from_raw_parts(self.address, count) };
        out.clear();
        out.extend_from_slice(elements);
    }

    /// One element.
    pub fn read(&self, index: usize) -> T {
        assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: in bounds; Pod values have no invalid bit patterns.
        unsafe { self.address.add(index).read_volatile() }
    }

    pub fn write(&mut self, index: usize, value: T) {
        assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: in bounds, and `&mut self` excludes other host accesses.
        unsafe { self.address.add(index).write_volatile(value) };
    }

    /// Copies raw little-endian bytes to the buffer, from element `first` on. Panics when they do not fit.
    pub fn fill_le(&mut self, first: usize, bytes: &[u8]) {
        let (at, size) = (first * size_of::<T>(), self.len * size_of::<T>());
        assert!(at <= size && bytes.len() <= size - at, "{} bytes at {at} of {size}", bytes.len());
        // SAFETY: in bounds; every byte pattern is a T (Pod); `&mut self` excludes other host accesses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.cast::<u8>().add(at), bytes.len()) };
    }

    pub(super) fn address_of(&self, first: usize, count: usize) -> *const T {
        assert!(first + count <= self.len, "{first}+{count} of {}", self.len);
        // SAFETY: in bounds.
        unsafe { self.address.add(first) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated by cuMemHostAlloc, freed once.
        let result = unsafe { cu!(cuMemFreeHost(self.address.cast())) };
        self.context.record(result);
    }
}
