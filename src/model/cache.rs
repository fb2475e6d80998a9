//! The KV cache on the device: one K and one V pool a layer, page tables a family, and the sliding chunk scratch.
//!
//! A page id is the same page in every layer of its family. Sliding layers see a slot's pages as a ring; global layers
//! as a list that never wraps. A prompt chunk's sliding K and V go to scratch shared by all layers: attention reads the
//! ring before the chunk and scratch from it on, and the last tokens are copied to the ring afterwards.
//!
//! A layer that shares another's K and V has no pools: its views are those of its donor. The sliding donor is the last
//! sliding layer with K and V of its own, so no layer behind it writes scratch, and its sharers read the chunk there as
//! it does; the ring gets the chunk's last tokens after the last of them, since they too read what stood in it before.

use super::config::{LayerConfig, LayerKind, ModelConfig};
use super::kernels::G4KvView;
use super::plan::Geometry;
use crate::device::{Context, DeviceBuffer, DriverError, Stream};

/// Byte that page tables are filled with: every entry -1, nothing granted.
const NOT_GRANTED: u8 = 0xff;

pub struct KvCache {
    /// None where the layer reads another's.
    layers: Vec<Option<LayerPools>>,
    /// By layer, whose pools it reads.
    owners: Vec<usize>,
    /// `[slots][sliding.table_pages]`
    pub sliding_table: DeviceBuffer<i32>,
    /// `[slots][global.table_pages]`
    pub global_table: DeviceBuffer<i32>,
    scratch_k: DeviceBuffer<u16>,
    scratch_v: DeviceBuffer<u16>,
    geometry: Geometry,
}

struct LayerPools {
    layer: LayerConfig,
    k: DeviceBuffer<u16>,
    v: DeviceBuffer<u16>,
}

impl KvCache {
    pub fn new(context: &Context, stream: &Stream, config: &ModelConfig, g: &Geometry) -> Result<Self, DriverError> {
        let mut layers = Vec::with_capacity(config.layers.len());
        for &layer in &config.layers {
            let family = g.family(layer.kind);
            let len = family.pages * family.page_tokens * layer.kv_heads * layer.head_dim;
            let pools =
                || Ok(LayerPools { layer, k: DeviceBuffer::new(context, len)?, v: DeviceBuffer::new(context, len)? });
            layers.push(layer.owns_kv().then(pools).transpose()?);
        }
        let scratch_token = config.kv_layers_of(LayerKind::Sliding).map(|(_, l)| l.kv_heads * l.head_dim).max();
        let scratch = g.scratch_pages * g.page_tokens_sliding * scratch_token.unwrap_or(0);
        let cache = KvCache {
            layers,
            owners: (0..config.layers.len()).map(|index| config.kv_owner(index)).collect(),
            sliding_table: DeviceBuffer::new(context, g.max_running * g.ring_pages)?,
            global_table: DeviceBuffer::new(context, g.max_running * g.global_table_pages)?,
            scratch_k: DeviceBuffer::new(context, scratch)?,
            scratch_v: DeviceBuffer::new(context, scratch)?,
            geometry: g.clone(),
        };
        stream.fill(cache.sliding_table.all(), NOT_GRANTED)?;
        stream.fill(cache.global_table.all(), NOT_GRANTED)?;
        Ok(cache)
    }

    /// The paged view of what a layer reads: its own K and V, or its donor's.
    pub fn view(&self, layer: usize) -> G4KvView {
        let pools = self.layers[self.owners[layer]].as_ref().expect("a donor has K and V of its own");
        let family = self.geometry.family(pools.layer.kind);
        let table = match pools.layer.kind {
            LayerKind::Sliding => &self.sliding_table,
            LayerKind::Global => &self.global_table,
        };
        G4KvView {
            k: pools.k.ptr(),
            v: pools.v.ptr(),
            table: table.ptr(),
            table_pages: family.table_pages as i32,
            first_page: 0,
            page_tokens: family.page_tokens as i32,
            kv_heads: pools.layer.kv_heads as i32,
            head_dim: pools.layer.head_dim as i32,
        }
    }

    /// The chunk scratch as a sliding layer's view whose first page holds position `start`.
    pub fn scratch_view(&self, layer: usize, start: usize) -> G4KvView {
        G4KvView {
            k: self.scratch_k.ptr(),
            v: self.scratch_v.ptr(),
            table: std::ptr::null(),
            table_pages: 0,
            first_page: (start / self.geometry.page_tokens_sliding) as i32,
            ..self.view(layer)
        }
    }

    /// No view: what `G4AttnPromptParams::recent` holds when everything is read from pages.
    pub fn no_view(&self, layer: usize) -> G4KvView {
        G4KvView { k: std::ptr::null_mut(), v: std::ptr::null_mut(), table: std::ptr::null(), ..self.view(layer) }
    }

    /// What a layer without K and V writes to: nothing.
    pub fn q_only_view(&self, layer: usize) -> G4KvView {
        G4KvView { kv_heads: 0, ..self.no_view(layer) }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Tokens the ring of a slot holds.
    pub fn ring_tokens(&self) -> usize {
        self.geometry.ring_pages * self.geometry.page_tokens_sliding
    }

    /// K and V of every layer that has them, for hashing in tests.
    pub fn pools(&self) -> impl Iterator<Item = (&DeviceBuffer<u16>, &DeviceBuffer<u16>)> {
        self.layers.iter().flatten().map(|pools| (&pools.k, &pools.v))
    }
}
