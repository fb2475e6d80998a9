//! Checkpoints in folders of their own, to be damaged, and what opening one says and allocates.
#![allow(dead_code)] // Each test file uses its part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use gemma4_serve::alloc::allocated_bytes;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::safetensors::{Dtype, TensorInfo, TensorOut, read_header, write};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const CONFIG: &str = "config.json";
pub const GENERATION: &str = "generation_config.json";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
pub const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A tensor of a checkpoint being built.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn zeros(name: &str, dtype: &str, shape: &[usize]) -> Tensor {
        let dtype = Dtype::parse(dtype).expect("a dtype");
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.bits() / 8];
        Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
    }
}

pub fn reference(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/reference").join(model)
}

pub fn tensors_of(model: &str) -> Vec<Tensor> {
    let file = std::fs::read(reference(model).join(WEIGHTS)).expect("weights");
    let own = |TensorInfo { name, dtype, shape, bytes }| Tensor { name, dtype, shape, bytes: file[bytes].to_vec() };
    read_header(&file).expect("a header").into_iter().map(own).collect()
}

pub fn file_of(tensors: &[Tensor]) -> Vec<u8> {
    let mut file = Vec::new();
    let tensors: Vec<TensorOut> = tensors
        .iter()
        .map(|Tensor { name, dtype, shape, bytes }| TensorOut { name, dtype: *dtype, shape, bytes })
        .collect();
    write(&mut file, &tensors).expect("a file in memory");
    file
}

/// The tensor whose name ends so.
pub fn find<'a>(tensors: &'a mut [Tensor], suffix: &str) -> &'a mut Tensor {
    tensors.iter_mut().find(|t| t.name.ends_with(suffix)).expect("a tensor")
}

/// A folder of one checkpoint.
pub struct Folder(TempDir);

impl Folder {
    pub fn empty() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    /// The model's configuration and tokenizer, no weights.
    pub fn without_weights(model: &str) -> Folder {
        let folder = Self::empty();
        for name in [CONFIG, GENERATION, "tokenizer.json", TOKENIZER_CONFIG] {
            std::fs::copy(reference(model).join(name), folder.path().join(name)).expect("a copy");
        }
        folder
    }

    pub fn of(model: &str) -> Folder {
        let folder = Self::without_weights(model);
        std::fs::copy(reference(model).join(WEIGHTS), folder.path().join(WEIGHTS)).expect("a copy");
        folder
    }

    /// With other weights than the model's.
    pub fn with(model: &str, tensors: &[Tensor]) -> Folder {
        let folder = Self::without_weights(model);
        folder.write(WEIGHTS, file_of(tensors));
        folder
    }

    /// The model's weights after a change.
    pub fn changed(model: &str, change: impl FnOnce(&mut Vec<Tensor>)) -> Folder {
        let mut tensors = tensors_of(model);
        change(&mut tensors);
        Self::with(model, &tensors)
    }

    /// In two shards, the first with the first `count` tensors, and their index.
    pub fn sharded(model: &str, count: usize) -> Folder {
        let folder = Self::without_weights(model);
        let tensors = tensors_of(model);
        let mut map = serde_json::Map::new();
        for (name, part) in SHARDS.into_iter().zip([&tensors[..count], &tensors[count..]]) {
            folder.write(name, file_of(part));
            map.extend(part.iter().map(|t| (t.name.clone(), json!(name))));
        }
        folder.write(INDEX, json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string());
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).expect("a file")
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        // A new file: some filesystems flush one that is cut and written again.
        let _ = std::fs::remove_file(self.path().join(name));
        std::fs::write(self.path().join(name), bytes).expect("a file");
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).expect("it was there");
    }

    /// Changes a JSON file.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&self.read(name)).expect("JSON");
        change(&mut value);
        self.write(name, value.to_string());
    }

    /// Changes the bytes of a file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(name);
        change(&mut bytes);
        self.write(name, bytes);
    }

    /// Opens the checkpoint and holds it to what every opening owes: no panic, no allocation that the text of its files
    /// does not account for, and as a refusal one line that names a file.
    pub fn open(&self) -> Result<Checkpoint, String> {
        let before = allocated_bytes();
        let opened = catch_unwind(AssertUnwindSafe(|| Checkpoint::open(self.path())));
        let opened = opened.unwrap_or_else(|_| panic!("opening {} panicked", self.path().display()));
        let result = opened.map_err(|e| e.to_string());
        let (allocated, budget) = (allocated_bytes() - before, self.allocation_budget());
        assert!(allocated > 0, "the counting allocator is installed");
        assert!(allocated <= budget, "{allocated} bytes allocated, {budget} are plausible");
        if let Err(sentence) = &result {
            let names_a_file = sentence.starts_with(&self.path().display().to_string());
            let shape = !sentence.contains(char::is_control) && sentence.len() < 1024;
            assert!(names_a_file && shape, "not one line that names a file: {sentence:?}");
        }
        result
    }

    /// Sixteen times the bytes of JSON, headers of weights as long as they are (not as long as they say), and a
    /// mebibyte: opening a whole reference takes a sixth of that.
    fn allocation_budget(&self) -> u64 {
        let mut text = 0;
        for entry in std::fs::read_dir(self.path()).expect("a folder") {
            let path = entry.expect("an entry").path();
            let Ok(bytes) = path.metadata().map(|metadata| metadata.len()) else { continue };
            text += match path.extension().is_some_and(|e| e == "safetensors").then(|| std::fs::read(&path)) {
                Some(Ok(file)) => header_bytes(&file) as u64,
                _ => bytes,
            };
        }
        16 * text + (1 << 20)
    }
}

fn header_bytes(file: &[u8]) -> usize {
    let length = file.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if length < file.len() as u64 { length as usize } else { 0 }
}

/// The folder is refused, and every word is in the sentence.
pub fn refused(folder: &Folder, words: &[&str]) -> String {
    let sentence = folder.open().err().unwrap_or_else(|| panic!("accepted, expected {words:?}"));
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
    sentence
}
