//! Launchers of a mixture of experts, as [`super::launch`].

use super::Kernels;
use super::bindings::*;
use super::geometry::{expert_gemm_geometry, expert_tiles_max, slab_count};
use super::launch::{Gemm, Result, grid};
use super::launch_rows::ROW_SHARED;
use crate::device::{DeviceSlice, Launch, Stream};

/// Arguments of `g4_expert_input`; rows are `[width]`.
pub struct ExpertInput {
    pub x: DeviceSlice<u16>,
    pub router_scale: DeviceSlice<u16>,
    pub expert_norm: DeviceSlice<u16>,
    pub router_x: DeviceSlice<u16>,
    pub expert_x: DeviceSlice<u16>,
    pub rows: usize,
    pub eps: f32,
}

/// Where rows go: for each pair, which is a row at one of its experts, in rank order.
#[derive(Clone, Copy)]
pub struct Routed {
    /// `[rows][top]`, -1: nowhere.
    pub expert: DeviceSlice<i32>,
    /// `[rows][top]`
    pub weight: DeviceSlice<f32>,
    /// `[rows][top]` pairs by expert, once they are grouped.
    pub list: DeviceSlice<i32>,
    /// As many as there can be, and how many there are.
    pub tile: DeviceSlice<G4ExpertTile>,
    pub tile_count: DeviceSlice<i32>,
    pub rows: usize,
    pub experts: usize,
    pub top: usize,
}

/// Arguments of `g4_expert_route`.
pub struct ExpertRoute {
    /// `[rows][experts]`
    pub logits: DeviceSlice<f32>,
    pub slot: DeviceSlice<i32>,
    /// `[experts]`
    pub scale: DeviceSlice<u16>,
    pub to: Routed,
}

/// Arguments of `g4_expert_gemm_*`.
pub struct ExpertGemm {
    /// The experts' matrices, one after another; `n` and `k` of one.
    pub w: Gemm,
    pub x: DeviceSlice<u16>,
    /// Whether x has a row a pair and not a row a token.
    pub x_by_pair: bool,
    /// `[pairs][n]`
    pub out: DeviceSlice<u16>,
    pub of: Routed,
}

/// Arguments of `g4_expert_combine`.
pub struct ExpertCombine {
    /// `[rows][width]`, in place.
    pub y: DeviceSlice<u16>,
    /// `[pairs][width]`
    pub down: DeviceSlice<u16>,
    pub dense_norm: DeviceSlice<u16>,
    pub expert_norm: DeviceSlice<u16>,
    pub of: Routed,
    pub eps: f32,
}

/// Two sums, and a row's experts and weights (csrc/kernels/expert_combine.cu).
const COMBINE_SHARED: usize = 2176;
/// 256 counts, 256 places and the sums of 8 warps (csrc/kernels/expert_group.cu).
const GROUP_SHARED: usize = 2112;

/// Tokens of a tile: few while that holds what an expert has on average, as in a decode step.
pub fn expert_tile_tokens(pairs: usize, experts: usize) -> usize {
    let few = G4_EXPERT_TILE_TOKENS as usize;
    if pairs <= few * experts { few } else { G4_EXPERT_TILE_TOKENS_MANY as usize }
}

/// The fewest rows, each at `top` of `experts`, for which tiles are large.
pub fn expert_rows_many(experts: usize, top: usize) -> usize {
    G4_EXPERT_TILE_TOKENS as usize * experts / top + 1
}

impl Routed {
    fn pairs(&self) -> usize {
        self.rows * self.top
    }

    fn tile_tokens(&self) -> usize {
        expert_tile_tokens(self.pairs(), self.experts)
    }

    fn tiles_max(&self) -> usize {
        expert_tiles_max(self.pairs(), self.experts, self.tile_tokens())
    }

    fn check(&self) {
        let pairs = self.pairs();
        assert!(self.expert.len() >= pairs && self.weight.len() >= pairs && self.list.len() >= pairs);
        assert!(self.tile.len() >= self.tiles_max() && self.tile_count.len() == 1);
        assert!(self.experts <= G4_EXPERTS_MAX as usize && self.top <= G4_EXPERTS_TOP_MAX as usize);
        assert!((1..=self.experts).contains(&self.top));
    }
}

impl Kernels {
    /// What a router and its experts read of `rows` rows of the residual stream.
    pub fn expert_input(&self, s: &Stream, a: &ExpertInput) -> Result {
        let width = a.router_scale.len();
        assert!(a.expert_norm.len() == width && a.x.len() >= a.rows * width);
        assert!(a.router_x.len() >= a.rows * width && a.expert_x.len() >= a.rows * width);
        let params = G4ExpertInputParams {
            x: a.x.ptr(),
            router_scale: a.router_scale.ptr(),
            expert_weight: a.expert_norm.ptr(),
            router_x: a.router_x.ptr(),
            expert_x: a.expert_x.ptr(),
            rows: a.rows as i32,
            width: width as i32,
            root: (1.0 / (width as f64).sqrt()) as f32,
            eps: a.eps,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_expert_input, grid(a.rows, 1, G4_ROW_THREADS, ROW_SHARED), &params) }
    }

    /// Each row's experts and their weights, then pairs grouped by expert.
    pub fn expert_route(&self, s: &Stream, a: &ExpertRoute) -> Result {
        let to = a.to;
        to.check();
        assert!(a.logits.len() >= to.rows * to.experts && a.slot.len() >= to.rows && a.scale.len() == to.experts);
        let params = G4ExpertRouteParams {
            logits: a.logits.ptr(),
            slot: a.slot.ptr(),
            scale: a.scale.ptr(),
            expert: to.expert.ptr(),
            weight: to.weight.ptr(),
            rows: to.rows as i32,
            experts: to.experts as i32,
            top: to.top as i32,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_expert_route, grid(to.rows.div_ceil(8), 1, 256, 0), &params)? };
        let params = G4ExpertGroupParams {
            expert: to.expert.ptr(),
            list: to.list.ptr(),
            tile: to.tile.ptr(),
            tile_count: to.tile_count.ptr(),
            pairs: to.pairs() as i32,
            experts: to.experts as i32,
            tile_tokens: to.tile_tokens() as i32,
        };
        // SAFETY: lengths asserted in check; the router writes experts below their number, or -1.
        unsafe { self.launch(s, G4_ID_g4_expert_group, grid(1, 1, G4_EXPERTS_MAX, GROUP_SHARED), &params) }
    }

    /// `out[pair] = bf16(x W^T)` with the matrix of the pair's expert.
    pub fn expert_gemm(&self, s: &Stream, a: &ExpertGemm) -> Result {
        let (w, of, pairs) = (a.w, a.of, a.of.pairs());
        of.check();
        let x_rows = if a.x_by_pair { pairs } else { of.rows };
        assert!(w.weight.len() == of.experts * Gemm::packed_len(w.n, w.k) && w.k.is_multiple_of(8));
        assert!(a.x.len() >= x_rows * w.k && a.out.len() >= pairs * w.n);
        let slabs = slab_count(w.k);
        let params = G4ExpertGemmParams {
            weight: w.weight.ptr(),
            x: a.x.ptr(),
            out: a.out.ptr(),
            tile: of.tile.ptr(),
            tile_count: of.tile_count.ptr(),
            list: of.list.ptr(),
            n: w.n as i32,
            k: w.k as i32,
            x_stride: w.k as i32,
            out_stride: w.n as i32,
            slabs: slabs as i32,
            pairs_a_row: if a.x_by_pair { 1 } else { of.top as i32 },
        };
        let tile = of.tile_tokens();
        let (x, y, shared) = expert_gemm_geometry(tile, w.n, slabs, of.tiles_max(), self.shared_bytes_max);
        let few = tile == G4_EXPERT_TILE_TOKENS as usize;
        let id = if few { G4_ID_g4_expert_gemm_t1 } else { G4_ID_g4_expert_gemm_t8 };
        let launch: Launch = grid(x, y, G4_GEMM_THREADS, shared);
        // SAFETY: lengths asserted above; tiles and list are those of these pairs (expert_route).
        unsafe { self.launch(s, id, launch, &params) }
    }

    /// The weighted sum of a row's experts, and both branches' norms, summed into `y`.
    pub fn expert_combine(&self, s: &Stream, a: &ExpertCombine) -> Result {
        let (width, of) = (a.dense_norm.len(), a.of);
        of.check();
        assert!(width.is_multiple_of(8) && a.expert_norm.len() == width && a.y.len() >= of.rows * width);
        assert!(a.down.len() >= of.pairs() * width);
        let params = G4ExpertCombineParams {
            y: a.y.ptr(),
            down: a.down.ptr(),
            expert: of.expert.ptr(),
            weight: of.weight.ptr(),
            dense_weight: a.dense_norm.ptr(),
            expert_weight: a.expert_norm.ptr(),
            rows: of.rows as i32,
            width: width as i32,
            top: of.top as i32,
            eps: a.eps,
        };
        let launch = grid(of.rows, 1, G4_ROW_THREADS, COMBINE_SHARED);
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_expert_combine, launch, &params) }
    }
}
