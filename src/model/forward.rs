//! The forward pass: which kernels run, in which order, on which buffers. One code path for decode and prompts, eager
//! and captured; only attention and the KV write differ (`spec/gemma4.md` section 2).
//!
//! Per layer: qkv product, norms + RoPE + KV write, attention, output product, add + norm, gate/up product, GELU, down
//! product, add + scalar + the next layer's norm. Models with experts ([`super::experts`]) have them beside the MLP,
//! and both branches' sum is what is added. Models with per-layer embeddings prepare them once a token, and each layer
//! ends with: gate product of x, GELU times the layer's slice, projection, add + scalar + norm. A layer that shares
//! another's K and V has q alone and attends to the other's.

use super::cache::KvCache;
use super::config::{LayerConfig, LayerKind, ModelConfig};
use super::experts::{Experts, ExpertsOf};
use super::footprint::Widths;
use super::kernels::{AttnDecode, AttnPrompt, Kernels, PerLayerInput, QkvPrep, Strided};
use super::plan::Geometry;
use super::weights::{LayerWeights, PerLayerBranchWeights, PerLayerWeights, Weights};
use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};

/// The model on the device.
pub struct Forward {
    pub config: ModelConfig,
    pub geometry: Geometry,
    pub kernels: Kernels,
    pub weights: Weights,
    pub cache: KvCache,
    activations: Activations,
    experts: Option<Experts>,
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
    /// `[rows_max][layers][width]`: per-layer embeddings of the step's tokens.
    per_layer: DeviceBuffer<u16>,
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

impl Rows {
    /// The rows from `first` on.
    fn from(self, first: usize) -> Rows {
        let part = |all: DeviceSlice<i32>| all.slice(first..all.len());
        Rows {
            count: self.count - first,
            token: part(self.token),
            position: part(self.position),
            slot: part(self.slot),
        }
    }
}

/// What the rows at work take from layer to layer; everything else begins anew in each.
#[derive(Clone, Copy)]
struct Carried {
    rows: Rows,
    x: DeviceSlice<u16>,
    normed: DeviceSlice<u16>,
    per_layer: DeviceSlice<u16>,
}

impl Carried {
    /// The last row alone, where it stands; `per_layer` is the width of all layers' embeddings.
    fn last_row(self, hidden: usize, per_layer: usize) -> Carried {
        let first = self.rows.count - 1;
        let part = |all: DeviceSlice<u16>, width: usize| all.slice(first * width..all.len());
        Carried {
            rows: self.rows.from(first),
            x: part(self.x, hidden),
            normed: part(self.normed, hidden),
            per_layer: part(self.per_layer, per_layer),
        }
    }
}

/// What tells decode from a prompt chunk.
#[derive(Clone, Copy)]
pub enum Mode {
    /// One query a row; work lists made by the step's first node.
    Decode { sliding_item_begin: DeviceSlice<i32>, global_item_begin: DeviceSlice<i32> },
    /// `tokens` consecutive positions from `start` of the sequence in `slot`.
    Prompt { slot: usize, start: usize, tokens: usize, output: OutputRows },
}

/// Which rows of a prompt chunk something is read of after the pass. Layers that share another's K and V leave nothing
/// behind for later tokens, so they run for these rows alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OutputRows {
    All,
    Last,
    None,
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
        let widths = Widths::of(&config);
        let buffer = |width: usize| DeviceBuffer::new(context, rows * width);
        let activations = Activations {
            x: buffer(widths.h)?,
            normed: buffer(widths.h)?,
            qkv: buffer(widths.qkv)?,
            q: buffer(widths.q)?,
            attention: buffer(widths.q)?,
            branch: buffer(widths.h)?,
            gate_up: buffer(2 * widths.i)?,
            gated: buffer(widths.i)?,
            per_layer: buffer(widths.p)?,
        };
        let experts = Experts::new(context, &widths, rows)?;
        let items = |l: &LayerConfig| geometry.family(l.kind).items * config.heads;
        let partials = Partials {
            o: DeviceBuffer::new(context, widest(&|l| items(l) * l.head_dim))?,
            ml: DeviceBuffer::new(context, widest(&|l| items(l) * 2))?,
            ticket: DeviceBuffer::new(context, widest(&|l| geometry.decode_rows * l.kv_heads))?,
        };
        stream.fill(partials.ticket.all(), 0)?;
        Ok(Forward { config, geometry, kernels, weights, cache, activations, experts, partials })
    }

    /// Enqueues the whole pass; afterwards the final-normed rows are ready for [`Forward::logits`]: all, or those of
    /// the mode's [`OutputRows`]. A tap wants all of them.
    pub fn run(&self, s: &Stream, rows: Rows, mode: Mode, tap: Option<&HiddenTap>) -> Result<(), DriverError> {
        let (a, w, k) = (&self.activations, &self.weights, &self.kernels);
        let (eps, h) = (self.config.rms_eps, self.config.hidden);
        let mut at = Carried { rows, x: a.x.all(), normed: a.normed.all(), per_layer: a.per_layer.all() };
        k.embed(s, w.embed.gemm(), rows.token, at.x, rows.count, w.embed_scale)?;
        self.copy_hidden(s, tap, 0, rows.count)?;
        if let Some(per_layer) = &w.per_layer {
            self.per_layer_inputs(s, per_layer, rows)?;
        }
        k.rmsnorm(s, at.x, w.layers[0].input_norm.all(), at.normed, rows.count, eps)?;
        let output = match mode {
            Mode::Decode { .. } => OutputRows::All,
            Mode::Prompt { output, .. } => output,
        };
        assert!(tap.is_none() || output == OutputRows::All, "hidden states of every row");
        let (owners, all) = (self.config.layers_with_kv(), w.layers.len());
        let end = if output == OutputRows::None { owners } else { all };
        for (index, layer) in w.layers[..end].iter().enumerate() {
            if index == owners && output == OutputRows::Last {
                at = at.last_row(h, all * self.config.per_layer_width.unwrap_or(0));
            }
            let n = at.rows.count;
            k.gemm(s, layer.qkv.gemm(), at.normed, a.qkv.all(), n)?;
            self.attention(s, index, layer, at.rows, mode, end)?;
            k.gemm(s, layer.o.gemm(), a.attention.all(), a.branch.all(), n)?;
            let (post, next) = (layer.post_attention_norm.all(), Some((layer.pre_ffw_norm.all(), at.normed)));
            k.add_norm(s, at.x, a.branch.all(), post, None, next, n, eps)?;
            k.gemm(s, layer.gate_up.gemm(), at.normed, a.gate_up.all(), n)?;
            let i = self.config.layers[index].intermediate;
            let [gate, up] = Strided::halves(a.gate_up.all(), i);
            k.gelu_gate(s, gate, up, a.gated.all(), n, i)?;
            k.gemm(s, layer.down.gemm(), a.gated.all(), a.branch.all(), n)?;
            if let (Some(experts), Some(weights)) = (&self.experts, &layer.experts) {
                let of = ExpertsOf { x: at.x, router_x: at.normed, y: a.branch.all(), rows: at.rows, eps };
                experts.run(s, k, weights, &of)?;
            }
            let mut post = layer.post_ffw_norm.all();
            if let Some(branch) = &layer.per_layer {
                k.add_norm(s, at.x, a.branch.all(), post, None, None, n, eps)?;
                self.per_layer_branch(s, index, branch, &at)?;
                post = branch.post_norm.all();
            }
            let next = w.layers.get(index + 1).map_or(w.norm.all(), |next| next.input_norm.all());
            let (scalar, next) = (Some(layer.layer_scalar.all()), Some((next, at.normed)));
            k.add_norm(s, at.x, a.branch.all(), post, scalar, next, n, eps)?;
            self.copy_hidden(s, tap, index + 1, n)?;
        }
        Ok(())
    }

    /// Per-layer embeddings of the step's tokens, from their table and from the scaled embedding in x.
    fn per_layer_inputs(&self, s: &Stream, w: &PerLayerWeights, rows: Rows) -> Result<(), DriverError> {
        let (a, k) = (&self.activations, &self.kernels);
        k.gemm(s, w.projection.gemm(), a.x.all(), a.per_layer.all(), rows.count)?;
        let input = PerLayerInput {
            table: w.table.all(),
            table_scale: w.table_scale,
            token: rows.token,
            norm: w.norm.all(),
            x: a.per_layer.all(),
            context_scale: w.context_scale,
            rows: rows.count,
            layers: self.config.layers.len(),
            eps: self.config.rms_eps,
        };
        k.per_layer_input(s, &input)
    }

    /// The branch of layer `index`'s per-layer embedding, before its norm, from x as it is.
    fn per_layer_branch(
        &self,
        s: &Stream,
        index: usize,
        w: &PerLayerBranchWeights,
        at: &Carried,
    ) -> Result<(), DriverError> {
        let (a, k, rows) = (&self.activations, &self.kernels, at.rows.count);
        let gate = w.gate.gemm();
        let width = gate.n;
        k.gemm(s, gate, at.x, a.gate_up.all(), rows)?;
        let gate = Strided { data: a.gate_up.all(), stride: width };
        let slice = at.per_layer.slice(index * width..at.per_layer.len());
        let slice = Strided { data: slice, stride: self.config.layers.len() * width };
        k.gelu_gate(s, gate, slice, a.gated.all(), rows, width)?;
        k.gemm(s, w.projection.gemm(), a.gated.all(), a.branch.all(), rows)
    }

    /// Enqueues the logits of rows `[first, first + count)` of the last pass, soft-capped, f32, at most 128 rows.
    pub fn logits(&self, s: &Stream, first: usize, count: usize, out: DeviceSlice<f32>) -> Result<(), DriverError> {
        let hidden = self.config.hidden;
        let normed = self.activations.normed.slice(first * hidden..(first + count) * hidden);
        self.kernels.logits(s, self.weights.head(), normed, out, count, self.config.softcap)
    }

    /// Norms, RoPE, the KV write and attention of one layer. K and V of a prompt chunk's sliding layer stand in scratch
    /// until the last layer that reads them, of the first `end`, has done so; then the last tokens go to the ring.
    fn attention(
        &self,
        s: &Stream,
        index: usize,
        layer: &LayerWeights,
        rows: Rows,
        mode: Mode,
        end: usize,
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
            k_weight: layer.k_norm.as_ref().map(|norm| norm.all()),
            cos: rope.cos.all(),
            sin: rope.sin.all(),
            position: rows.position,
            slot: rows.slot,
            q_out: a.q.all(),
            kv: if config.owns_kv() { scratch.unwrap_or(paged) } else { self.cache.q_only_view(index) },
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
            Mode::Prompt { slot, start, tokens, .. } => {
                if let Some(scratch) = scratch.filter(|_| config.owns_kv()) {
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
                    // The last row alone reads what the whole chunk has written.
                    start: start + tokens - rows.count,
                    rows: rows.count,
                    heads: self.config.heads,
                    window: family.window,
                    segment: family.segment,
                };
                k.attn_prompt(s, &prompt)?;
                if let Some(scratch) = scratch.filter(|_| self.config.is_last_reader(index, end)) {
                    let end = start + tokens;
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
