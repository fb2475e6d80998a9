//! Buckets and their graphs: one decode graph and one sampler graph a bucket, captured at start.
//!
//! A captured kernel sees only pointers and constants. What changes from step to step lives in device tables
//! ([`crate::step`]), so a replay never edits a node.

use crate::device::{DriverError, Graph, GraphExec, Stream};

/// The graphs of one bucket.
pub struct BucketGraphs {
    pub bucket: usize,
    decode: GraphExec,
    sampler: GraphExec,
    /// Nodes of both, for the start-up page.
    pub nodes: usize,
}

impl BucketGraphs {
    /// Captures what the two closures enqueue.
    pub fn capture(
        s: &Stream,
        bucket: usize,
        decode: impl FnOnce(&Stream) -> Result<(), DriverError>,
        sampler: impl FnOnce(&Stream) -> Result<(), DriverError>,
    ) -> Result<Self, DriverError> {
        let decode = Graph::capture(s, decode)?;
        let sampler = Graph::capture(s, sampler)?;
        let nodes = decode.node_count()? + sampler.node_count()?;
        Ok(BucketGraphs { bucket, decode: decode.instantiate(s)?, sampler: sampler.instantiate(s)?, nodes })
    }

    /// Enqueues the decode graph, then the sampler graph.
    pub fn launch(&self, s: &Stream) -> Result<(), DriverError> {
        self.decode.launch(s)?;
        self.sampler.launch(s)
    }
}
