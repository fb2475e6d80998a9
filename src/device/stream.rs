//! Streams and events. A stream is the order of work; an event is a point in it that the host can ask for.

use std::rc::Rc;

use bytemuck::Pod;
use cudarc::driver::sys;

use super::buffer::{DeviceSlice, PinnedBuffer};
use super::context::{Context, ContextInner};
use super::error::{DriverError, cu};

/// A non-blocking stream: the null stream does not order it.
pub struct Stream {
    pub(super) raw: sys::CUstream,
    pub(super) context: Rc<ContextInner>,
}

impl Stream {
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current on this thread.
        unsafe { cu!(cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))? };
        Ok(Stream { raw, context: context.inner.clone() })
    }

    /// Waits until all work enqueued so far has run.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.context.take_dropped()?;
        // SAFETY: the stream is alive.
        unsafe { cu!(cuStreamSynchronize(self.raw)) }
    }

    /// Enqueues a copy of pageable host memory; the driver stages it at the call, so `src` is free afterwards.
    pub fn upload<T: Pod>(&self, dst: DeviceSlice<T>, src: &[T]) -> Result<(), DriverError> {
        assert_eq!(dst.len(), src.len(), "copy of {} elements into a slice of {}", src.len(), dst.len());
        if src.is_empty() {
            return Ok(());
        }
        self.context.count(|t| {
            t.h2d_copies += 1;
            t.h2d_bytes += size_of_val(src) as u64;
        });
        // SAFETY: both ranges hold src.len() elements; pageable sources are staged before the call returns.
        unsafe { cu!(cuMemcpyHtoDAsync_v2(dst.address(), src.as_ptr().cast(), size_of_val(src), self.raw)) }
    }

    /// Enqueues a copy from pinned memory. `src[range]` must stay untouched until work enqueued later has been waited
    /// for.
    pub fn upload_pinned<T: Pod>(
        &self,
        dst: DeviceSlice<T>,
        src: &PinnedBuffer<T>,
        first: usize,
    ) -> Result<(), DriverError> {
        let source = src.address_of(first, dst.len());
        self.context.count(|t| {
            t.h2d_copies += 1;
            t.h2d_bytes += dst.bytes() as u64;
        });
        // SAFETY: both ranges hold dst.len() elements (checked by address_of); pinned memory outlives the stream's work
        // because buffers are dropped after the stream is synchronised.
        unsafe { cu!(cuMemcpyHtoDAsync_v2(dst.address(), source.cast(), dst.bytes(), self.raw)) }
    }

    /// Enqueues a copy into pinned memory; read it only after an event recorded behind the copy.
    pub fn download_pinned<T: Pod>(
        &self,
        dst: &PinnedBuffer<T>,
        first: usize,
        src: DeviceSlice<T>,
    ) -> Result<(), DriverError> {
        let target = dst.address_of(first, src.len());
        self.context.count(|t| t.d2h_copies += 1);
        // SAFETY: as in upload_pinned, with the roles exchanged.
        unsafe { cu!(cuMemcpyDtoHAsync_v2(target.cast_mut().cast(), src.address(), src.bytes(), self.raw)) }
    }

    /// Copies device memory to the host and waits for it.
    pub fn download<T: Pod>(&self, src: DeviceSlice<T>) -> Result<Vec<T>, DriverError> {
        let mut host = vec![T::zeroed(); src.len()];
        if !src.is_empty() {
            self.context.count(|t| t.d2h_copies += 1);
            // SAFETY: `host` holds src.len() elements and is not touched before the synchronisation below.
            unsafe { cu!(cuMemcpyDtoHAsync_v2(host.as_mut_ptr().cast(), src.address(), src.bytes(), self.raw))? };
        }
        self.synchronize()?;
        Ok(host)
    }

    /// Enqueues a copy inside device memory.
    pub fn copy<T: Pod>(&self, dst: DeviceSlice<T>, src: DeviceSlice<T>) -> Result<(), DriverError> {
        assert_eq!(dst.len(), src.len());
        // SAFETY: both slices lie inside live allocations of this length.
        unsafe { cu!(cuMemcpyDtoDAsync_v2(dst.address(), src.address(), src.bytes(), self.raw)) }
    }

    /// Enqueues a fill with one byte value.
    pub fn fill<T: Pod>(&self, dst: DeviceSlice<T>, byte: u8) -> Result<(), DriverError> {
        if dst.is_empty() {
            return Ok(());
        }
        // SAFETY: the slice lies inside a live allocation.
        unsafe { cu!(cuMemsetD8Async(dst.address(), byte, dst.bytes(), self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; outstanding work is finished by the driver.
        let result = unsafe { cu!(cuStreamDestroy_v2(self.raw)) };
        self.context.record(result);
    }
}

/// A point in a stream's work.
pub struct Event {
    raw: sys::CUevent,
    context: Rc<ContextInner>,
}

impl Event {
    /// Without timing: cheaper, and nothing reads it. Who waits for it sleeps; by default a driver would spin.
    pub fn new(context: &Context) -> Result<Self, DriverError> {
        use sys::CUevent_flags::{CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING};
        Self::with(context, CU_EVENT_DISABLE_TIMING as u32 | CU_EVENT_BLOCKING_SYNC as u32)
    }

    /// With a time stamp, for [`Event::milliseconds_since`].
    pub fn timed(context: &Context) -> Result<Self, DriverError> {
        Self::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT as u32)
    }

    fn with(context: &Context, flags: u32) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current on this thread.
        unsafe { cu!(cuEventCreate(&mut raw, flags))? };
        Ok(Event { raw, context: context.inner.clone() })
    }

    /// Device time from one timed event to this one; both have been recorded and waited for.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f64, DriverError> {
        let mut milliseconds = 0.0;
        // SAFETY: out-pointer to a local; both events are alive.
        unsafe { cu!(cuEventElapsedTime_v2(&mut milliseconds, earlier.raw, self.raw))? };
        Ok(f64::from(milliseconds))
    }

    /// Moves the event to the stream's present end.
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both handles are alive and of one context.
        unsafe { cu!(cuEventRecord(self.raw, stream.raw)) }
    }

    /// Whether everything before the event has run.
    pub fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is alive.
        match unsafe { cu!(cuEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until everything before the event has run.
    pub fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { cu!(cuEventSynchronize(self.raw)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        let result = unsafe { cu!(cuEventDestroy_v2(self.raw)) };
        self.context.record(result);
    }
}
