//! A checkpoint: a folder of safetensors shards, the one inside the binary, or one whose values are made up on the
//! device; checked completely against its configuration before anything is read from it, then typed access to every
//! tensor's content.
//!
//! Life: (1) the configuration is parsed; (2) the shards are mapped and their headers checked; (3) the text tower's
//! prefix is found; (4) every tensor is either expected (with its dtype and shape), left out by name, or a refusal; (5)
//! norms and scalars are read once, for what is not finite; (6) views are handed out while the checkpoint lives. A
//! quantised form is refused before (1), in it, or before (3): [`super::weight_format`]. Nothing is copied.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::config::{ConfigError, ModelConfig};
use super::safetensors::{Dtype, HeaderError, TensorInfo};
use super::shards::{Shard, open_shards, read_optional};
use super::synthetic::{self, Spread, SyntheticModel};
use super::tensors::{
    self, EMBED, Expected, LayerTensors, OuterTensors, PREFIXES, PerLayerTable, Prefix, is_of_other_tower, is_skipped,
    is_unused,
};
use super::weight_format::{self, QuantisedForm};

/// An opened checkpoint whose text tower is complete.
pub struct Checkpoint {
    pub config: ModelConfig,
    /// The folder's name: the model's id unless the operator gives another.
    pub name: String,
    shards: Vec<Shard>,
    outer: OuterTensors<Place>,
    head: Option<Place>,
    layers: Vec<LayerTensors<Place>>,
    /// Tensors that are never read, in file order.
    left_out: Vec<(LeftOut, Place)>,
    tokenizer: TokenizerJson,
    chat_template: Option<String>,
}

enum TokenizerJson {
    None,
    Bytes(Cow<'static, [u8]>),
    /// Made when it is asked for: only a server needs it.
    Synthetic,
}

/// One tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorView<'a> {
    /// Full name, as the file spells it.
    pub name: &'a str,
    /// Rows by depth, or one dimension; depth is contiguous.
    pub shape: &'a [usize],
    pub content: Content<'a>,
}

/// Why a tensor of the files is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// Another modality's: vision, audio.
    OtherTower,
    /// Of a layer that reads another's K and V.
    SharedKv,
    /// What quantisation-aware training leaves behind.
    Ranges,
}

/// Where a tensor's values come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content<'a> {
    /// bf16, little endian, at any alignment.
    Stored(&'a [u8]),
    /// Made by a kernel from the tensor's name.
    Synthetic(Spread),
}

impl TensorView<'_> {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in bf16.
    pub fn byte_count(&self) -> usize {
        self.elements() * 2
    }
}

/// Why a checkpoint is refused; `Display` names the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {bytes} bytes, the limit for this file is {bytes_max}", path.display())]
    FileTooLarge { path: PathBuf, bytes: u64, bytes_max: u64 },
    #[error("{}: {source}", folder.display())]
    Config { folder: PathBuf, source: Box<ConfigError> },
    #[error("--synthetic {variant}: {source}")]
    Synthetic { variant: &'static str, source: Box<ConfigError> },
    #[error("{}: {source}", path.display())]
    Header { path: PathBuf, source: Box<HeaderError> },
    #[error("{}: neither model.safetensors nor model.safetensors.index.json is there", folder.display())]
    NoWeights { folder: PathBuf },
    #[error("{}: {why}", path.display())]
    Index { path: PathBuf, why: String },
    #[error("{}: shard {shard} is missing, tensor {tensor} should be in it", folder.display())]
    ShardMissing { folder: PathBuf, shard: String, tensor: String },
    #[error("{}: tensor {tensor} is not in it, the index says it is", path.display())]
    NotInShard { path: PathBuf, tensor: String },
    #[error("{}: tensor {tensor} is in it, the index does not say so", path.display())]
    NotInIndex { path: PathBuf, tensor: String },
    #[error("{source_name}: no text tower: {EMBED} stands under none of {prefixes}")]
    NoPrefix { source_name: String, prefixes: String },
    #[error("{source_name}: two text towers: {EMBED} stands under {first} and under {second}")]
    TwoPrefixes { source_name: String, first: &'static str, second: &'static str },
    #[error("{source_name}: tensor {tensor} {expected:?} is missing")]
    Missing { source_name: String, tensor: String, expected: Vec<usize> },
    #[error("{}: tensor {tensor} has shape {found:?}, config.json says {expected:?}", path.display())]
    Shape { path: PathBuf, tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{}: tensor {tensor} is {found}, expected BF16", path.display())]
    DtypeNotBf16 { path: PathBuf, tensor: String, found: Dtype },
    #[error("{}: tensor {tensor} is unknown", path.display())]
    Unknown { path: PathBuf, tensor: String },
    #[error("{}: tensor {tensor} contradicts attention_k_eq_v, which takes V of this layer from K", path.display())]
    VBesideKEqV { path: PathBuf, tensor: String },
    #[error("{}: tensor {tensor} holds {value} at element {element}: norms and scalars must be finite", path.display())]
    NotFinite { path: PathBuf, tensor: String, element: usize, value: f32 },
    #[error("{}: {what}: {}", path.display(), form.why())]
    Quantised { path: PathBuf, what: String, form: QuantisedForm },
    #[error("{}: not UTF-8: {source}", path.display())]
    NotText { path: PathBuf, source: std::str::Utf8Error },
    #[error("{source_name}: tie_word_embeddings is false but {tensor} is missing")]
    NoHead { source_name: String, tensor: &'static str },
}

/// The embedded checkpoint's files.
pub struct EmbeddedFiles {
    pub name: &'static str,
    pub config: &'static [u8],
    pub generation_config: Option<&'static [u8]>,
    pub tokenizer_config: Option<&'static [u8]>,
    pub tokenizer: Option<&'static [u8]>,
    pub chat_template: Option<&'static str>,
    pub weights: &'static [u8],
}

const CONFIG_BYTES_MAX: u64 = 16 << 20;
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
const TEMPLATE: &str = "chat_template.jinja";

impl Checkpoint {
    /// Opens a folder as published: `config.json` and `model.safetensors` or its index with shards;
    /// `generation_config.json`, `tokenizer_config.json`, `tokenizer.json` and `chat_template.jinja` where there.
    pub fn open(folder: &Path) -> Result<Checkpoint, CheckpointError> {
        weight_format::check_folder(folder)?;
        let read = |name: &str, bytes_max| read_optional(&folder.join(name), bytes_max);
        let config = read("config.json", CONFIG_BYTES_MAX)?.ok_or_else(|| CheckpointError::Io {
            path: folder.join("config.json"),
            source: std::io::ErrorKind::NotFound.into(),
        })?;
        let generation = read("generation_config.json", CONFIG_BYTES_MAX)?;
        let tokenizer_config = read("tokenizer_config.json", CONFIG_BYTES_MAX)?;
        let template = read(TEMPLATE, CONFIG_BYTES_MAX)?.map_or(Ok(None), |bytes| {
            let text = std::str::from_utf8(&bytes).map(|text| Some(text.to_owned()));
            text.map_err(|source| CheckpointError::NotText { path: folder.join(TEMPLATE), source })
        })?;
        let config = ModelConfig::parse(&config, generation.as_deref(), tokenizer_config.as_deref())
            .map_err(|source| CheckpointError::Config { folder: folder.to_owned(), source: source.into() })?;
        let shards = open_shards(folder)?;
        Ok(Checkpoint {
            tokenizer: read("tokenizer.json", TOKENIZER_BYTES_MAX)?
                .map_or(TokenizerJson::None, |bytes| TokenizerJson::Bytes(bytes.into())),
            chat_template: template.or_else(|| older_chat_template(tokenizer_config.as_deref())),
            ..Self::assemble(config, folder_name(folder), &folder.display().to_string(), shards)?
        })
    }

    /// Opens a checkpoint that lies in memory, by the same parser.
    pub fn from_static(files: &EmbeddedFiles) -> Result<Checkpoint, CheckpointError> {
        let path = PathBuf::from(format!("embedded {}", files.name));
        let config = ModelConfig::parse(files.config, files.generation_config, files.tokenizer_config)
            .map_err(|source| CheckpointError::Config { folder: path.clone(), source: source.into() })?;
        let shards = vec![Shard::from_static(path, files.weights)?];
        Ok(Checkpoint {
            tokenizer: files.tokenizer.map_or(TokenizerJson::None, |bytes| TokenizerJson::Bytes(bytes.into())),
            chat_template: files
                .chat_template
                .map(str::to_owned)
                .or_else(|| older_chat_template(files.tokenizer_config)),
            ..Self::assemble(config, files.name.to_owned(), &format!("embedded {}", files.name), shards)?
        })
    }

    /// The default checkpoint, compiled into the binary: small, and trained to answer (models/tiny/README.md).
    pub fn embedded() -> Result<Checkpoint, CheckpointError> {
        Self::from_static(&EmbeddedFiles {
            name: "tiny",
            config: include_bytes!("../../models/tiny/config.json"),
            generation_config: Some(include_bytes!("../../models/tiny/generation_config.json")),
            tokenizer_config: Some(include_bytes!("../../models/tiny/tokenizer_config.json")),
            tokenizer: Some(include_bytes!("../../models/tiny/tokenizer.json")),
            chat_template: Some(include_str!("../../models/tiny/chat_template.jinja")),
            weights: include_bytes!("../../models/tiny/model.safetensors"),
        })
    }

    /// The shape of a published model with made-up values: no file is read, a kernel writes each tensor.
    pub fn synthetic(model: &SyntheticModel) -> Result<Checkpoint, CheckpointError> {
        let (config_json, generation_json) = model.files();
        let config = ModelConfig::parse(&config_json, Some(&generation_json), None)
            .map_err(|source| CheckpointError::Synthetic { variant: model.variant.name(), source: source.into() })?;
        let shard = Shard::synthetic(PathBuf::from(model.to_string()), synthetic::tensor_infos(&config));
        let name = model.to_string();
        Ok(Checkpoint {
            tokenizer: TokenizerJson::Synthetic,
            ..Self::assemble(config, name.clone(), &name, vec![shard])?
        })
    }

    /// The token embedding, [V][H]; also the head unless there is one.
    pub fn embed(&self) -> TensorView<'_> {
        self.view(&self.outer.embed)
    }

    /// The norm before the head, [H].
    pub fn norm(&self) -> TensorView<'_> {
        self.view(&self.outer.norm)
    }

    /// A head of its own, [V][H], as quantised repositories store it; none: the head is the embedding.
    pub fn head(&self) -> Option<TensorView<'_>> {
        self.head.as_ref().map(|place| self.view(place))
    }

    /// The tables of per-layer embeddings, where the model has them.
    pub fn per_layer(&self) -> Option<PerLayerTable<TensorView<'_>>> {
        self.outer.map(|place| self.view(place)).per_layer
    }

    /// The tensors of one layer.
    pub fn layer(&self, index: usize) -> LayerTensors<TensorView<'_>> {
        self.layers[index].map(|place| self.view(place))
    }

    /// Bytes of every tensor that is loaded.
    pub fn weight_bytes(&self) -> u64 {
        self.all().map(|place| self.view(&place).byte_count() as u64).sum()
    }

    /// The tensors that are in the files and not read, in file order: why, name and bytes.
    pub fn left_out(&self) -> impl Iterator<Item = (LeftOut, &str, u64)> {
        self.left_out.iter().map(|(why, place)| {
            let (_, info) = place.of(&self.shards);
            (*why, info.name.as_str(), info.bytes.len() as u64)
        })
    }

    /// The files of tensors: path, tensors and bytes. A synthetic model has none.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize, u64)> {
        let files = self.shards.iter().filter(|shard| shard.file_bytes() > 0);
        files.map(|shard| (shard.path.as_path(), shard.tensors.len(), shard.file_bytes() as u64))
    }

    pub fn tokenizer_json(&self) -> Option<Cow<'_, [u8]>> {
        match &self.tokenizer {
            TokenizerJson::None => None,
            TokenizerJson::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
            TokenizerJson::Synthetic => Some(Cow::Owned(synthetic::tokenizer_json(self.config.vocab))),
        }
    }

    pub fn has_tokenizer(&self) -> bool {
        !matches!(self.tokenizer, TokenizerJson::None)
    }

    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Every tensor that is loaded.
    fn all(&self) -> impl Iterator<Item = Place> {
        let mut places: Vec<Place> = self.head.into_iter().collect();
        self.outer.map(|place| places.push(*place));
        for layer in &self.layers {
            layer.map(|place| places.push(*place));
        }
        places.into_iter()
    }

    fn view(&self, place: &Place) -> TensorView<'_> {
        let (shard, info) = place.of(&self.shards);
        TensorView { name: &info.name, shape: &info.shape, content: shard.content(info) }
    }

    fn assemble(
        config: ModelConfig,
        name: String,
        source_name: &str,
        shards: Vec<Shard>,
    ) -> Result<Checkpoint, CheckpointError> {
        weight_format::check_tensors(&shards)?;
        let places = places_by_name(&shards);
        let mut tower = Tower { source_name, prefix: find_prefix(source_name, &places)?, shards: &shards, places };
        let outer = tensors::outer(&config).try_map(|expected| tower.take(expected))?;
        let layers = (0..config.layers.len())
            .map(|index| tensors::layer(&config, index).try_map(|expected| tower.take(expected)))
            .collect::<Result<Vec<_>, _>>()?;
        let head = tower.take_head(&config)?;
        let left_out = tower.left_out(&config)?;
        let checkpoint = Checkpoint {
            config,
            name,
            shards,
            outer,
            head,
            layers,
            left_out,
            tokenizer: TokenizerJson::None,
            chat_template: None,
        };
        checkpoint.all().try_for_each(|place| check_finite(place.of(&checkpoint.shards)))?;
        Ok(checkpoint)
    }
}

/// Where a tensor stands: shard, and index into the shard's header.
#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    tensor: usize,
}

impl Place {
    fn of(self, shards: &[Shard]) -> (&Shard, &TensorInfo) {
        let shard = &shards[self.shard];
        (shard, &shard.tensors[self.tensor])
    }
}

/// A norm or a scalar that is not finite would make every token NaN, and no later check would name it. Matrices are not
/// read here: they are a thousand times as many bytes.
fn check_finite((shard, info): (&Shard, &TensorInfo)) -> Result<(), CheckpointError> {
    let Content::Stored(bytes) = shard.content(info) else { return Ok(()) };
    if info.shape.len() > 1 {
        return Ok(());
    }
    let values = bytes.chunks_exact(2).map(|bytes| half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32());
    match values.enumerate().find(|(_, value)| !value.is_finite()) {
        Some((element, value)) => {
            let (path, tensor) = (shard.path.clone(), info.name.clone());
            Err(CheckpointError::NotFinite { path, tensor, element, value })
        }
        None => Ok(()),
    }
}

/// What is left of the checkpoint's tensors while the expected ones are taken out.
struct Tower<'a> {
    source_name: &'a str,
    prefix: Prefix,
    shards: &'a [Shard],
    places: HashMap<&'a str, Place>,
}

impl Tower<'_> {
    fn take(&mut self, expected: &Expected) -> Result<Place, CheckpointError> {
        let name = format!("{}{}", self.prefix.text, expected.name);
        let Some(place) = self.places.remove(name.as_str()) else {
            let expected = expected.shape.clone();
            return Err(CheckpointError::Missing { source_name: self.source_name.to_owned(), tensor: name, expected });
        };
        self.check(place, &expected.shape)
    }

    fn take_head(&mut self, config: &ModelConfig) -> Result<Option<Place>, CheckpointError> {
        match self.places.remove(self.prefix.head) {
            Some(place) => self.check(place, &[config.vocab, config.hidden]).map(Some),
            None if config.tied_head => Ok(None),
            None => Err(CheckpointError::NoHead { source_name: self.source_name.to_owned(), tensor: self.prefix.head }),
        }
    }

    fn check(&self, place: Place, expected: &[usize]) -> Result<Place, CheckpointError> {
        let (shard, info) = place.of(self.shards);
        let (path, tensor) = (shard.path.clone(), info.name.clone());
        if info.dtype != Dtype::Bf16 {
            return Err(CheckpointError::DtypeNotBf16 { path, tensor, found: info.dtype });
        }
        if info.shape != expected {
            let (found, expected) = (info.shape.clone(), expected.to_vec());
            return Err(CheckpointError::Shape { path, tensor, found, expected });
        }
        Ok(place)
    }

    /// Every tensor that was not taken must be one that is left out by name. The first in file order that is not is
    /// named.
    fn left_out(&self, config: &ModelConfig) -> Result<Vec<(LeftOut, Place)>, CheckpointError> {
        let why = |name: &str| {
            let of_text = name.strip_prefix(self.prefix.text);
            if of_text.is_some_and(|name| is_unused(config, name)) {
                Some(LeftOut::SharedKv)
            } else if is_of_other_tower(name, &self.prefix) {
                Some(LeftOut::OtherTower)
            } else {
                is_skipped(name, &self.prefix).then_some(LeftOut::Ranges)
            }
        };
        let mut rest: Vec<(&str, Place)> = self.places.iter().map(|(name, place)| (*name, *place)).collect();
        rest.sort_unstable_by_key(|(_, place)| (place.shard, place.tensor));
        let mut left_out = Vec::with_capacity(rest.len());
        for (name, place) in rest {
            left_out.push((why(name).ok_or_else(|| self.unknown(config, name, place))?, place));
        }
        Ok(left_out)
    }

    fn unknown(&self, config: &ModelConfig, name: &str, place: Place) -> CheckpointError {
        let (path, tensor) = (self.shards[place.shard].path.clone(), name.to_string());
        let v_of = |index: usize| format!("{}layers.{index}.self_attn.v_proj.weight", self.prefix.text);
        if config.layers.iter().enumerate().any(|(index, layer)| layer.k_eq_v && v_of(index) == name) {
            return CheckpointError::VBesideKEqV { path, tensor };
        }
        CheckpointError::Unknown { path, tensor }
    }
}

/// No name stands twice: a header is refused then, and shards hold exactly what an index without repetitions gives
/// them.
fn places_by_name(shards: &[Shard]) -> HashMap<&str, Place> {
    let mut places = HashMap::new();
    for (shard, of) in shards.iter().enumerate() {
        for (tensor, info) in of.tensors.iter().enumerate() {
            let twice = places.insert(info.name.as_str(), Place { shard, tensor }).is_some();
            assert!(!twice, "{} stands in two shards", info.name);
        }
    }
    places
}

fn find_prefix(source_name: &str, places: &HashMap<&str, Place>) -> Result<Prefix, CheckpointError> {
    let source_name = || source_name.to_owned();
    let found: Vec<&Prefix> =
        PREFIXES.iter().filter(|prefix| places.contains_key(format!("{}{EMBED}", prefix.text).as_str())).collect();
    match found[..] {
        [prefix] => Ok(*prefix),
        [] => Err(CheckpointError::NoPrefix {
            source_name: source_name(),
            prefixes: PREFIXES.map(|prefix| prefix.text).join(", "),
        }),
        [first, second, ..] => {
            Err(CheckpointError::TwoPrefixes { source_name: source_name(), first: first.text, second: second.text })
        }
    }
}

/// The field of tokenizer_config.json that held the template before it had a file of its own.
fn older_chat_template(tokenizer_config: Option<&[u8]>) -> Option<String> {
    let config: serde_json::Value = serde_json::from_slice(tokenizer_config?).ok()?;
    match config.get("chat_template")? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(named) => named
            .iter()
            .find(|one| one.get("name").and_then(|name| name.as_str()) == Some("default"))
            .and_then(|one| Some(one.get("template")?.as_str()?.to_owned())),
        _ => None,
    }
}

fn folder_name(folder: &Path) -> String {
    let resolved = folder.canonicalize();
    let path = resolved.as_deref().unwrap_or(folder);
    path.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}
