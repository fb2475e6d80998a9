//! Which tensors a checkpoint of a given configuration holds, by name and shape.
//! The names are those below the prefix of the text tower.

use super::config::ModelConfig;

/// The tensors of one decoder layer, as expectations, places or views. Shapes are rows by depth, depth contiguous;
/// H is the hidden size, I the intermediate size, hd the layer's head dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTensors<T> {
    /// [H]
    pub input_norm: T,
    /// [heads * hd][H]
    pub q: T,
    /// [kv_heads * hd][H]
    pub k: T,
    /// [kv_heads * hd][H]; none where V is the raw K projection.
    pub v: Option<T>,
    /// [H][heads * hd]
    pub o: T,
    /// [hd]
    pub q_norm: T,
    /// [hd]
    pub k_norm: T,
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
}

/// The tensors outside of the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OuterTensors<T> {
    /// [V][H]
    pub embed: T,
    /// [H]: the norm before the head.
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
            k: f(&self.k)?,
            v: self.v.as_ref().map(&mut f).transpose()?,
            o: f(&self.o)?,
            q_norm: f(&self.q_norm)?,
            k_norm: f(&self.k_norm)?,
            post_attn_norm: f(&self.post_attn_norm)?,
            pre_ffw_norm: f(&self.pre_ffw_norm)?,
            gate: f(&self.gate)?,
            up: f(&self.up)?,
            down: f(&self.down)?,
            post_ffw_norm: f(&self.post_ffw_norm)?,
            layer_scalar: f(&self.layer_scalar)?,
        })
    }

    pub fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> LayerTensors<U> {
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
        k: tensor("self_attn.k_proj.weight", &[kv_rows, h]),
        v: (!of.k_eq_v).then(|| tensor("self_attn.v_proj.weight", &[kv_rows, h])),
        o: tensor("self_attn.o_proj.weight", &[h, q_rows]),
        q_norm: tensor("self_attn.q_norm.weight", &[of.head_dim]),
        k_norm: tensor("self_attn.k_norm.weight", &[of.head_dim]),
        post_attn_norm: tensor("post_attention_layernorm.weight", &[h]),
        pre_ffw_norm: tensor("pre_feedforward_layernorm.weight", &[h]),
        gate: tensor("mlp.gate_proj.weight", &[i, h]),
        up: tensor("mlp.up_proj.weight", &[i, h]),
        down: tensor("mlp.down_proj.weight", &[h, i]),
        post_ffw_norm: tensor("post_feedforward_layernorm.weight", &[h]),
        layer_scalar: tensor("layer_scalar", &[1]),
    }
}

/// What the model holds outside of its layers.
pub fn outer(config: &ModelConfig) -> OuterTensors<Expected> {
    OuterTensors {
        embed: Expected { name: EMBED.to_owned(), shape: vec![config.vocab, config.hidden] },
        norm: Expected { name: "norm.weight".to_owned(), shape: vec![config.hidden] },
    }
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
    const TOWERS: [&str; 5] = ["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "vision_embedder."];
    const RANGES: [&str; 6] = ["input_min", "input_max", "output_min", "output_max", "k_cache_scale", "v_cache_scale"];
    let in_tower =
        name.strip_prefix(prefix.towers).is_some_and(|rest| TOWERS.iter().any(|tower| rest.starts_with(tower)));
    in_tower || name.rsplit_once('.').is_some_and(|(_, last)| RANGES.contains(&last))
}
