//! The memory plan: what every buffer of the device takes, what fits, and which knob to turn when it does not.
//!
//! Defaults, in this order:
//! 1. `--max-context` is the model's `max_position_embeddings`, or the largest multiple of a page whose single sequence
//!    fits the budget; with `--kv-pages` given it is also at most what those pages hold.
//! 2. `--kv-pages` is what `--max-running` sequences of `--max-context` tokens need, capped by what fits; it always
//!    holds at least one such sequence.
//! 3. The budget of a default is 90 % of the free memory: graphs, kernel images and the driver take the rest. Pages
//!    given by hand may use all of it.

use std::fmt;

use super::config::{LayerKind, ModelConfig};
pub use super::footprint::{
    Geometry, Line, STAGING, TablePlace, kv_bytes_a_key, kv_bytes_a_token, weight_bytes_a_step, weight_lines,
};
use crate::limits::ROWS_MAX;

/// What the operator asks for. Tokens and counts; none means the default above.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    pub max_running: usize,
    pub max_context: Option<usize>,
    /// Global pages.
    pub kv_pages: Option<usize>,
    pub prefill_chunk: usize,
    /// Tokens of a page and keys of an attention segment, by family; a segment is whole pages.
    pub page_tokens_sliding: usize,
    pub page_tokens_global: usize,
    pub segment_sliding: usize,
    pub segment_global: usize,
    pub per_layer_table: TablePlace,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            max_running: 64,
            max_context: None,
            kv_pages: None,
            prefill_chunk: 2048,
            page_tokens_sliding: 16,
            page_tokens_global: 16,
            segment_sliding: 128,
            segment_global: 256,
            per_layer_table: TablePlace::Device,
        }
    }
}

/// A plan that fits. `Display` is one page with the arithmetic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    pub geometry: Geometry,
    pub lines: Vec<Line>,
    pub total_bytes: u64,
    /// Pinned memory of the host that the options ask for.
    pub host_lines: Vec<Line>,
    /// Free memory of the device before anything of the plan was allocated.
    pub free_bytes: u64,
}

/// Why there is no plan; `Display` names the knobs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{knob} is {value}: {why}")]
    Knob { knob: &'static str, value: usize, why: String },
    #[error("--per-layer-table host: the model has no per-layer embeddings")]
    NoTable,
    #[error("{0}")]
    DoesNotFit(Box<DoesNotFit>),
}

/// The smallest plan that keeps what was asked for, and what each knob would give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoesNotFit {
    pub geometry: Geometry,
    pub needed_bytes: u64,
    pub budget_bytes: u64,
    pub free_bytes: u64,
    pub weight_bytes: u64,
    pub page_bytes: u64,
    pub ring_bytes: u64,
    pub chunk_token_bytes: u64,
}

impl MemoryPlan {
    /// Resolves the options on a device with `free_bytes` of memory. `own_head`: the checkpoint holds a head beside the
    /// embedding.
    pub fn resolve(
        config: &ModelConfig,
        options: &PlanOptions,
        own_head: bool,
        free_bytes: u64,
    ) -> Result<MemoryPlan, PlanError> {
        check(config, options)?;
        let search = Search { config, options, own_head, free_bytes };
        let max_context = search.max_context()?;
        let global_pages = search.global_pages(max_context);
        let geometry = Geometry::new(config, options, max_context, global_pages);
        let lines = geometry.lines(config, own_head);
        let total_bytes = total(&lines);
        assert!(total_bytes <= free_bytes, "a resolved plan fits");
        let host_lines = geometry.host_lines(config);
        Ok(MemoryPlan { geometry, lines, total_bytes, host_lines, free_bytes })
    }

    /// Sequences of `max_context` tokens the global pool holds at once.
    pub fn full_sequences(&self) -> usize {
        self.geometry.global_pages / self.geometry.global_table_pages
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let g = &self.geometry;
        writeln!(f, "memory plan, bytes")?;
        for line in &self.lines {
            writeln!(f, "  {:<24}{:>16}  {}", line.name, line.bytes, line.arithmetic)?;
        }
        let share = self.total_bytes as f64 * 100.0 / self.free_bytes.max(1) as f64;
        writeln!(f, "  {:<24}{:>16}  {share:.1} % of {} free", "total", self.total_bytes, self.free_bytes)?;
        for line in &self.host_lines {
            writeln!(f, "  {:<24}{:>16}  on the host, pinned: {}", line.name, line.bytes, line.arithmetic)?;
        }
        write!(
            f,
            "  --max-running {}, --max-context {}, --kv-pages {} ({} tokens, {} sequences of full length), \
             --prefill-chunk {}",
            g.max_running,
            g.max_context,
            g.global_pages,
            g.global_pages.saturating_mul(g.page_tokens_global),
            self.full_sequences(),
            g.chunk_tokens,
        )
    }
}

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let g = &self.geometry;
        write!(
            f,
            "the model does not fit: {} bytes are needed, {} of them weights, and {} of the device's {} free bytes \
             may be used. Lower --kv-pages (now {}, {} bytes each), --max-running (now {}, {} bytes each for sliding \
             layers), --max-context (now {}) or --prefill-chunk (now {}, {} bytes a token)",
            self.needed_bytes,
            self.weight_bytes,
            self.budget_bytes,
            self.free_bytes,
            g.global_pages,
            self.page_bytes,
            g.max_running,
            self.ring_bytes,
            g.max_context,
            g.chunk_tokens,
            self.chunk_token_bytes,
        )
    }
}

const CHUNK_TOKENS_MAX: usize = 1 << 20;
/// Page ids are 32-bit signed on the device.
const PAGES_MAX: usize = i32::MAX as usize;

fn check(config: &ModelConfig, options: &PlanOptions) -> Result<(), PlanError> {
    let within = |knob, value: usize, max: usize| {
        let why = || format!("expected 1 to {max}");
        if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Knob { knob, value, why: why() }) }
    };
    within("--max-running", options.max_running, ROWS_MAX)?;
    within("--prefill-chunk", options.prefill_chunk, CHUNK_TOKENS_MAX)?;
    if let Some(tokens) = options.max_context {
        within("--max-context", tokens, config.max_position)?;
    }
    if let Some(pages) = options.kv_pages {
        within("--kv-pages", pages, PAGES_MAX)?;
    }
    if options.per_layer_table == TablePlace::Host && config.per_layer_width.is_none() {
        return Err(PlanError::NoTable);
    }
    for (page, segment) in
        [(options.page_tokens_sliding, options.segment_sliding), (options.page_tokens_global, options.segment_global)]
    {
        assert!(page > 0 && page % 16 == 0 && segment > 0 && segment % page == 0, "page {page}, segment {segment}");
    }
    Ok(())
}

fn total(lines: &[Line]) -> u64 {
    lines.iter().fold(0u64, |sum, line| sum.saturating_add(line.bytes))
}

struct Search<'a> {
    config: &'a ModelConfig,
    options: &'a PlanOptions,
    own_head: bool,
    free_bytes: u64,
}

impl Search<'_> {
    fn budget_bytes(&self) -> u64 {
        if self.options.kv_pages.is_some() { self.free_bytes } else { self.free_bytes / 10 * 9 }
    }

    fn needed_bytes(&self, max_context: usize, global_pages: usize) -> u64 {
        let geometry = Geometry::new(self.config, self.options, max_context, global_pages);
        total(&geometry.lines(self.config, self.own_head))
    }

    fn fits(&self, max_context: usize, global_pages: usize) -> bool {
        self.needed_bytes(max_context, global_pages) <= self.budget_bytes()
    }

    /// Pages with which one sequence of that length can run.
    fn pages_min(&self, max_context: usize) -> usize {
        self.options.kv_pages.unwrap_or(max_context.div_ceil(self.options.page_tokens_global))
    }

    fn max_context(&self) -> Result<usize, PlanError> {
        let page = self.options.page_tokens_global;
        let held = self.options.kv_pages.map_or(usize::MAX, |pages| pages.saturating_mul(page));
        let wanted = self.options.max_context.unwrap_or(self.config.max_position.min(held));
        if self.fits(wanted, self.pages_min(wanted)) {
            return Ok(wanted);
        }
        if self.options.max_context.is_some() {
            return Err(self.does_not_fit(wanted));
        }
        // Both the need and its pages grow with the length, so the fitting lengths are a prefix.
        let pages = largest(wanted / page, |pages| self.fits(pages * page, self.pages_min(pages * page)));
        if pages == 0 { Err(self.does_not_fit(page.min(wanted))) } else { Ok(pages * page) }
    }

    /// [`Search::max_context`] has made sure that at least [`Search::pages_min`] fit.
    fn global_pages(&self, max_context: usize) -> usize {
        if let Some(pages) = self.options.kv_pages {
            return pages;
        }
        let wanted = self.options.max_running * self.pages_min(max_context);
        largest(wanted.min(PAGES_MAX), |pages| self.fits(max_context, pages))
    }

    fn does_not_fit(&self, max_context: usize) -> PlanError {
        let geometry = Geometry::new(self.config, self.options, max_context, self.pages_min(max_context));
        let lines = geometry.lines(self.config, self.own_head);
        PlanError::DoesNotFit(Box::new(DoesNotFit {
            needed_bytes: total(&lines),
            budget_bytes: self.budget_bytes(),
            free_bytes: self.free_bytes,
            weight_bytes: total(&weight_lines(self.config, self.own_head, self.options.per_layer_table)),
            page_bytes: geometry.page_bytes(self.config, LayerKind::Global),
            ring_bytes: geometry.page_bytes(self.config, LayerKind::Sliding) * geometry.ring_pages as u64,
            chunk_token_bytes: geometry.chunk_token_bytes(self.config),
            geometry,
        }))
    }
}

/// The largest n in 0..=max with `holds(n)`, for a property that holds up to some n and not after; 0 when it never
/// does.
pub(crate) fn largest(max: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
