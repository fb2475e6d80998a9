//! What each layer is: its kind, head dim and KV heads, from either spelling of the configuration, and the rotary
//! embedding of each kind.

use super::config::{HEADS_MAX, HIDDEN_MAX};
use super::fields::{ConfigError, Fields, shown};

/// One decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    pub kind: LayerKind,
    pub head_dim: usize,
    pub kv_heads: usize,
    /// V is the raw K projection; the checkpoint holds no v_proj for this layer.
    pub k_eq_v: bool,
    /// I: width of the gated MLP.
    pub intermediate: usize,
    /// The layer whose K and V this one reads, at the current tokens too; none: it has its own.
    pub kv_donor: Option<usize>,
}

impl LayerConfig {
    /// Whether the layer projects, caches and reads K and V of its own.
    pub fn owns_kv(&self) -> bool {
        self.kv_donor.is_none()
    }

    /// Rows of the layer's q | k | v product, with `heads` query heads.
    pub fn qkv_width(&self, heads: usize) -> usize {
        let kv_parts = match (self.owns_kv(), self.k_eq_v) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        };
        (heads + self.kv_heads * kv_parts) * self.head_dim
    }
}

/// Which keys a layer sees, and so which family of the KV cache it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// The last `window` tokens.
    Sliding,
    /// All tokens.
    Global,
}

/// Rotary embedding of one kind of layer: dim i < `pairs` turns with dim i + head_dim / 2 by
/// position * theta^(-2 i / head_dim); the other dims pass through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    pub theta: f64,
    pub pairs: usize,
    pub head_dim: usize,
}

const LAYERS_MAX: usize = 1 << 10;
pub(super) const INTERMEDIATE_MAX: usize = 1 << 20;
/// Head dims of the kernels' attention instances.
const HEAD_DIM_SLIDING: usize = 256;
const HEAD_DIM_GLOBAL: usize = 512;
/// Query heads a KV head of the kernels' attention instances.
const GROUPS: [usize; 5] = [1, 2, 4, 8, 16];
/// Layers from one global layer to the next when `layer_types` is absent.
const GLOBAL_EVERY: usize = 6;

/// Every layer of the text part, in order.
pub(super) fn resolve(text: &Fields, heads: usize) -> Result<Vec<LayerConfig>, ConfigError> {
    let count = text.require_count("num_hidden_layers", 1, LAYERS_MAX)?;
    let kinds = layer_kinds(text, count)?;
    let intermediate = text.require_count("intermediate_size", 16, INTERMEDIATE_MAX)?;
    if intermediate % 16 != 0 {
        let why = "gate and up share one packed weight, whose tiles hold 16 rows";
        return Err(text.unsupported("intermediate_size", intermediate, why));
    }
    let k_eq_v = text.flag("attention_k_eq_v")?.unwrap_or(false);
    let base_kv = text.require_count("num_key_value_heads", 1, HEADS_MAX)?;
    let base_dim = text.count("head_dim", 1, HIDDEN_MAX)?.unwrap_or(HEAD_DIM_SLIDING);
    let donors = kv_donors(text, &kinds)?;
    let is_double_wide = text.flag("use_double_wide_mlp")?.unwrap_or(false);
    if is_double_wide && 2 * intermediate > INTERMEDIATE_MAX {
        let why = format!("with use_double_wide_mlp at most {}", INTERMEDIATE_MAX / 2);
        return Err(text.unsupported("intermediate_size", intermediate, why));
    }
    let overrides = text.object("per_layer_config")?;
    if let Some(overrides) = &overrides {
        check_overrides(overrides, count)?;
    }
    // Without `per_layer_config` the published rules hold: global layers have a head dim of their own, and their KV
    // head count counts only when K = V. With it, what it does not say is what the sliding layers have.
    let global_dim = text.count("global_head_dim", 1, HIDDEN_MAX)?;
    let global_dim = global_dim.unwrap_or(if overrides.is_some() { base_dim } else { HEAD_DIM_GLOBAL });
    let global_kv = text.count("num_global_key_value_heads", 1, HEADS_MAX)?.filter(|_| k_eq_v).unwrap_or(base_kv);

    let mut layers: Vec<LayerConfig> = Vec::with_capacity(count);
    for (index, (kind, kv_donor)) in kinds.into_iter().zip(donors).enumerate() {
        let own = overrides.as_ref().map_or(Ok(None), |o| o.object(&index.to_string()))?;
        let (dim_field, kv_field) = match (&own, kind) {
            (Some(_), _) => ("head_dim", "num_key_value_heads"),
            (None, LayerKind::Global) if overrides.is_none() => ("global_head_dim", "num_global_key_value_heads"),
            (None, _) => ("head_dim", "num_key_value_heads"),
        };
        let (dim, kv) = if kind == LayerKind::Global { (global_dim, global_kv) } else { (base_dim, base_kv) };
        let fields = own.as_ref().unwrap_or(text);
        let layer = LayerConfig {
            kind,
            head_dim: own.as_ref().map_or(Ok(None), |o| o.count("head_dim", 1, HIDDEN_MAX))?.unwrap_or(dim),
            kv_heads: own.as_ref().map_or(Ok(None), |o| o.count("num_key_value_heads", 1, HEADS_MAX))?.unwrap_or(kv),
            k_eq_v: k_eq_v && kind == LayerKind::Global,
            intermediate: if is_double_wide && kv_donor.is_some() { 2 * intermediate } else { intermediate },
            kv_donor,
        };
        check_attention(fields, dim_field, kv_field, index, heads, &layer)?;
        if let Some(donor) = kv_donor.filter(|&donor| layers[donor].kv_heads != layer.kv_heads) {
            let why = format!("layer {index} reads K and V of layer {donor}, which has {}", layers[donor].kv_heads);
            return Err(fields.unsupported(kv_field, layer.kv_heads, why));
        }
        layers.push(layer);
    }
    Ok(layers)
}

fn layer_kinds(text: &Fields, count: usize) -> Result<Vec<LayerKind>, ConfigError> {
    let mut kinds = match text.list("layer_types")? {
        None => (0..count)
            .map(|i| if (i + 1) % GLOBAL_EVERY == 0 { LayerKind::Global } else { LayerKind::Sliding })
            .collect(),
        Some(list) if list.len() != count => {
            let why = format!("num_hidden_layers is {count}");
            return Err(text.unsupported("layer_types", format!("a list of {}", list.len()), why));
        }
        Some(list) => list
            .iter()
            .map(|v| match v.as_str() {
                Some("sliding_attention") => Ok(LayerKind::Sliding),
                Some("full_attention") => Ok(LayerKind::Global),
                _ => Err(text.unsupported("layer_types", shown(v), "expected sliding_attention or full_attention")),
            })
            .collect::<Result<Vec<_>, _>>()?,
    };
    // The reference does so too, whatever the list says.
    kinds[count - 1] = LayerKind::Global;
    Ok(kinds)
}

/// The layer each one reads K and V of: of the last `num_kv_shared_layers`, the last of their kind before all of them.
fn kv_donors(text: &Fields, kinds: &[LayerKind]) -> Result<Vec<Option<usize>>, ConfigError> {
    let key = "num_kv_shared_layers";
    let shared = text.count(key, 0, LAYERS_MAX)?.unwrap_or(0);
    let Some(first_shared) = kinds.len().checked_sub(shared) else {
        return Err(text.unsupported(key, shared, format!("num_hidden_layers is {}", kinds.len())));
    };
    let donor = |index: usize| {
        if index < first_shared {
            return Ok(None);
        }
        let found = kinds[..first_shared].iter().rposition(|kind| *kind == kinds[index]);
        let why = || format!("no layer before {first_shared} is of the kind of layer {index}, so it has no K and V");
        found.map(Some).ok_or_else(|| text.unsupported(key, shared, why()))
    };
    (0..kinds.len()).map(donor).collect()
}

fn check_overrides(overrides: &Fields, layers: usize) -> Result<(), ConfigError> {
    for key in overrides.keys() {
        if !key.parse::<usize>().is_ok_and(|i| i < layers && i.to_string() == key) {
            return Err(overrides.unsupported(key, "present", format!("expected a layer index below {layers}")));
        }
        let layer = overrides.object(key)?.ok_or_else(|| overrides.missing(key))?;
        for field in layer.keys() {
            if !["head_dim", "num_key_value_heads"].contains(&field) {
                return Err(layer.unsupported(field, "present", "a per-layer value of this field is unknown"));
            }
        }
    }
    Ok(())
}

fn check_attention(
    fields: &Fields,
    dim_field: &str,
    kv_field: &str,
    index: usize,
    heads: usize,
    layer: &LayerConfig,
) -> Result<(), ConfigError> {
    let (kind, head_dim) = match layer.kind {
        LayerKind::Sliding => ("sliding", HEAD_DIM_SLIDING),
        LayerKind::Global => ("global", HEAD_DIM_GLOBAL),
    };
    if layer.head_dim != head_dim {
        let why = format!("layer {index} is {kind}, and the kernels have {head_dim} there");
        return Err(fields.unsupported(dim_field, layer.head_dim, why));
    }
    if !heads.is_multiple_of(layer.kv_heads) || !GROUPS.contains(&(heads / layer.kv_heads)) {
        let why = format!(
            "layer {index} has {heads} query heads (num_attention_heads), \
             and the kernels have 1, 2, 4, 8 or 16 a KV head"
        );
        return Err(fields.unsupported(kv_field, layer.kv_heads, why));
    }
    Ok(())
}

/// Rotary parameters of sliding and global layers; absent ones are those every published checkpoint has.
pub(super) fn ropes(text: &Fields) -> Result<(RopeConfig, RopeConfig), ConfigError> {
    let all = text.object("rope_parameters")?;
    let part = |key| all.as_ref().map_or(Ok(None), |all: &Fields| all.object(key));
    Ok((
        rope(part("sliding_attention")?, "default", 1e4, HEAD_DIM_SLIDING, 1.0)?,
        rope(part("full_attention")?, "proportional", 1e6, HEAD_DIM_GLOBAL, 0.25)?,
    ))
}

fn rope(
    fields: Option<Fields>,
    rope_type: &str,
    theta: f64,
    head_dim: usize,
    rotary: f64,
) -> Result<RopeConfig, ConfigError> {
    let pairs_of = |rotary: f64| (rotary * head_dim as f64 / 2.0) as usize;
    let Some(fields) = fields else {
        return Ok(RopeConfig { theta, pairs: pairs_of(rotary), head_dim });
    };
    for key in fields.keys() {
        if !["rope_type", "rope_theta", "partial_rotary_factor", "factor"].contains(&key) {
            return Err(fields.unsupported(key, "present", "this rotary parameter is unknown"));
        }
    }
    if let Some(name) = fields.string("rope_type")?.filter(|&name| name != rope_type) {
        return Err(fields.unsupported("rope_type", name, format!("expected {rope_type}")));
    }
    if let Some(factor) = fields.number("factor", 0.0, 1e9)?.filter(|&factor| factor != 1.0) {
        return Err(fields.unsupported("factor", factor, "scaled rotary embeddings are not served"));
    }
    let rotary = fields.number("partial_rotary_factor", 0.0, 1.0)?.unwrap_or(rotary);
    let pairs = pairs_of(rotary);
    if pairs == 0 || (rope_type == "default" && pairs != head_dim / 2) {
        let why = format!("it turns {pairs} pairs of a {rope_type} head of {head_dim}");
        return Err(fields.unsupported("partial_rotary_factor", rotary, why));
    }
    Ok(RopeConfig { theta: fields.number("rope_theta", 1.0, 1e12)?.unwrap_or(theta), pairs, head_dim })
}
