//! Weights on the device: matrices in fragment order, vectors as they are, RoPE tables. Built once at load.
//!
//! Matrices that share their input are one packed matrix (q | k | v, and gate | up): one product a step for each group.
//! Bytes go from the memory map through two pinned staging buffers to a device staging buffer, and a kernel packs them
//! from there, so the host never holds a weight twice. Synthetic tensors are written in place by a kernel.

use half::bf16;

use super::checkpoint::{Checkpoint, Content, TensorView};
use super::config::{LayerKind, RopeConfig};
use super::footprint::{Geometry, STAGING_BUFFERS, STAGING_BYTES_MAX, TablePlace};
use super::kernels::{Gemm, Kernels};
use super::layers::INTERMEDIATE_MAX;
use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Event, PinnedBuffer, Stream};

/// A matrix `[n][k]` in fragment order.
pub struct Packed {
    data: DeviceBuffer<u16>,
    n: usize,
    k: usize,
}

impl Packed {
    fn new(context: &Context, n: usize, k: usize) -> Result<Self, DriverError> {
        Ok(Packed { data: DeviceBuffer::new(context, Gemm::packed_len(n, k))?, n, k })
    }

    /// The matrix as launchers take it.
    pub fn gemm(&self) -> Gemm {
        Gemm { weight: self.data.all(), n: self.n, k: self.k }
    }
}

/// The matrices `[n][k]` of a layer's experts, one after another, each in fragment order.
pub struct PackedExperts {
    data: DeviceBuffer<u16>,
    n: usize,
    k: usize,
}

impl PackedExperts {
    /// The matrices as launchers take them.
    pub fn gemm(&self) -> Gemm {
        Gemm { weight: self.data.all(), n: self.n, k: self.k }
    }
}

/// One layer's weights.
pub struct LayerWeights {
    pub input_norm: DeviceBuffer<u16>,
    /// q | k | v rows, without v where K = V; q alone where the layer reads another's K and V.
    pub qkv: Packed,
    pub q_norm: DeviceBuffer<u16>,
    pub k_norm: Option<DeviceBuffer<u16>>,
    pub o: Packed,
    pub post_attention_norm: DeviceBuffer<u16>,
    pub pre_ffw_norm: DeviceBuffer<u16>,
    /// gate | up rows.
    pub gate_up: Packed,
    pub down: Packed,
    pub post_ffw_norm: DeviceBuffer<u16>,
    pub layer_scalar: DeviceBuffer<u16>,
    pub experts: Option<ExpertWeights>,
    pub per_layer: Option<PerLayerBranchWeights>,
}

/// One layer's mixture of experts.
pub struct ExpertWeights {
    pub router: Packed,
    pub router_scale: DeviceBuffer<u16>,
    pub expert_scale: DeviceBuffer<u16>,
    /// gate | up rows.
    pub gate_up: PackedExperts,
    pub down: PackedExperts,
    pub dense_post_norm: DeviceBuffer<u16>,
    pub pre_norm: DeviceBuffer<u16>,
    pub post_norm: DeviceBuffer<u16>,
}

/// What brings per-layer embeddings into one layer.
pub struct PerLayerBranchWeights {
    pub gate: Packed,
    pub projection: Packed,
    pub post_norm: DeviceBuffer<u16>,
}

/// A table of which a step reads single rows, wherever it lies.
pub enum Table {
    Device(DeviceBuffer<u16>),
    /// Pinned; kernels read it across the bus.
    Host(PinnedBuffer<u16>, DeviceSlice<u16>),
}

impl Table {
    pub fn all(&self) -> DeviceSlice<u16> {
        match self {
            Table::Device(buffer) => buffer.all(),
            Table::Host(_, slice) => *slice,
        }
    }
}

/// Per-layer embeddings of every layer.
pub struct PerLayerWeights {
    /// `[vocab][layers * width]`, row-major: rows are looked up.
    pub table: Table,
    pub projection: Packed,
    pub norm: DeviceBuffer<u16>,
    /// bf16 bits of sqrt(width), and hidden^-0.5 in f32: as the reference has them.
    pub table_scale: u16,
    pub context_scale: f32,
}

/// cos and sin of one family, `[positions][pairs]` bf16.
pub struct RopeTable {
    pub cos: DeviceBuffer<u16>,
    pub sin: DeviceBuffer<u16>,
    pub pairs: usize,
}

/// Everything the forward pass reads that never changes.
pub struct Weights {
    /// The tied embedding, packed once; the head unless the checkpoint has one of its own.
    pub embed: Packed,
    pub head: Option<Packed>,
    /// bf16 bits of sqrt(hidden): the reference rounds the scale before it multiplies.
    pub embed_scale: u16,
    pub norm: DeviceBuffer<u16>,
    pub per_layer: Option<PerLayerWeights>,
    pub layers: Vec<LayerWeights>,
    pub rope_sliding: RopeTable,
    pub rope_global: RopeTable,
}

impl Weights {
    /// Uploads and packs. `positions` is the length of the RoPE tables; `progress` hears the bytes uploaded so far.
    pub fn load(
        context: &Context,
        stream: &Stream,
        kernels: &Kernels,
        checkpoint: &Checkpoint,
        geometry: &Geometry,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self, DriverError> {
        let config = &checkpoint.config;
        let mut up = Uploader::new(context, stream, kernels, largest_tensor(checkpoint), progress)?;
        let embed = up.packed(&[checkpoint.embed()])?;
        let head = checkpoint.head().map(|tensor| up.packed(&[tensor])).transpose()?;
        let norm = up.vector(&checkpoint.norm())?;
        let per_layer = load_per_layer(&mut up, checkpoint, geometry.per_layer_table)?;
        let mut layers = Vec::with_capacity(config.layers.len());
        for index in 0..config.layers.len() {
            layers.push(load_layer(&mut up, checkpoint, index)?);
        }
        up.finish()?;
        let rope = |rope: RopeConfig| rope_table(context, stream, kernels, rope, geometry.max_context);
        let weights = Weights {
            embed,
            head,
            embed_scale: root_bf16(config.hidden),
            norm,
            per_layer,
            layers,
            rope_sliding: rope(config.rope(LayerKind::Sliding))?,
            rope_global: rope(config.rope(LayerKind::Global))?,
        };
        stream.synchronize()?;
        Ok(weights)
    }

    /// The matrix the logits come from.
    pub fn head(&self) -> Gemm {
        self.head.as_ref().unwrap_or(&self.embed).gemm()
    }

    pub fn rope(&self, kind: LayerKind) -> &RopeTable {
        match kind {
            LayerKind::Sliding => &self.rope_sliding,
            LayerKind::Global => &self.rope_global,
        }
    }
}

/// bf16(sqrt(width)) as bits.
fn root_bf16(width: usize) -> u16 {
    bf16::from_f32((width as f32).sqrt()).to_bits()
}

/// Bytes of the largest matrix that is uploaded: the embedding, or a matrix of a layer when the vocabulary is tiny. The
/// table of per-layer embeddings is copied in pieces of any size; experts are matrices one by one.
fn largest_tensor(checkpoint: &Checkpoint) -> usize {
    let layers = (0..checkpoint.config.layers.len()).flat_map(|index| {
        let t = checkpoint.layer(index);
        [Some(t.q), Some(t.o), Some(t.gate), t.experts.map(|of| of.gate_up)].into_iter().flatten()
    });
    let stored = |tensor: TensorView| match (tensor.content, tensor.shape) {
        (Content::Stored(bytes), [count, _, _]) => bytes.len() / count,
        (Content::Stored(bytes), _) => bytes.len(),
        (Content::Synthetic(_), _) => 0,
    };
    layers.chain([checkpoint.embed()]).map(stored).max().unwrap_or(0)
}

fn load_per_layer(
    up: &mut Uploader,
    checkpoint: &Checkpoint,
    place: TablePlace,
) -> Result<Option<PerLayerWeights>, DriverError> {
    let (Some(t), Some(width)) = (checkpoint.per_layer(), checkpoint.config.per_layer_width) else {
        return Ok(None);
    };
    Ok(Some(PerLayerWeights {
        table: match place {
            TablePlace::Device => Table::Device(up.vector(&t.table)?),
            TablePlace::Host => up.host_table(&t.table)?,
        },
        projection: up.packed(&[t.projection])?,
        norm: up.vector(&t.norm)?,
        table_scale: root_bf16(width),
        context_scale: (1.0 / (checkpoint.config.hidden as f64).sqrt()) as f32,
    }))
}

fn load_layer(up: &mut Uploader, checkpoint: &Checkpoint, index: usize) -> Result<LayerWeights, DriverError> {
    let t = checkpoint.layer(index);
    let qkv: Vec<TensorView> = [Some(t.q), t.k, t.v].into_iter().flatten().collect();
    let experts = match t.experts {
        Some(of) => Some(ExpertWeights {
            router: up.packed(&[of.router])?,
            router_scale: up.vector(&of.router_scale)?,
            expert_scale: up.vector(&of.expert_scale)?,
            gate_up: up.packed_experts(&of.gate_up)?,
            down: up.packed_experts(&of.down)?,
            dense_post_norm: up.vector(&of.dense_post_norm)?,
            pre_norm: up.vector(&of.pre_norm)?,
            post_norm: up.vector(&of.post_norm)?,
        }),
        None => None,
    };
    let per_layer = match t.per_layer {
        Some(of) => Some(PerLayerBranchWeights {
            gate: up.packed(&[of.gate])?,
            projection: up.packed(&[of.projection])?,
            post_norm: up.vector(&of.post_norm)?,
        }),
        None => None,
    };
    Ok(LayerWeights {
        input_norm: up.vector(&t.input_norm)?,
        qkv: up.packed(&qkv)?,
        q_norm: up.vector(&t.q_norm)?,
        k_norm: t.k_norm.map(|norm| up.vector(&norm)).transpose()?,
        o: up.packed(&[t.o])?,
        post_attention_norm: up.vector(&t.post_attn_norm)?,
        pre_ffw_norm: up.vector(&t.pre_ffw_norm)?,
        gate_up: up.packed(&[t.gate, t.up])?,
        down: up.packed(&[t.down])?,
        post_ffw_norm: up.vector(&t.post_ffw_norm)?,
        layer_scalar: up.vector(&t.layer_scalar)?,
        experts,
        per_layer,
    })
}

fn rope_table(
    context: &Context,
    stream: &Stream,
    kernels: &Kernels,
    rope: RopeConfig,
    positions: usize,
) -> Result<RopeTable, DriverError> {
    let table = RopeTable {
        cos: DeviceBuffer::new(context, positions * rope.pairs)?,
        sin: DeviceBuffer::new(context, positions * rope.pairs)?,
        pairs: rope.pairs,
    };
    let (cos, sin) = (table.cos.all(), table.sin.all());
    kernels.rope_table(stream, cos, sin, rope.theta, positions, rope.pairs, rope.head_dim)?;
    Ok(table)
}

/// A piece is at least one row of tiles, and the deepest matrix is as deep as an MLP can be wide.
const _: () = assert!(16 * 2 * INTERMEDIATE_MAX <= STAGING_BYTES_MAX);

/// Streams tensors to the device. Two staging buffers alternate: one is filled while the other's copy runs.
struct Uploader<'a> {
    context: &'a Context,
    stream: &'a Stream,
    kernels: &'a Kernels,
    pinned: [PinnedBuffer<u16>; STAGING_BUFFERS],
    copied: [Event; STAGING_BUFFERS],
    staging: [DeviceBuffer<u16>; STAGING_BUFFERS],
    turn: usize,
    uploaded_bytes: usize,
    progress: &'a mut dyn FnMut(usize),
}

impl<'a> Uploader<'a> {
    fn new(
        context: &'a Context,
        stream: &'a Stream,
        kernels: &'a Kernels,
        largest_bytes: usize,
        progress: &'a mut dyn FnMut(usize),
    ) -> Result<Self, DriverError> {
        let elements = largest_bytes.min(STAGING_BYTES_MAX) / 2;
        let copied = [Event::new(context)?, Event::new(context)?];
        for event in &copied {
            event.record(stream)?;
        }
        Ok(Uploader {
            context,
            stream,
            kernels,
            pinned: [PinnedBuffer::new(context, elements)?, PinnedBuffer::new(context, elements)?],
            copied,
            staging: [DeviceBuffer::new(context, elements)?, DeviceBuffer::new(context, elements)?],
            turn: 0,
            uploaded_bytes: 0,
            progress,
        })
    }

    /// Puts bytes (little-endian bf16) into this turn's device staging buffer and returns the slice.
    fn stage(&mut self, bytes: &[u8]) -> Result<DeviceSlice<u16>, DriverError> {
        self.turn = 1 - self.turn;
        let turn = self.turn;
        // The pinned buffer is free when its last copy has run; the device buffer is free in stream order.
        self.copied[turn].wait()?;
        self.pinned[turn].fill_le(0, bytes);
        let slice = self.staging[turn].slice(0..bytes.len() / 2);
        self.stream.upload_pinned(slice, &self.pinned[turn], 0)?;
        self.copied[turn].record(self.stream)?;
        self.done(bytes.len());
        Ok(slice)
    }

    fn done(&mut self, bytes: usize) {
        self.uploaded_bytes += bytes;
        (self.progress)(self.uploaded_bytes);
    }

    /// A vector as it is.
    fn vector(&mut self, tensor: &TensorView) -> Result<DeviceBuffer<u16>, DriverError> {
        let buffer = DeviceBuffer::new(self.context, tensor.elements())?;
        match tensor.content {
            Content::Stored(bytes) => {
                let mut done = 0;
                for piece in bytes.chunks(self.piece_bytes(2)) {
                    let staged = self.stage(piece)?;
                    self.stream.copy(buffer.slice(done..done + piece.len() / 2), staged)?;
                    done += piece.len() / 2;
                }
            }
            Content::Synthetic(spread) => {
                self.kernels.synthetic(self.stream, tensor.name, spread, buffer.all())?;
                self.done(tensor.byte_count());
            }
        }
        Ok(buffer)
    }

    /// A table that stays on the host.
    fn host_table(&mut self, tensor: &TensorView) -> Result<Table, DriverError> {
        let mut table = PinnedBuffer::new(self.context, tensor.elements())?;
        let on_device = table.on_device()?;
        match tensor.content {
            Content::Stored(bytes) => {
                let piece_bytes = self.piece_bytes(2);
                for (index, piece) in bytes.chunks(piece_bytes).enumerate() {
                    table.fill_le(index * piece_bytes / 2, piece);
                    self.done(piece.len());
                }
            }
            Content::Synthetic(spread) => {
                self.kernels.synthetic(self.stream, tensor.name, spread, on_device)?;
                self.done(tensor.byte_count());
            }
        }
        Ok(Table::Host(table, on_device))
    }

    /// Matrices that share their depth, stacked by rows (each a multiple of 16 but the last), in fragment order.
    fn packed(&mut self, parts: &[TensorView]) -> Result<Packed, DriverError> {
        let k = parts[0].shape[1];
        let n = parts.iter().map(|part| part.shape[0]).sum();
        let packed = Packed::new(self.context, n, k)?;
        let mut row = 0;
        for part in parts {
            assert!(row % 16 == 0 && part.shape[1] == k, "{}: stacked at row {row}", part.name);
            let first = Gemm::packed_len(row, k);
            self.pack(part.name, part.content, packed.data.slice(first..packed.data.len()), part.shape[0], k)?;
            row += part.shape[0];
        }
        Ok(packed)
    }

    /// The matrices of a tensor `[experts][n][k]`, each in fragment order; a synthetic one's values are those of a
    /// tensor of its own.
    fn packed_experts(&mut self, tensor: &TensorView) -> Result<PackedExperts, DriverError> {
        let &[count, n, k] = tensor.shape else { unreachable!("{}: checked on opening", tensor.name) };
        let len = Gemm::packed_len(n, k);
        let data = DeviceBuffer::new(self.context, count * len)?;
        for expert in 0..count {
            let content = match tensor.content {
                Content::Stored(bytes) => Content::Stored(&bytes[expert * 2 * n * k..(expert + 1) * 2 * n * k]),
                made_up => made_up,
            };
            let name = format!("{}.{expert}", tensor.name);
            self.pack(&name, content, data.slice(expert * len..(expert + 1) * len), n, k)?;
        }
        Ok(PackedExperts { data, n, k })
    }

    /// One matrix `[n][k]`, in fragment order from the first element of `target` on.
    fn pack(
        &mut self,
        name: &str,
        content: Content,
        target: DeviceSlice<u16>,
        n: usize,
        k: usize,
    ) -> Result<(), DriverError> {
        match content {
            Content::Stored(bytes) => {
                let mut row = 0;
                for piece in bytes.chunks(self.piece_bytes(16 * k * 2)) {
                    let rows = piece.len() / 2 / k;
                    let staged = self.stage(piece)?;
                    let first = Gemm::packed_len(row, k);
                    let target = target.slice(first..first + Gemm::packed_len(rows, k));
                    self.kernels.pack(self.stream, staged, target, rows, k)?;
                    row += rows;
                }
            }
            Content::Synthetic(spread) => {
                let target = target.slice(0..Gemm::packed_len(n, k));
                self.kernels.synthetic_packed(self.stream, name, spread, target, n, k)?;
                self.done(2 * n * k);
            }
        }
        Ok(())
    }

    /// The largest multiple of `unit` bytes that fits a staging buffer, at least one unit.
    fn piece_bytes(&self, unit: usize) -> usize {
        (self.pinned[0].len() * 2 / unit).max(1) * unit
    }

    fn finish(self) -> Result<(), DriverError> {
        self.stream.synchronize()
    }
}
