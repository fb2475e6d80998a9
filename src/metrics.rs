//! Names and descriptions of every metric, and the recorder behind `/metrics`.
//!
//! The async side counts requests and times tokens; the engine thread sets running sequences, KV pages and what it
//! enqueued through the same names; the software device's own counters are read when somebody asks.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Sequences in decode or prefill. Set by the engine.
pub const REQUESTS_RUNNING: &str = "gemma4_requests_running";
/// Sequences accepted and not yet running. Set when scraped.
pub const REQUESTS_WAITING: &str = "gemma4_requests_waiting";
/// Free KV pages, label `family`: sliding or global. Set by the engine.
pub const KV_PAGES_FREE: &str = "gemma4_kv_pages_free";
/// Label `outcome`, see [`Outcome`].
pub const REQUESTS_TOTAL: &str = "gemma4_requests_total";
/// Sequences whose client went away before their end.
pub const REQUESTS_ABORTED_TOTAL: &str = "gemma4_requests_aborted_total";
/// 1, label `kind`. Set by the engine start.
pub const DEVICE_INFO: &str = "gemma4_device_info";
/// Counters of the software device, label `counter` (csrc/soft/control.h). Set when scraped.
pub const SOFT_DEVICE: &str = "gemma4_soft_device";
/// Steps launched, label `kind`: regular, rebuild, prefill.
pub const STEPS_TOTAL: &str = "gemma4_steps_total";
/// Decode steps that uploaded their row index, label `cause`.
pub const REBUILDS_TOTAL: &str = "gemma4_rebuilds_total";
pub const H2D_COPIES_TOTAL: &str = "gemma4_h2d_copies_total";
pub const H2D_BYTES_TOTAL: &str = "gemma4_h2d_bytes_total";
pub const D2H_COPIES_TOTAL: &str = "gemma4_d2h_copies_total";
/// Graphs replayed, label `graph`: decode, sampler.
pub const GRAPH_LAUNCHES_TOTAL: &str = "gemma4_graph_launches_total";
/// Kernels launched one by one (prompt chunks, start-up, `--no-graphs`).
pub const KERNEL_LAUNCHES_TOTAL: &str = "gemma4_kernel_launches_total";
/// Times the pipeline was emptied, label `cause`.
pub const PIPELINE_DRAINS_TOTAL: &str = "gemma4_pipeline_drains_total";
/// Rows computed for a request that had ended by then.
pub const WASTED_ROW_STEPS_TOTAL: &str = "gemma4_wasted_row_steps_total";
/// Waits for a step, label `how`: spin, park.
pub const WAITS_TOTAL: &str = "gemma4_waits_total";
/// From the moment the device is free for a step to the moment its records are read, every kind of step.
pub const STEP: &str = "gemma4_step_seconds";
/// 1, labels `version` and `model`.
pub const BUILD_INFO: &str = "gemma4_build_info";
pub const TIME_TO_FIRST_TOKEN: &str = "gemma4_time_to_first_token_seconds";
pub const INTER_TOKEN: &str = "gemma4_inter_token_seconds";
pub const PROMPT_TOKENS_TOTAL: &str = "gemma4_prompt_tokens_total";
pub const GENERATED_TOKENS_TOTAL: &str = "gemma4_generated_tokens_total";
pub const CONNECTIONS_OPEN: &str = "gemma4_connections_open";
/// Label `reason`: idle (closed for a newer one at the limit), write_timeout.
pub const CONNECTIONS_CLOSED_TOTAL: &str = "gemma4_connections_closed_total";
/// Failures of accept (file descriptors exhausted and the like), each followed by a pause.
pub const ACCEPT_ERRORS_TOTAL: &str = "gemma4_accept_errors_total";
/// Log lines dropped because the sink was full or blocked.
pub const LOG_LINES_DROPPED_TOTAL: &str = "gemma4_log_lines_dropped_total";

/// How a sequence ended, as counted; a request refused before it became sequences counts once as `refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stop,
    Length,
    Aborted,
    Failed,
    Refused,
}

impl Outcome {
    pub const ALL: [Outcome; 5] = [Self::Stop, Self::Length, Self::Aborted, Self::Failed, Self::Refused];

    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Aborted => "aborted",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    pub fn count(self) {
        metrics::counter!(REQUESTS_TOTAL, "outcome" => self.word()).increment(1);
        if self == Self::Aborted {
            metrics::counter!(REQUESTS_ABORTED_TOTAL).increment(1);
        }
    }
}

/// Bounds in seconds: a decode step takes 1 ms (small model, GPU) to 1 s (software device), a queued prompt minutes.
const SECONDS_BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0];
/// How often samples are folded into buckets when nobody scrapes, so that they cannot pile up.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Step times. The recorder's own histograms allocate now and then, which the engine thread must not.
pub static STEP_SECONDS: Histogram = Histogram::new();

/// A histogram in place: fixed bounds, relaxed atomics, one writer.
pub struct Histogram {
    /// By upper bound, the last beyond all; each counts its own interval alone.
    counts: [AtomicU64; SECONDS_BUCKETS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    const fn new() -> Self {
        Histogram { counts: [const { AtomicU64::new(0) }; SECONDS_BUCKETS.len() + 1], sum_ns: AtomicU64::new(0) }
    }

    pub fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let place = SECONDS_BUCKETS.iter().position(|&bound| seconds <= bound).unwrap_or(SECONDS_BUCKETS.len());
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Prometheus text.
    fn page(&self, name: &str, help: &str) -> String {
        let mut text = format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut sum = 0;
        let bounds = SECONDS_BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (count, bound) in self.counts.iter().zip(bounds) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let seconds = self.sum_ns.load(Ordering::Relaxed) as f64 * 1e-9;
        let _ = writeln!(text, "{name}_sum {seconds}\n{name}_count {sum}");
        text
    }
}

static SCRAPE_HOOK: OnceLock<fn()> = OnceLock::new();

/// What runs before each scrape, to read what nobody need publish meanwhile; the first one stays.
pub fn set_scrape_hook(hook: fn()) {
    let _ = SCRAPE_HOOK.set(hook);
}

/// The whole page of `/metrics`.
pub fn page(handle: &PrometheusHandle) -> String {
    if let Some(hook) = SCRAPE_HOOK.get() {
        hook();
    }
    handle.render() + &STEP_SECONDS.page(STEP, "Time of a step, from when the device is free for it to its records")
}

/// Installs the process's recorder; later calls give the same handle.
pub fn install() -> PrometheusHandle {
    static HANDLE: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let builder = [TIME_TO_FIRST_TOKEN, INTER_TOKEN].iter().fold(PrometheusBuilder::new(), |b, name| {
                // Fails only for an empty list of bounds.
                b.set_buckets_for_metric(Matcher::Full((*name).to_owned()), &SECONDS_BUCKETS).unwrap_or_default()
            });
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            // A recorder set by someone else (an embedding program) stays; ours then renders an empty page.
            let _ = metrics::set_global_recorder(recorder);
            describe();
            handle
        })
        .clone()
}

fn describe() {
    describe_gauge!(REQUESTS_RUNNING, "Sequences running (prefill or decode)");
    describe_gauge!(REQUESTS_WAITING, "Sequences accepted and waiting to run");
    describe_gauge!(KV_PAGES_FREE, "Free KV pages by family");
    describe_counter!(
        REQUESTS_TOTAL,
        "Sequences by outcome, one per choice of a prompt; a request refused, or left before it is admitted, is one"
    );
    describe_counter!(REQUESTS_ABORTED_TOTAL, "Sequences whose client went away before their end");
    describe_gauge!(DEVICE_INFO, "The device in use, by kind");
    describe_counter!(STEPS_TOTAL, "Steps launched, by kind");
    describe_counter!(REBUILDS_TOTAL, "Decode steps that uploaded their row index, by cause");
    describe_counter!(H2D_COPIES_TOTAL, "Copies from host to device");
    describe_counter!(H2D_BYTES_TOTAL, Unit::Bytes, "Bytes copied from host to device");
    describe_counter!(D2H_COPIES_TOTAL, "Copies from device to host");
    describe_counter!(GRAPH_LAUNCHES_TOTAL, "Graphs replayed");
    describe_counter!(KERNEL_LAUNCHES_TOTAL, "Kernels launched outside of graphs");
    describe_counter!(PIPELINE_DRAINS_TOTAL, "Times the pipeline was emptied, by cause");
    describe_counter!(WASTED_ROW_STEPS_TOTAL, "Rows computed for a request that had ended by then");
    describe_counter!(WAITS_TOTAL, "Waits for a step, by how they ended");
    describe_gauge!(SOFT_DEVICE, "Counters of the software device, by name");
    describe_gauge!(BUILD_INFO, "Version of the program and the served model");
    describe_histogram!(TIME_TO_FIRST_TOKEN, Unit::Seconds, "Arrival of a request to its first token");
    describe_histogram!(INTER_TOKEN, Unit::Seconds, "Time between tokens of a sequence");
    describe_counter!(PROMPT_TOKENS_TOTAL, "Prompt tokens of accepted sequences");
    describe_counter!(GENERATED_TOKENS_TOTAL, "Generated tokens given to clients");
    describe_gauge!(CONNECTIONS_OPEN, "Open client connections");
    describe_counter!(CONNECTIONS_CLOSED_TOTAL, "Connections closed by the server, by reason");
    describe_counter!(ACCEPT_ERRORS_TOTAL, "Failures of accept");
    describe_counter!(LOG_LINES_DROPPED_TOTAL, "Log lines dropped because the sink was full");
    // Zeros from the start, so that a rate over the first event exists.
    for outcome in Outcome::ALL {
        metrics::counter!(REQUESTS_TOTAL, "outcome" => outcome.word()).absolute(0);
    }
    metrics::counter!(REQUESTS_ABORTED_TOTAL).absolute(0);
    metrics::gauge!(REQUESTS_RUNNING).set(0.0);
    metrics::gauge!(REQUESTS_WAITING).set(0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_each_value_below_its_bound_and_in_the_sum() {
        let histogram = Histogram::new();
        for ms in [1, 2, 30, 400_000] {
            histogram.record(Duration::from_millis(ms));
        }
        let page = histogram.page("t", "Times");
        assert!(page.starts_with("# HELP t Times\n# TYPE t histogram\nt_bucket{le=\"0.001\"} 1\n"), "{page}");
        for line in ["t_bucket{le=\"0.0025\"} 2\n", "t_bucket{le=\"0.03\"} 3\n", "t_bucket{le=\"120\"} 3\n"] {
            assert!(page.contains(line), "{line} is not in {page}");
        }
        assert!(page.ends_with("t_bucket{le=\"+Inf\"} 4\nt_sum 400.033\nt_count 4\n"), "{page}");
    }
}
