//! Capture and replay.
//!
//! Life of a graph: (1) [`Graph::capture`] puts the stream into capture and runs a closure whose launches are recorded,
//! not executed; (2) [`Graph::instantiate`] makes it executable; (3) [`GraphExec::launch`] replays it any number of
//! times: arguments are those of the capture, memory is read at replay; (4) both are destroyed on drop.

use std::rc::Rc;

use cudarc::driver::sys;

use super::context::ContextInner;
use super::error::{DriverError, cu};
use super::stream::Stream;

/// A captured graph.
pub struct Graph {
    raw: sys::CUgraph,
    context: Rc<ContextInner>,
}

impl Graph {
    /// Captures what `body` enqueues on `stream`. The capture is ended also when `body` fails, so the stream stays
    /// usable; then the body's error is returned, which says more than the invalidated capture's.
    pub fn capture<E: From<DriverError>>(
        stream: &Stream,
        body: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not capturing.
        unsafe { cu!(cuStreamBeginCapture_v2(stream.raw, mode))? };
        let before = stream.context.traffic();
        let recorded = body(stream);
        // What a capture records is not enqueued.
        stream.context.count(|t| *t = before);
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; this thread began the capture.
        let ended = unsafe { cu!(cuStreamEndCapture(stream.raw, &mut raw)) };
        let graph = (!raw.is_null()).then(|| Graph { raw, context: stream.context.clone() });
        recorded?;
        ended?;
        Ok(graph.expect("a capture that ended well has a graph"))
    }

    /// Number of nodes.
    pub fn node_count(&self) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: a null node array asks for the count alone.
        unsafe { cu!(cuGraphGetNodes(self.raw, std::ptr::null_mut(), &mut count))? };
        Ok(count)
    }

    /// Makes it executable and moves it to the device.
    pub fn instantiate(&self, stream: &Stream) -> Result<GraphExec, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the graph is alive.
        unsafe { cu!(cuGraphInstantiateWithFlags(&mut raw, self.raw, 0))? };
        let exec = GraphExec { raw, context: self.context.clone() };
        // SAFETY: both handles are alive.
        unsafe { cu!(cuGraphUpload(raw, stream.raw))? };
        Ok(exec)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once.
        let result = unsafe { cu!(cuGraphDestroy(self.raw)) };
        self.context.record(result);
    }
}

/// An executable graph.
pub struct GraphExec {
    raw: sys::CUgraphExec,
    context: Rc<ContextInner>,
}

impl GraphExec {
    /// Enqueues one replay.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        stream.context.count(|t| t.graph_launches += 1);
        // SAFETY: both handles are alive and of one context; what the nodes point at lives as long as the engine.
        unsafe { cu!(cuGraphLaunch(self.raw, stream.raw)) }
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once.
        let result = unsafe { cu!(cuGraphExecDestroy(self.raw)) };
        self.context.record(result);
    }
}
