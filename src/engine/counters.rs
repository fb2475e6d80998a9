//! The engine's counters: handles made once, so that a step only adds to atomics.

use metrics::{Counter, Gauge, counter, gauge};

use crate::device::{Traffic, soft};
use crate::metrics::{
    D2H_COPIES_TOTAL, GRAPH_LAUNCHES_TOTAL, H2D_BYTES_TOTAL, H2D_COPIES_TOTAL, KERNEL_LAUNCHES_TOTAL, KV_PAGES_FREE,
    PIPELINE_DRAINS_TOTAL, REBUILDS_TOTAL, REQUESTS_RUNNING, SOFT_DEVICE, STEPS_TOTAL, WAITS_TOTAL,
    WASTED_ROW_STEPS_TOTAL,
};
use crate::scheduler::RebuildCause;
use crate::slots::Waited;

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// A decode step that uploaded nothing.
    Regular,
    /// A decode step that uploaded its row index.
    Rebuild,
    /// A prompt chunk.
    Prefill,
}

/// Why the pipeline was emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainCause {
    /// Nothing was left to launch.
    Idle,
}

pub struct EngineCounters {
    regular: Counter,
    rebuild: Counter,
    prefill: Counter,
    rebuilds: [(RebuildCause, Counter); RebuildCause::ALL.len()],
    drains_idle: Counter,
    wasted_row_steps: Counter,
    waits_spin: Counter,
    waits_park: Counter,
    h2d_copies: Counter,
    h2d_bytes: Counter,
    d2h_copies: Counter,
    kernel_launches: Counter,
    graph_launches_decode: Counter,
    graph_launches_sampler: Counter,
    running: Gauge,
    pages_free: [Gauge; 2],
}

/// Publishes the software device's own counters; on a GPU there are none. Any thread may call it.
pub fn publish_soft_counters() {
    for (name, value) in soft::counters() {
        gauge!(SOFT_DEVICE, "counter" => name).set(value as f64);
    }
}

impl EngineCounters {
    pub fn new() -> Self {
        EngineCounters {
            regular: counter!(STEPS_TOTAL, "kind" => "regular"),
            rebuild: counter!(STEPS_TOTAL, "kind" => "rebuild"),
            prefill: counter!(STEPS_TOTAL, "kind" => "prefill"),
            rebuilds: RebuildCause::ALL.map(|cause| (cause, counter!(REBUILDS_TOTAL, "cause" => cause.word()))),
            drains_idle: counter!(PIPELINE_DRAINS_TOTAL, "cause" => "idle"),
            wasted_row_steps: counter!(WASTED_ROW_STEPS_TOTAL),
            waits_spin: counter!(WAITS_TOTAL, "how" => "spin"),
            waits_park: counter!(WAITS_TOTAL, "how" => "park"),
            h2d_copies: counter!(H2D_COPIES_TOTAL),
            h2d_bytes: counter!(H2D_BYTES_TOTAL),
            d2h_copies: counter!(D2H_COPIES_TOTAL),
            kernel_launches: counter!(KERNEL_LAUNCHES_TOTAL),
            graph_launches_decode: counter!(GRAPH_LAUNCHES_TOTAL, "graph" => "decode"),
            graph_launches_sampler: counter!(GRAPH_LAUNCHES_TOTAL, "graph" => "sampler"),
            running: gauge!(REQUESTS_RUNNING),
            pages_free: ["sliding", "global"].map(|family| gauge!(KV_PAGES_FREE, "family" => family)),
        }
    }

    pub fn step(&self, kind: StepKind) {
        match kind {
            StepKind::Regular => self.regular.increment(1),
            StepKind::Rebuild => self.rebuild.increment(1),
            StepKind::Prefill => self.prefill.increment(1),
        }
    }

    pub fn rebuilt(&self, cause: RebuildCause) {
        if let Some((_, counter)) = self.rebuilds.iter().find(|(known, _)| *known == cause) {
            counter.increment(1);
        }
    }

    pub fn drained(&self, cause: DrainCause) {
        match cause {
            DrainCause::Idle => self.drains_idle.increment(1),
        }
    }

    /// A row was computed for a request that had ended by then.
    pub fn wasted_row_step(&self) {
        self.wasted_row_steps.increment(1);
    }

    pub fn waited(&self, how: Waited) {
        match how {
            Waited::Spin => self.waits_spin.increment(1),
            Waited::Park => self.waits_park.increment(1),
        }
    }

    /// What the device layer counted since the process began.
    pub fn traffic(&self, traffic: &Traffic, bucket_launches: u64) {
        self.h2d_copies.absolute(traffic.h2d_copies);
        self.h2d_bytes.absolute(traffic.h2d_bytes);
        self.d2h_copies.absolute(traffic.d2h_copies);
        self.kernel_launches.absolute(traffic.kernel_launches);
        self.graph_launches_decode.absolute(bucket_launches);
        self.graph_launches_sampler.absolute(bucket_launches);
    }

    /// Running sequences, and free pages of the sliding and the global family.
    pub fn gauges(&self, running: usize, pages_free: [usize; 2]) {
        self.running.set(running as f64);
        for (gauge, free) in self.pages_free.iter().zip(pages_free) {
            gauge.set(free as f64);
        }
    }
}
