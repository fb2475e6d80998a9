//! Which tensors a checkpoint of a given configuration holds, by name and shape.
//! The names are those below the prefix of the text tower.

use super::config::{ExpertsConfig, ModelConfig};

/// The tensors of one decoder layer, as expectations, places or views. Shapes are rows by depth, depth contiguous;
/// H is the hidden size, I the intermediate size, hd the layer's head dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTensors<T> {
    /// [H]
    pub input_norm: T,
    /// [heads * hd][H]
    pub q: T,
    /// [kv_heads * hd][H]; none where the layer reads another's K and V.
    pub k: Option<T>,
    /// [kv_heads * hd][H]; none where `k` is, and where V is the raw K projection.
    pub v: Option<T>,
    /// [H][heads * hd]
    pub o: T,
    /// [hd]
    pub q_norm: T,
    /// [hd]; none where `k` is.
    pub k_norm: Option<T>,
    /// [H]
    pub post_attn_norm: T,
    /// [H]
    pub pre_ffw_norm: T,
    /// [I][H]
    pub gate: T,
    /// [I][H]
    pub up: T,
    /// [H][I]
    pub down: T,
    /// [H]
    pub post_ffw_norm: T,
    /// [1]
    pub layer_scalar: T,
    /// In models with a mixture of experts.
    pub experts: Option<ExpertTensors<T>>,
    /// In models with per-layer embeddings.
    pub per_layer: Option<PerLayerBranch<T>>,
}

/// One layer's mixture of experts. E is their number, M the width of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertTensors<T> {
    /// [E][H]
    pub router: T,
    /// [H]
    pub router_scale: T,
    /// [E]
    pub expert_scale: T,
    /// [E][2 M][H], gate rows first. Transposed it is [E][H][2 M], which only a model whose H is 2 M could not tell.
    pub gate_up: T,
    /// [E][H][M]
    pub down: T,
    /// [H]: of the dense MLP's output.
    pub dense_post_norm: T,
    /// [H]: of the experts' input.
    pub pre_norm: T,
    /// [H]: of the experts' output.
    pub post_norm: T,
}

/// What brings a token's per-layer embedding into one layer's residual stream. D is its width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerLayerBranch<T> {
    /// [D][H]
    pub gate: T,
    /// [H][D]
    pub projection: T,
    /// [H]
    pub post_norm: T,
}

/// The tensors outside of the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterTensors<T> {
    /// [V][H]
    pub embed: T,
    /// [H]: the norm before the head.
    pub norm: T,
    /// In models with per-layer embeddings.
    pub per_layer: Option<PerLayerTable<T>>,
}

/// Per-layer embeddings of all L layers, each D wide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerLayerTable<T> {
    /// [V][L * D]: looked up by row, never multiplied.
    pub table: T,
    /// [L * D][H]
    pub projection: T,
    /// [D]
    pub norm: T,
}

/// A tensor a checkpoint must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Name below the prefix.
    pub name: String,
    pub shape: Vec<usize>,
}

impl<T> LayerTensors<T> {
    /// The same tensors as something else, in a fixed order; the first error ends it.
    pub fn try_map<'a, U, E>(&'a self, mut f: impl FnMut(&'a T) -> Result<U, E>) -> Result<LayerTensors<U>, E> {
        Ok(LayerTensors {
            input_norm: f(&self.input_norm)?,
            q: f(&self.q)?,
            k: self.k.as_ref().map(&mut f).transpose()?,
            v: self.v.as_ref().map(&mut f).transpose()?,
            o: f(&self.o)?,
            q_norm: f(&self.q_norm)?,
            k_norm: self.k_norm.as_ref().map(&mut f).transpose()?,
            post_attn_norm: f(&self.post_attn_norm)?,
            pre_ffw_norm: f(&self.pre_ffw_norm)?,
            gate: f(&self.gate)?,
            up: f(&self.up)?,
            down: f(&self.down)?,
            post_ffw_norm: f(&self.post_ffw_norm)?,
            layer_scalar: f(&self.layer_scalar)?,
            experts: match &self.experts {
                Some(of) => Some(ExpertTensors {
                    router: f(&of.router)?,
                    router_scale: f(&of.router_scale)?,
                    expert_scale: f(&of.expert_scale)?,
                    gate_up: f(&of.gate_up)?,
                    down: f(&of.down)?,
                    dense_post_norm: f(&of.dense_post_norm)?,
                    pre_norm: f(&of.pre_norm)?,
                    post_norm: f(&of.post_norm)?,
                }),
                None => None,
            },
            per_layer: match &self.per_layer {
                Some(of) => Some(PerLayerBranch {
                    gate: f(&of.gate)?,
                    projection: f(&of.projection)?,
                    post_norm: f(&of.post_norm)?,
                }),
                None => None,
            },
        })
    }

    pub fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> LayerTensors<U> {
        let Ok(mapped) = self.try_map(|t| Ok::<U, std::convert::Infallible>(f(t)));
        mapped
    }
}

impl<T> OuterTensors<T> {
    /// As [`LayerTensors::try_map`].
    pub fn try_map<'a, U, E>(&'a self, mut f: impl FnMut(&'a T) -> Result<U, E>) -> Result<OuterTensors<U>, E> {
        Ok(OuterTensors {
            embed: f(&self.embed)?,
            norm: f(&self.norm)?,
            per_layer: match &self.per_layer {
                Some(of) => {
                    Some(PerLayerTable { table: f(&of.table)?, projection: f(&of.projection)?, norm: f(&of.norm)? })
                }
                None => None,
            },
        })
    }

    pub fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> OuterTensors<U> {
        let Ok(mapped) = self.try_map(|t| Ok::<U, std::convert::Infallible>(f(t)));
        mapped
    }
}

/// What layer `index` of such a model holds.
pub fn layer(config: &ModelConfig, index: usize) -> LayerTensors<Expected> {
    let of = config.layers[index];
    let (h, i) = (config.hidden, of.intermediate);
    let (q_rows, kv_rows) = (config.heads * of.head_dim, of.kv_heads * of.head_dim);
    let tensor =
        |name: &str, shape: &[usize]| Expected { name: format!("layers.{index}.{name}"), shape: shape.to_vec() };
    LayerTensors {
        input_norm: tensor("input_layernorm.weight", &[h]),
        q: tensor("self_attn.q_proj.weight", &[q_rows, h]),
        k: of.owns_kv().then(|| tensor("self_attn.k_proj.weight", &[kv_rows, h])),
        v: (of.owns_kv() && !of.k_eq_v).then(|| tensor("self_attn.v_proj.weight", &[kv_rows, h])),
        o: tensor("self_attn.o_proj.weight", &[h, q_rows]),
        q_norm: tensor("self_attn.q_norm.weight", &[of.head_dim]),
        k_norm: of.owns_kv().then(|| tensor("self_attn.k_norm.weight", &[of.head_dim])),
        post_attn_norm: tensor("post_attention_layernorm.weight", &[h]),
        pre_ffw_norm: tensor("pre_feedforward_layernorm.weight", &[h]),
        gate: tensor("mlp.gate_proj.weight", &[i, h]),
        up: tensor("mlp.up_proj.weight", &[i, h]),
        down: tensor("mlp.down_proj.weight", &[h, i]),
        post_ffw_norm: tensor("post_feedforward_layernorm.weight", &[h]),
        layer_scalar: tensor("layer_scalar", &[1]),
        experts: config.experts.map(|ExpertsConfig { count, intermediate: m, .. }| ExpertTensors {
            router: tensor("router.proj.weight", &[count, h]),
            router_scale: tensor("router.scale", &[h]),
            expert_scale: tensor("router.per_expert_scale", &[count]),
            gate_up: tensor("experts.gate_up_proj", &[count, 2 * m, h]),
            down: tensor("experts.down_proj", &[count, h, m]),
            dense_post_norm: tensor("post_feedforward_layernorm_1.weight", &[h]),
            pre_norm: tensor("pre_feedforward_layernorm_2.weight", &[h]),
            post_norm: tensor("post_feedforward_layernorm_2.weight", &[h]),
        }),
        per_layer: config.per_layer_width.map(|d| PerLayerBranch {
            gate: tensor("per_layer_input_gate.weight", &[d, h]),
            projection: tensor("per_layer_projection.weight", &[h, d]),
            post_norm: tensor("post_per_layer_input_norm.weight", &[h]),
        }),
    }
}

/// What the model holds outside of its layers.
pub fn outer(config: &ModelConfig) -> OuterTensors<Expected> {
    let tensor = |name: &str, shape: &[usize]| Expected { name: name.to_owned(), shape: shape.to_vec() };
    let per_layer = config.per_layer_width.map(|d| {
        let all = config.layers.len() * d;
        PerLayerTable {
            table: tensor("embed_tokens_per_layer.weight", &[config.vocab, all]),
            projection: tensor("per_layer_model_projection.weight", &[all, config.hidden]),
            norm: tensor("per_layer_projection_norm.weight", &[d]),
        }
    });
    OuterTensors {
        embed: tensor(EMBED, &[config.vocab, config.hidden]),
        norm: tensor("norm.weight", &[config.hidden]),
        per_layer,
    }
}

/// Everything such a model holds: what is outside of the layers, then the layers in order.
pub fn all(config: &ModelConfig) -> Vec<Expected> {
    let mut all = Vec::new();
    outer(config).map(|tensor| all.push(tensor.clone()));
    for index in 0..config.layers.len() {
        layer(config, index).map(|tensor| all.push(tensor.clone()));
    }
    all
}

/// Whether a tensor, named below the prefix, is of those that published files still hold for layers which read
/// another's K and V. They are never read, whatever their shape.
pub fn is_unused(config: &ModelConfig, name: &str) -> bool {
    const OF_KV: [&str; 3] = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];
    let of_layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    of_layer.is_some_and(|(index, rest)| {
        let layer = index.parse().ok().and_then(|index: usize| config.layers.get(index));
        OF_KV.contains(&rest) && layer.is_some_and(|layer| !layer.owns_kv())
    })
}

/// Name below the prefix by which the prefix is found.
pub const EMBED: &str = "embed_tokens.weight";

/// A place of the text tower in a checkpoint: what stands before its tensors' names, before the other towers' names,
/// and the name of the head where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub text: &'static str,
    pub towers: &'static str,
    pub head: &'static str,
}

/// As published; as some converters write it; text-only exports.
pub const PREFIXES: [Prefix; 3] = [
    Prefix { text: "model.language_model.", towers: "model.", head: "lm_head.weight" },
    Prefix { text: "language_model.model.", towers: "", head: "language_model.lm_head.weight" },
    Prefix { text: "model.", towers: "model.", head: "lm_head.weight" },
];

/// Whether a tensor belongs to what a text-only server leaves out: the other modalities' towers, and the ranges that
/// quantisation-aware training leaves behind.
pub fn is_skipped(name: &str, prefix: &Prefix) -> bool {
    const RANGES: [&str; 6] = ["input_min", "input_max", "output_min", "output_max", "k_cache_scale", "v_cache_scale"];
    is_of_other_tower(name, prefix) || name.rsplit_once('.').is_some_and(|(_, last)| RANGES.contains(&last))
}

/// Whether a tensor belongs to another modality's tower.
pub fn is_of_other_tower(name: &str, prefix: &Prefix) -> bool {
    const TOWERS: [&str; 5] = ["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder."];
    name.strip_prefix(prefix.towers).is_some_and(|rest| TOWERS.iter().any(|tower| rest.starts_with(tower)))
}
