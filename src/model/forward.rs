//! The forward pass: which kernels run, in which order, on which buffers. One code path for decode and prompts, eager
//! and captured; only attention and the KV write differ (`spec/gemma4.md` section 2).
//!
//! Per layer: qkv product, norms + RoPE + KV write, attention, output product, add + norm, gate/up product, GELU, down
//! product, add + scalar + the next layer's norm.

use super::cache::KvCache;
use super::config::{LayerConfig, LayerKind, ModelConfig};
use super::kernels::{AttnDecode, AttnPrompt, Kernels, QkvPrep};
use super::plan::Geometry;
use super::weights::{LayerWeights, Weights};
use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};

/// The model on the device.
pub struct Forward {
    pub config: ModelConfig,
    pub geometry: Geometry,
    pub kernels: Kernels,
    pub weights: Weights,
    pub cache: KvCache,
    activations: Activations,
    partials: Partials,
}

/// Row buffers, `[rows_max][width]` bf16, reused by every layer.
struct Activations {
    x: DeviceBuffer<u16>,
    normed: DeviceBuffer<u16>,
    qkv: DeviceBuffer<u16>,
    q: DeviceBuffer<u16>,
    attention: DeviceBuffer<u16>,
    branch: DeviceBuffer<u16>,
    gate_up: DeviceBuffer<u16>,
    gated: DeviceBuffer<u16>,
}

/// Partial sums of decode attention, sized in segments.
struct Partials {
    o: DeviceBuffer<f32>,
    ml: DeviceBuffer<f32>,
    ticket: DeviceBuffer<u32>,
}

/// The rows of a step as kernels read them: device arrays at fixed addresses.
#[derive(Clone, Copy)]
pub struct Rows {
    pub count: usize,
    /// Token ids, -1 for padding.
    pub token: DeviceSlice<i32>,
    pub position: DeviceSlice<i32>,
    /// Effective slot, -1 for padding.
    pub slot: DeviceSlice<i32>,
}

/// What tells decode from a prompt chunk.
#[derive(Clone, Copy)]
pub enum Mode {
    /// One query a row; work lists made by the step's first node.
    Decode { sliding_item_begin: DeviceSlice<i32>, global_item_begin: DeviceSlice<i32> },
    /// Consecutive positions from `start` of the sequence in `slot`.
    Prompt { slot: usize, start: usize },
}

/// Where to copy the residual stream after the embedding and after each layer (`score --hidden`).
pub struct HiddenTap {
    /// `[layers + 1][rows][hidden]`
    buffer: DeviceBuffer<u16>,
    rows: usize,
    hidden: usize,
}

impl HiddenTap {
    pub fn new(context: &Context, config: &ModelConfig, rows: usize) -> Result<Self, DriverError> {
        let len = (config.layers.len() + 1) * rows * config.hidden;
        Ok(HiddenTap { buffer: DeviceBuffer::new(context, len)?, rows, hidden: config.hidden })
    }

    /// State `index` (0: the embedding, i: after layer i - 1) of the first `rows` rows.
    pub fn state(&self, index: usize, rows: usize) -> DeviceSlice<u16> {
        let first = index * self.rows * self.hidden;
        self.buffer.slice(first..first + rows * self.hidden)
    }
}

impl Forward {
    /// Allocates the cache and the row buffers around loaded weights.
    pub fn new(
        context: &Context,
        stream: &Stream,
        config: ModelConfig,
        geometry: Geometry,
        kernels: Kernels,
        weights: Weights,
    ) -> Result<Self, DriverError> {
        let cache = KvCache::new(context, stream, &config, &geometry)?;
        let rows = geometry.rows_max();
        let widest = |f: &dyn Fn(&LayerConfig) -> usize| config.layers.iter().map(f).max().unwrap_or(0);
        let heads = config.heads;
        let buffer = |width: usize| DeviceBuffer::new(context, rows * width);
        let activations = Activations {
            x: buffer(config.hidden)?,
            normed: buffer(config.hidden)?,
            qkv: buffer(widest(&|l| qkv_width(heads, l)))?,
            q: buffer(widest(&|l| heads * l.head_dim))?,
            attention: buffer(widest(&|l| heads * l.head_dim))?,
            branch: buffer(config.hidden)?,
            gate_up: buffer(widest(&|l| 2 * l.intermediate))?,
            gated: buffer(widest(&|l| l.intermediate))?,
        };
        let items = |l: &LayerConfig| geometry.family(l.kind).items * heads;
        let partials = Partials {
            o: DeviceBuffer::new(context, widest(&|l| items(l) * l.head_dim))?,
            ml: DeviceBuffer::new(context, widest(&|l| items(l) * 2))?,
            ticket: DeviceBuffer::new(context, widest(&|l| geometry.decode_rows * l.kv_heads))?,
        };
        stream.fill(partials.ticket.all(), 0)?;
        Ok(Forward { config, geometry, kernels, weights, cache, activations, partials })
    }

    /// Enqueues the whole pass; afterwards the final-normed rows are ready for [`Forward::logits`].
    pub fn run(&self, s: &Stream, rows: Rows, mode: Mode, tap: Option<&HiddenTap>) -> Result<(), DriverError> {
        let (a, w, k, n) = (&self.activations, &self.weights, &self.kernels, rows.count);
        let eps = self.config.rms_eps;
        k.embed(s, w.embed.gemm(), rows.token, a.x.all(), n, w.embed_scale)?;
        self.copy_hidden(s, tap, 0, n)?;
        k.rmsnorm(s, a.x.all(), w.layers[0].input_norm.all(), a.normed.all(), n, eps)?;
        for (index, layer) in w.layers.iter().enumerate() {
            k.gemm(s, layer.qkv.gemm(), a.normed.all(), a.qkv.all(), n)?;
            self.attention(s, index, layer, rows, mode)?;
            k.gemm(s, layer.o.gemm(), a.attention.all(), a.branch.all(), n)?;
            let (post, next) = (layer.post_attention_norm.all(), layer.pre_ffw_norm.all());
            k.add_norm(s, a.x.all(), a.branch.all(), post, None, next, a.normed.all(), n, eps)?;
            k.gemm(s, layer.gate_up.gemm(), a.normed.all(), a.gate_up.all(), n)?;
            k.gelu_gate(s, a.gate_up.all(), a.gated.all(), n, self.config.layers[index].intermediate)?;
            k.gemm(s, layer.down.gemm(), a.gated.all(), a.branch.all(), n)?;
            let next = w.layers.get(index + 1).map_or(w.norm.all(), |next| next.input_norm.all());
            let (post, scalar) = (layer.post_ffw_norm.all(), Some(layer.layer_scalar.all()));
            k.add_norm(s, a.x.all(), a.branch.all(), post, scalar, next, a.normed.all(), n, eps)?;
            self.copy_hidden(s, tap, index + 1, n)?;
        }
        Ok(())
    }

    /// Enqueues the logits of rows `[first, first + count)` of the last pass, soft-capped, f32, at most 128 rows.
    pub fn logits(&self, s: &Stream, first: usize, count: usize, out: DeviceSlice<f32>) -> Result<(), DriverError> {
        let hidden = self.config.hidden;
        let normed = self.activations.normed.slice(first * hidden..(first + count) * hidden);
        self.kernels.logits(s, self.weights.head(), normed, out, count, self.config.softcap)
    }

    /// Norms, RoPE, the KV write and attention of one layer.
    fn attention(
        &self,
        s: &Stream,
        index: usize,
        layer: &LayerWeights,
        rows: Rows,
        mode: Mode,
    ) -> Result<(), DriverError> {
        let (a, k) = (&self.activations, &self.kernels);
        let config = &self.config.layers[index];
        let family = self.geometry.family(config.kind);
        let rope = self.weights.rope(config.kind);
        let paged = self.cache.view(index);
        let scratch = match (mode, config.kind) {
            (Mode::Prompt { start, .. }, LayerKind::Sliding) => Some(self.cache.scratch_view(index, start)),
            _ => None,
        };
        let prep = QkvPrep {
            qkv: a.qkv.all(),
            q_weight: layer.q_norm.all(),
            k_weight: layer.k_norm.all(),
            cos: rope.cos.all(),
            sin: rope.sin.all(),
            position: rows.position,
            slot: rows.slot,
            q_out: a.q.all(),
            kv: scratch.unwrap_or(paged),
            rows: rows.count,
            heads: self.config.heads,
            pairs: rope.pairs,
            k_eq_v: config.k_eq_v,
            eps: self.config.rms_eps,
        };
        k.qkv_prep(s, &prep)?;
        match mode {
            Mode::Decode { sliding_item_begin, global_item_begin } => {
                let decode = AttnDecode {
                    q: a.q.all(),
                    out: a.attention.all(),
                    position: rows.position,
                    slot: rows.slot,
                    item_begin: match config.kind {
                        LayerKind::Sliding => sliding_item_begin,
                        LayerKind::Global => global_item_begin,
                    },
                    kv: paged,
                    part_o: self.partials.o.all(),
                    part_ml: self.partials.ml.all(),
                    ticket: self.partials.ticket.all(),
                    rows: rows.count,
                    heads: self.config.heads,
                    window: family.window,
                    segment: family.segment,
                };
                k.attn_decode(s, &decode)
            }
            Mode::Prompt { slot, start } => {
                let end = start + rows.count;
                if let Some(scratch) = scratch {
                    // The chunk may start inside a page: the page's earlier tokens join it in scratch, so that a
                    // page is read from one place.
                    let first = start / family.page_tokens * family.page_tokens;
                    k.kv_copy(s, paged, scratch, slot, first, start)?;
                }
                let prompt = AttnPrompt {
                    q: a.q.all(),
                    out: a.attention.all(),
                    kv: paged,
                    recent: scratch.unwrap_or(self.cache.no_view(index)),
                    slot,
                    start,
                    rows: rows.count,
                    heads: self.config.heads,
                    window: family.window,
                    segment: family.segment,
                };
                k.attn_prompt(s, &prompt)?;
                if let Some(scratch) = scratch {
                    let first = end.saturating_sub(self.cache.ring_tokens()).max(start);
                    k.kv_copy(s, scratch, paged, slot, first, end)?;
                }
                Ok(())
            }
        }
    }

    fn copy_hidden(&self, s: &Stream, tap: Option<&HiddenTap>, index: usize, rows: usize) -> Result<(), DriverError> {
        match tap {
            Some(tap) => s.copy(tap.state(index, rows), self.activations.x.slice(0..rows * self.config.hidden)),
            None => Ok(()),
        }
    }
}

/// Width of the qkv product's output.
fn qkv_width(heads: usize, layer: &LayerConfig) -> usize {
    (heads + layer.kv_heads * if layer.k_eq_v { 1 } else { 2 }) * layer.head_dim
}
