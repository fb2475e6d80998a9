//! Launchers of the kernels that work on rows, as [`super::launch`].

use super::Kernels;
use super::bindings::*;
use super::launch::{Gemm, Result, grid};
use crate::device::{DeviceSlice, Stream};

/// Rows that stand `stride` elements apart; the slice begins with the first one.
#[derive(Clone, Copy)]
pub struct Strided {
    pub data: DeviceSlice<u16>,
    pub stride: usize,
}

impl Strided {
    /// Gate and up, each `width` wide, that stand beside each other in rows.
    pub fn halves(gate_up: DeviceSlice<u16>, width: usize) -> [Strided; 2] {
        let up = gate_up.slice(width..gate_up.len());
        [gate_up, up].map(|data| Strided { data, stride: 2 * width })
    }

    fn holds(&self, rows: usize, width: usize) -> bool {
        self.stride.is_multiple_of(8)
            && self.stride >= width
            && self.data.len() + self.stride >= rows * self.stride + width
    }
}

/// Arguments of `g4_per_layer_input`.
pub struct PerLayerInput {
    /// `[vocab][layers][width]`
    pub table: DeviceSlice<u16>,
    /// bf16 bits of sqrt(width).
    pub table_scale: u16,
    pub token: DeviceSlice<i32>,
    /// `[width]`
    pub norm: DeviceSlice<u16>,
    /// `[rows][layers][width]`
    pub x: DeviceSlice<u16>,
    /// hidden^-0.5
    pub context_scale: f32,
    pub rows: usize,
    pub layers: usize,
    pub eps: f32,
}

/// Shared bytes of one row reduction.
pub(super) const ROW_SHARED: usize = 1024;

impl Kernels {
    /// Scaled embeddings of `rows` tokens; a negative token gives zeros.
    pub fn embed(
        &self,
        s: &Stream,
        table: Gemm,
        token: DeviceSlice<i32>,
        x: DeviceSlice<u16>,
        rows: usize,
        scale_bf16: u16,
    ) -> Result {
        let hidden = table.k;
        assert!(token.len() >= rows && x.len() >= rows * hidden);
        let params = G4EmbedParams {
            table: table.weight.ptr(),
            token: token.ptr(),
            x: x.ptr(),
            rows: rows as i32,
            hidden: hidden as i32,
            scale_bf16: scale_bf16.into(),
        };
        // SAFETY: lengths asserted above; tokens are below the vocabulary (checked at admission, or the sampler's).
        unsafe { self.launch(s, G4_ID_g4_embed, grid(rows, 1, G4_ROW_THREADS, 0), &params) }
    }

    /// RMSNorm of `rows` rows.
    pub fn rmsnorm(
        &self,
        s: &Stream,
        x: DeviceSlice<u16>,
        weight: DeviceSlice<u16>,
        out: DeviceSlice<u16>,
        rows: usize,
        eps: f32,
    ) -> Result {
        let width = weight.len();
        assert!(x.len() >= rows * width && out.len() >= rows * width);
        let params = G4RmsNormParams {
            x: x.ptr(),
            weight: weight.ptr(),
            out: out.ptr(),
            rows: rows as i32,
            width: width as i32,
            eps,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_rmsnorm, grid(rows, 1, G4_ROW_THREADS, ROW_SHARED), &params) }
    }

    /// `x += RN(y; post)`, times the layer scalar if given, then `normed = RN(x; next)` if given as `(next, normed)`.
    #[allow(clippy::too_many_arguments)]
    pub fn add_norm(
        &self,
        s: &Stream,
        x: DeviceSlice<u16>,
        y: DeviceSlice<u16>,
        post: DeviceSlice<u16>,
        layer_scalar: Option<DeviceSlice<u16>>,
        next: Option<(DeviceSlice<u16>, DeviceSlice<u16>)>,
        rows: usize,
        eps: f32,
    ) -> Result {
        let width = post.len();
        assert!(x.len() >= rows * width && y.len() >= rows * width);
        assert!(next.is_none_or(|(weight, normed)| weight.len() == width && normed.len() >= rows * width));
        let params = G4AddNormParams {
            x: x.ptr(),
            y: y.ptr(),
            post_weight: post.ptr(),
            layer_scalar: layer_scalar.map_or(std::ptr::null(), |v| v.ptr().cast_const()),
            next_weight: next.map_or(std::ptr::null(), |(weight, _)| weight.ptr().cast_const()),
            normed: next.map_or(std::ptr::null_mut(), |(_, normed)| normed.ptr()),
            rows: rows as i32,
            width: width as i32,
            eps,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_add_norm, grid(rows, 1, G4_ROW_THREADS, 2 * ROW_SHARED), &params) }
    }

    /// `out = gelu(gate) * up`, `[rows][width]`.
    pub fn gelu_gate(
        &self,
        s: &Stream,
        gate: Strided,
        up: Strided,
        out: DeviceSlice<u16>,
        rows: usize,
        width: usize,
    ) -> Result {
        assert!(gate.holds(rows, width) && up.holds(rows, width) && out.len() >= rows * width);
        let params = G4GeluGateParams {
            gate: gate.data.ptr(),
            up: up.data.ptr(),
            out: out.ptr(),
            rows: rows as i32,
            width: width as i32,
            gate_stride: gate.stride as i32,
            up_stride: up.stride as i32,
        };
        // SAFETY: lengths asserted above.
        unsafe { self.launch(s, G4_ID_g4_gelu_gate, grid(rows, width.div_ceil(2048), G4_ROW_THREADS, 0), &params) }
    }

    /// Per-layer embeddings of `rows` tokens, in place over the context projection.
    pub fn per_layer_input(&self, s: &Stream, a: &PerLayerInput) -> Result {
        let (width, rows) = (a.norm.len(), a.rows);
        let all = a.layers * width;
        assert!(width.is_multiple_of(8) && width <= 512);
        assert!(a.x.len() >= rows * all && a.token.len() >= rows && a.table.len().is_multiple_of(all));
        let params = G4PerLayerInputParams {
            table: a.table.ptr(),
            token: a.token.ptr(),
            weight: a.norm.ptr(),
            x: a.x.ptr(),
            rows: rows as i32,
            layers: a.layers as i32,
            width: width as i32,
            context_scale: a.context_scale,
            table_scale_bf16: a.table_scale.into(),
            eps: a.eps,
        };
        let launch = grid(rows, a.layers.div_ceil(8), G4_ROW_THREADS, 0);
        // SAFETY: lengths asserted above; tokens are below the vocabulary (checked at admission, or the sampler's).
        unsafe { self.launch(s, G4_ID_g4_per_layer_input, launch, &params) }
    }
}
