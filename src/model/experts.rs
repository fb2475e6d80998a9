//! The mixture of experts beside a layer's dense MLP: its buffers and the order of its kernels (spec/gemma4.md, 2.5).
//!
//! Routing, grouping, products and the sum are all on the device, in grids that depend on the count of rows alone: the
//! same launches in a decode graph and in a prompt chunk, whichever experts the rows go to. A pair (a row at one of its
//! experts) has the bits of that row alone, so neighbours that share an expert change nothing.
//!
//! Per layer: router and expert inputs of the residual, router logits, route, group, gate/up product of pairs, GELU,
//! down product, sum. Padding rows go to no expert: a bucket with room would else read the weights of experts that
//! nobody asked for.

use super::config::ExpertsConfig;
use super::footprint::Widths;
use super::forward::Rows;
use super::kernels::{ExpertCombine, ExpertGemm, ExpertInput, ExpertRoute, G4ExpertTile, Kernels, Routed, Strided};
use super::weights::ExpertWeights;
use crate::device::{Context, DeviceBuffer, DeviceSlice, DriverError, Stream};

/// Buffers of the experts, reused by every layer.
pub struct Experts {
    config: ExpertsConfig,
    /// `[rows][hidden]`
    x: DeviceBuffer<u16>,
    /// `[rows][experts]`: the router's.
    logits: DeviceBuffer<f32>,
    /// `[rows][top]`
    expert: DeviceBuffer<i32>,
    weight: DeviceBuffer<f32>,
    list: DeviceBuffer<i32>,
    /// One a pair: there are never more.
    tile: DeviceBuffer<G4ExpertTile>,
    tile_count: DeviceBuffer<i32>,
    /// `[rows][top][2 * intermediate]`
    gate_up: DeviceBuffer<u16>,
    /// `[rows][top][intermediate]`
    gated: DeviceBuffer<u16>,
    /// `[rows][top][hidden]`
    down: DeviceBuffer<u16>,
}

/// What the experts read and write of the layer around them.
pub struct ExpertsOf {
    /// The residual stream after attention.
    pub x: DeviceSlice<u16>,
    /// A free row buffer: the router's input.
    pub router_x: DeviceSlice<u16>,
    /// The dense MLP's output, and then the sum of both branches.
    pub y: DeviceSlice<u16>,
    pub rows: Rows,
    pub eps: f32,
}

impl Experts {
    pub(super) fn new(context: &Context, widths: &Widths, rows: usize) -> Result<Option<Self>, DriverError> {
        let Some(config) = widths.experts else {
            return Ok(None);
        };
        let pairs = rows * config.top;
        Ok(Some(Experts {
            config,
            x: DeviceBuffer::new(context, rows * widths.h)?,
            logits: DeviceBuffer::new(context, rows * config.count)?,
            expert: DeviceBuffer::new(context, pairs)?,
            weight: DeviceBuffer::new(context, pairs)?,
            list: DeviceBuffer::new(context, pairs)?,
            tile: DeviceBuffer::new(context, pairs)?,
            tile_count: DeviceBuffer::new(context, 1)?,
            gate_up: DeviceBuffer::new(context, pairs * 2 * config.intermediate)?,
            gated: DeviceBuffer::new(context, pairs * config.intermediate)?,
            down: DeviceBuffer::new(context, pairs * widths.h)?,
        }))
    }

    /// Enqueues one layer's experts.
    pub fn run(&self, s: &Stream, k: &Kernels, w: &ExpertWeights, a: &ExpertsOf) -> Result<(), DriverError> {
        let (rows, config) = (a.rows.count, self.config);
        let input = ExpertInput {
            x: a.x,
            router_scale: w.router_scale.all(),
            expert_norm: w.pre_norm.all(),
            router_x: a.router_x,
            expert_x: self.x.all(),
            rows,
            eps: a.eps,
        };
        k.expert_input(s, &input)?;
        k.logits(s, w.router.gemm(), a.router_x, self.logits.all(), rows, 0.0)?;
        let routed = Routed {
            expert: self.expert.all(),
            weight: self.weight.all(),
            list: self.list.all(),
            tile: self.tile.all(),
            tile_count: self.tile_count.all(),
            rows,
            experts: config.count,
            top: config.top,
        };
        let scale = w.expert_scale.all();
        k.expert_route(s, &ExpertRoute { logits: self.logits.all(), slot: a.rows.slot, scale, to: routed })?;
        let product = |w, x, x_by_pair, out| k.expert_gemm(s, &ExpertGemm { w, x, x_by_pair, out, of: routed });
        product(w.gate_up.gemm(), self.x.all(), false, self.gate_up.all())?;
        let m = config.intermediate;
        let [gate, up] = Strided::halves(self.gate_up.all(), m);
        k.gelu_gate(s, gate, up, self.gated.all(), rows * config.top, m)?;
        product(w.down.gemm(), self.gated.all(), true, self.down.all())?;
        let combine = ExpertCombine {
            y: a.y,
            down: self.down.all(),
            dense_norm: w.dense_post_norm.all(),
            expert_norm: w.post_norm.all(),
            of: routed,
            eps: a.eps,
        };
        k.expert_combine(s, &combine)
    }
}
