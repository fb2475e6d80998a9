//! The files a checkpoint's tensors lie in: one `model.safetensors`, or an index and its shards.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::checkpoint::{CheckpointError, Content};
use super::fields::clipped;
use super::safetensors::{TensorInfo, check_name, read_header};
use super::synthetic::Spread;
use crate::device::mmap::map_read_only;

/// One file of tensors whose header has been checked against its bytes; or no file, and tensors that are made up.
pub(super) struct Shard {
    pub path: PathBuf,
    pub tensors: Vec<TensorInfo>,
    bytes: Bytes,
}

enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Synthetic,
}

impl Shard {
    pub fn from_static(path: PathBuf, bytes: &'static [u8]) -> Result<Shard, CheckpointError> {
        Self::new(path, Bytes::Static(bytes))
    }

    fn open(path: PathBuf) -> Result<Shard, CheckpointError> {
        match map_read_only(&path) {
            Ok(map) => Self::new(path, Bytes::Mapped(map)),
            Err(source) => Err(CheckpointError::Io { path, source }),
        }
    }

    fn new(path: PathBuf, bytes: Bytes) -> Result<Shard, CheckpointError> {
        match read_header(bytes.get().unwrap_or_default()) {
            Ok(tensors) => Ok(Shard { path, tensors, bytes }),
            Err(source) => Err(CheckpointError::Header { path, source: Box::new(source) }),
        }
    }

    /// Tensors whose values are made on the device.
    pub fn synthetic(path: PathBuf, tensors: Vec<TensorInfo>) -> Shard {
        Shard { path, tensors, bytes: Bytes::Synthetic }
    }

    /// Length of the file; 0 of tensors that are made up.
    pub fn file_bytes(&self) -> usize {
        self.bytes.get().map_or(0, <[u8]>::len)
    }

    /// What fills one of its tensors.
    pub fn content(&self, info: &TensorInfo) -> Content<'_> {
        match self.bytes.get() {
            Some(bytes) => Content::Stored(&bytes[info.bytes.clone()]),
            None => Content::Synthetic(Spread::of(&info.name, &info.shape)),
        }
    }
}

impl Bytes {
    fn get(&self) -> Option<&[u8]> {
        match self {
            Bytes::Mapped(map) => Some(map),
            Bytes::Static(bytes) => Some(bytes),
            Bytes::Synthetic => None,
        }
    }
}

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
const INDEX_BYTES_MAX: u64 = 64 << 20;
const SHARDS_MAX: usize = 4096;

/// Opens the single file if it is there (as the reference library prefers), else what the index names.
pub(super) fn open_shards(folder: &Path) -> Result<Vec<Shard>, CheckpointError> {
    let single = folder.join(SINGLE);
    // Whatever stands under that name: a link that leads nowhere is a damaged file, not an absent one.
    if single.symlink_metadata().is_ok() {
        return Ok(vec![Shard::open(single)?]);
    }
    let path = folder.join(INDEX);
    let Some(bytes) = read_optional(&path, INDEX_BYTES_MAX)? else {
        return Err(CheckpointError::NoWeights { folder: folder.to_owned() });
    };
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|e| CheckpointError::Index { path: path.clone(), why: clipped(&e.to_string()) })?;
    let by_shard = index.by_shard().map_err(|why| CheckpointError::Index { path, why })?;
    by_shard.into_iter().map(|(shard, tensors)| open_indexed(folder, shard, tensors)).collect()
}

/// Opens one shard; it and the index must name the same tensors.
fn open_indexed(folder: &Path, name: &str, mut tensors: Vec<&str>) -> Result<Shard, CheckpointError> {
    let path = folder.join(name);
    let shard = match Shard::open(path) {
        Err(CheckpointError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let tensor = tensors.first().map_or_else(String::new, |t| t.to_string());
            return Err(CheckpointError::ShardMissing { folder: folder.to_owned(), shard: name.to_owned(), tensor });
        }
        shard => shard?,
    };
    tensors.sort_unstable();
    let mut held: Vec<&str> = shard.tensors.iter().map(|info| info.name.as_str()).collect();
    held.sort_unstable();
    if let Some(tensor) = tensors.iter().find(|&tensor| held.binary_search(tensor).is_err()) {
        return Err(CheckpointError::NotInShard { path: shard.path.clone(), tensor: tensor.to_string() });
    }
    if let Some(tensor) = held.iter().find(|&tensor| tensors.binary_search(tensor).is_err()) {
        return Err(CheckpointError::NotInIndex { path: shard.path.clone(), tensor: tensor.to_string() });
    }
    Ok(shard)
}

/// `model.safetensors.index.json`: which shard each tensor is in. Its `metadata` says nothing that is relied on.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

impl Index {
    /// Tensors of each shard, shards in the order of their names. Shards are plain file names: an index cannot point
    /// out of its folder.
    fn by_shard(&self) -> Result<BTreeMap<&str, Vec<&str>>, String> {
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut pairs: Vec<(&str, &str)> = self.weight_map.0.iter().map(|(t, s)| (t.as_str(), s.as_str())).collect();
        pairs.sort_unstable();
        if let Some(twice) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("tensor {} stands in it twice", twice[0].0));
        }
        for (tensor, shard) in pairs {
            let plain = Path::new(shard).file_name().is_some_and(|name| name == shard);
            if !plain || check_name(shard).is_err() || !shard.ends_with(".safetensors") {
                let shard = clipped(&format!("{shard:?}"));
                return Err(format!("tensor {tensor} is said to be in {shard}, not the name of a safetensors file"));
            }
            shards.entry(shard).or_default().push(tensor);
        }
        match shards.len() {
            0 => Err("it names no tensor".into()),
            n if n > SHARDS_MAX => Err(format!("it names {n} shards, the limit is {SHARDS_MAX}")),
            _ => Ok(shards),
        }
    }
}

/// Pairs of tensor and shard, kept as written so that a tensor named twice is seen.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut pairs = Vec::new();
                while let Some(tensor) = map.next_key::<String>()? {
                    check_name(&tensor).map_err(A::Error::custom)?;
                    let shard = map.next_value().map_err(|e| A::Error::custom(format_args!("{tensor}: {e}")))?;
                    pairs.push((tensor, shard));
                }
                Ok(WeightMap(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// A whole file of at most `bytes_max` bytes, or none if it is not there; a link that leads nowhere is an error.
pub(super) fn read_optional(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: path.to_owned(), source };
    let metadata = match path.metadata() {
        Err(e) if e.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => return Ok(None),
        metadata => metadata.map_err(io)?,
    };
    if !metadata.is_file() {
        return Err(io(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file")));
    }
    if metadata.len() > bytes_max {
        return Err(CheckpointError::FileTooLarge { path: path.to_owned(), bytes: metadata.len(), bytes_max });
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes)).map_err(io)?;
    Ok(Some(bytes))
}
