//! A checkpoint as small as the kernels' shapes allow, for the tracer kernels: one sliding and one global layer, every
//! weight zero, since nothing reads them.

use std::fs::File;
use std::io::BufWriter;

use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::config::ModelConfig;
use gemma4_serve::model::safetensors::{Dtype, TensorOut, write};
use gemma4_serve::model::tensors::{self, PREFIXES};

pub const WINDOW: usize = 16;

const CONFIG: &str = r#"{
  "model_type": "gemma4_text",
  "dtype": "bfloat16",
  "hidden_size": 64,
  "intermediate_size": 64,
  "num_hidden_layers": 2,
  "layer_types": ["sliding_attention", "full_attention"],
  "num_attention_heads": 1,
  "num_key_value_heads": 1,
  "num_global_key_value_heads": 1,
  "head_dim": 256,
  "global_head_dim": 512,
  "attention_k_eq_v": true,
  "sliding_window": 16,
  "vocab_size": 512,
  "max_position_embeddings": 1024,
  "rms_norm_eps": 1e-06,
  "final_logit_softcapping": 30.0,
  "hidden_activation": "gelu_pytorch_tanh",
  "tie_word_embeddings": true,
  "eos_token_id": [1, 106],
  "bos_token_id": 2,
  "pad_token_id": 0,
  "rope_parameters": {
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"}
  }
}"#;

/// Writes the checkpoint into a folder of its own and opens it.
pub fn checkpoint() -> Checkpoint {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("config.json"), CONFIG).expect("config.json");
    let config = ModelConfig::parse(CONFIG.as_bytes(), None, None).expect("a valid configuration");
    let expected = tensors::all(&config);
    let tensors: Vec<(String, Vec<u8>)> = expected
        .iter()
        .map(|tensor| {
            let count: usize = tensor.shape.iter().product();
            (format!("{}{}", PREFIXES[2].text, tensor.name), vec![0; 2 * count])
        })
        .collect();
    let out: Vec<TensorOut> = tensors
        .iter()
        .zip(&expected)
        .map(|((name, bytes), tensor)| TensorOut { name, dtype: Dtype::Bf16, shape: &tensor.shape, bytes })
        .collect();
    let file = File::create(folder.path().join("model.safetensors")).expect("model.safetensors");
    write(&mut BufWriter::new(file), &out).expect("the tensors are written");
    // The shards stay mapped after the folder is gone.
    Checkpoint::open(folder.path()).expect("the tracer's checkpoint opens")
}
