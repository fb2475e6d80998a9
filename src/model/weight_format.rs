//! In which form a checkpoint stores its weights. Only bf16 is served; a quantised repository is refused by the name of
//! its form, told from what its configuration says, from its tensors when the configuration says nothing, or from the
//! files of the folder. The one place where a further format enters.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checkpoint::CheckpointError;
use super::fields::{ConfigError, Fields, clipped, shown};
use super::safetensors::{Dtype, TensorInfo};
use super::shards::{INDEX, SINGLE, Shard, read_optional};
use super::tensors::{PREFIXES, is_skipped};

/// Forms in circulation (spec/gemma4.md, 1.5). `Display` is the form's name and what is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantisedForm {
    Fp8,
    /// compressed-tensors: integers of so many bits packed into words, activations of so many (16: not quantised).
    Packed {
        weight_bits: u64,
        activation_bits: u64,
    },
    Nvfp4Compressed,
    Nvfp4Modelopt,
    /// `quant_method: gemma`, quantisation-aware training for phones.
    GemmaMobile,
    Awq,
    Gptq,
    BitsAndBytes,
    Gguf,
    /// A method by its own name.
    Other(String),
}

impl fmt::Display for QuantisedForm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            QuantisedForm::Fp8 => f.write_str("FP8 (e4m3 with scales)"),
            QuantisedForm::Packed { weight_bits, activation_bits } => {
                write!(f, "W{weight_bits}A{activation_bits} (compressed-tensors, packed integers)")
            }
            QuantisedForm::Nvfp4Compressed => f.write_str("NVFP4 (compressed-tensors)"),
            QuantisedForm::Nvfp4Modelopt => f.write_str("NVFP4 (modelopt)"),
            QuantisedForm::GemmaMobile => f.write_str("QAT mobile (quant_method gemma, 2 to 8 bits a weight)"),
            QuantisedForm::Awq => f.write_str("AWQ"),
            QuantisedForm::Gptq => f.write_str("GPTQ"),
            QuantisedForm::BitsAndBytes => f.write_str("bitsandbytes"),
            QuantisedForm::Gguf => f.write_str("GGUF"),
            QuantisedForm::Other(name) => write!(f, "quantised ({name})"),
        }
    }
}

impl QuantisedForm {
    /// The end of a refusal's sentence.
    pub fn why(&self) -> String {
        format!("the weights are {self}, and only bf16 safetensors are served yet")
    }
}

/// Refuses a configuration whose object (outer or text part) says that the weights are quantised.
pub(super) fn check_config(fields: &Fields) -> Result<(), ConfigError> {
    // The second is how compressed-tensors first spelt it.
    for key in ["quantization_config", "compression_config"] {
        if let Some(value) = fields.get(key) {
            let method = value.get("quant_method").and_then(Value::as_str);
            let found = method.map_or_else(|| shown(value), str::to_owned);
            return Err(fields.unsupported(key, found, of_config(value).why()));
        }
    }
    Ok(())
}

fn of_config(config: &Value) -> QuantisedForm {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or("").to_ascii_lowercase();
    let method = text(config, "quant_method");
    match method.as_str() {
        "fp8" | "fbgemm_fp8" => QuantisedForm::Fp8,
        "gemma" => QuantisedForm::GemmaMobile,
        "awq" => QuantisedForm::Awq,
        "gptq" => QuantisedForm::Gptq,
        "bitsandbytes" => QuantisedForm::BitsAndBytes,
        "gguf" => QuantisedForm::Gguf,
        method if method.starts_with("modelopt") => of_modelopt(&text(config, "quant_algo")),
        "compressed-tensors" | "" => of_groups(config).unwrap_or_else(|| match text(config, "format").as_str() {
            "float-quantized" | "naive-quantized" => QuantisedForm::Fp8,
            "nvfp4-pack-quantized" => QuantisedForm::Nvfp4Compressed,
            "" if method.is_empty() => QuantisedForm::Other("by an unnamed method".into()),
            "" => QuantisedForm::Other(method.clone()),
            format => QuantisedForm::Other(format!("compressed-tensors {}", clipped(format))),
        }),
        method => QuantisedForm::Other(clipped(method)),
    }
}

fn of_modelopt(algorithm: &str) -> QuantisedForm {
    match algorithm {
        "fp8" => QuantisedForm::Fp8,
        algorithm if algorithm.starts_with("nvfp4") => QuantisedForm::Nvfp4Modelopt,
        "" => QuantisedForm::Other("modelopt".into()),
        other => QuantisedForm::Other(format!("modelopt {}", clipped(other))),
    }
}

/// The first group of a compressed-tensors configuration whose weights are quantised.
fn of_groups(config: &Value) -> Option<QuantisedForm> {
    let groups = config.get("config_groups")?.as_object()?;
    groups.values().find_map(|group| {
        let weights = group.get("weights")?;
        let bits = |of: &Value| of.get("num_bits").and_then(Value::as_u64);
        let weight_bits = bits(weights)?;
        let is_float = weights.get("type").and_then(Value::as_str) == Some("float");
        Some(match (is_float, weight_bits) {
            (true, 8) => QuantisedForm::Fp8,
            (true, 4) => QuantisedForm::Nvfp4Compressed,
            _ => {
                let activation_bits = group.get("input_activations").and_then(bits).unwrap_or(16);
                QuantisedForm::Packed { weight_bits, activation_bits }
            }
        })
    })
}

/// Refuses a folder whose files, apart from config.json, say that its weights are quantised.
pub(super) fn check_folder(folder: &Path) -> Result<(), CheckpointError> {
    const MODELOPT: &str = "hf_quant_config.json";
    const MODELOPT_BYTES_MAX: u64 = 16 << 20;
    let path = folder.join(MODELOPT);
    if let Some(bytes) = read_optional(&path, MODELOPT_BYTES_MAX)? {
        let config: Value = serde_json::from_slice(&bytes).map_err(|e| {
            let source = Box::new(ConfigError::Json { file: MODELOPT, why: clipped(&e.to_string()) });
            CheckpointError::Config { folder: folder.to_owned(), source }
        })?;
        if let Some(algorithm) = config.pointer("/quantization/quant_algo").and_then(Value::as_str) {
            let what = format!("quantization.quant_algo is {}", clipped(algorithm));
            let form = of_modelopt(&algorithm.to_ascii_lowercase());
            return Err(CheckpointError::Quantised { path, what, form });
        }
    }
    let is_there = |name: &str| folder.join(name).symlink_metadata().is_ok();
    if is_there(SINGLE) || is_there(INDEX) {
        return Ok(());
    }
    match first_gguf(folder) {
        Some(path) => Err(CheckpointError::Quantised { path, what: "a GGUF file".into(), form: QuantisedForm::Gguf }),
        None => Ok(()),
    }
}

/// The first by name, so that a refusal is the same every time.
fn first_gguf(folder: &Path) -> Option<PathBuf> {
    let paths = folder.read_dir().ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| is_gguf(path)).min()
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Why `--model` with this path, which is no folder, cannot be served.
pub fn why_no_folder(path: &Path) -> String {
    if is_gguf(path) { format!("not a folder: {}", QuantisedForm::Gguf.why()) } else { "not a folder".to_owned() }
}

/// Refuses shards whose tensors only a quantised form has. Other towers are not looked at.
pub(super) fn check_tensors(shards: &[Shard]) -> Result<(), CheckpointError> {
    let tensors = || {
        let all = shards.iter().flat_map(|shard| shard.tensors.iter().map(move |info| (shard, info)));
        all.filter(|(_, info)| !PREFIXES.iter().any(|prefix| is_skipped(&info.name, prefix)))
    };
    // The most telling sign first: a form has tensors that another's rule below would take for its own.
    let signs: [(Sign, QuantisedForm); 9] = [
        (|t| t.name.ends_with(".weight_global_scale"), QuantisedForm::Nvfp4Compressed),
        (|t| t.name.ends_with(".weight_packed") && t.dtype == U8, QuantisedForm::Nvfp4Compressed),
        (|t| t.name.ends_with(".weight_packed"), QuantisedForm::Packed { weight_bits: 4, activation_bits: 16 }),
        (|t| t.name.ends_with(".weight_scale_2"), QuantisedForm::Nvfp4Modelopt),
        (|t| t.name.ends_with(".embedding_quantized"), QuantisedForm::GemmaMobile),
        (|t| t.name.ends_with(".weight") && t.dtype.to_string().starts_with("F8_E"), QuantisedForm::Fp8),
        (|t| t.name.ends_with(".g_idx"), QuantisedForm::Gptq),
        (|t| t.name.ends_with(".qzeros"), QuantisedForm::Awq),
        (|t| t.name.ends_with(".weight.absmax"), QuantisedForm::BitsAndBytes),
    ];
    for (sign, form) in signs {
        if let Some((shard, info)) = tensors().find(|(_, info)| sign(info)) {
            return Err(refused(shard, info, form));
        }
    }
    // Bytes are quantised weights only beside their scales; alone they are a wrong dtype.
    let bytes = |t: &TensorInfo| t.name.ends_with(".weight") && (t.dtype == U8 || t.dtype == I8);
    // A set: a header may list hundreds of thousands of tensors without a byte.
    let scaled: HashSet<&str> = tensors().filter_map(|(_, info)| info.name.strip_suffix("_scale")).collect();
    match tensors().filter(|(_, info)| bytes(info)).find(|(_, info)| scaled.contains(info.name.as_str())) {
        Some((shard, info)) => Err(refused(shard, info, QuantisedForm::GemmaMobile)),
        None => Ok(()),
    }
}

/// Whether a tensor gives a form away.
type Sign = fn(&TensorInfo) -> bool;

const U8: Dtype = Dtype::Other("U8", 8);
const I8: Dtype = Dtype::Other("I8", 8);

fn refused(shard: &Shard, info: &TensorInfo, form: QuantisedForm) -> CheckpointError {
    let what = format!("tensor {} is {}", info.name, info.dtype);
    CheckpointError::Quantised { path: shard.path.clone(), what, form }
}
