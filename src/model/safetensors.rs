//! One safetensors file: eight bytes of header length, a JSON header of names, dtypes, shapes and byte ranges, the
//! data.
//!
//! Read here rather than by the `safetensors` crate because a checkpoint is refused by the name of the tensor that is
//! wrong: the crate's errors for sizes and truncation carry none, and it lets the last of two equal names win.
//! The header is checked completely before any byte of data is looked at; nothing is allocated in proportion to a
//! number the header claims, only in proportion to the header's own bytes.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::fields::clipped;
use crate::limits::{SAFETENSORS_HEADER_BYTES_MAX, TENSOR_NAME_BYTES_MAX};

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where its bytes stand, counted from the start of the file.
    pub bytes: Range<usize>,
}

/// Element types a file may hold; only [`Dtype::Bf16`] ones are read as weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Bf16,
    F32,
    I64,
    /// Any other published name, and the bits of one element.
    Other(&'static str, usize),
}

/// Why a header is refused. The file's name is added by whoever opened it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("it is {file_bytes} bytes long, too short for a safetensors header")]
    TooShort { file_bytes: usize },
    #[error("its header claims {header_bytes} bytes, the limit is {SAFETENSORS_HEADER_BYTES_MAX}")]
    TooLong { header_bytes: u64 },
    #[error("its header claims {header_bytes} bytes but the file ends after {file_bytes}: truncated?")]
    HeaderTruncated { header_bytes: u64, file_bytes: usize },
    #[error("its header is not what safetensors writes: {0}")]
    Json(String),
    #[error("tensor {name} has the unknown dtype {dtype}")]
    Dtype { name: String, dtype: String },
    #[error("tensor {name} of shape {shape:?} and dtype {dtype} needs {needed} bytes, its offsets give {given}")]
    Size { name: String, shape: Vec<u64>, dtype: Dtype, needed: String, given: u64 },
    #[error("tensor {name} has the offsets {begin} to {end}")]
    Offsets { name: String, begin: u64, end: u64 },
    #[error("tensor {name} begins at byte {begin} of the data, before {before} ends at {end}")]
    Overlap { name: String, begin: u64, before: String, end: u64 },
    #[error("bytes {begin} to {end} of the data belong to no tensor (before {name})")]
    Hole { name: String, begin: u64, end: u64 },
    #[error("tensor {name} ends at byte {end} of the data but the file holds {data_bytes}: truncated?")]
    Truncated { name: String, end: u64, data_bytes: u64 },
    #[error("the file holds {data_bytes} bytes of data, its tensors end at {end}")]
    Trailing { end: u64, data_bytes: u64 },
}

/// Reads and checks a whole file's header; tensors come in the order of their bytes.
pub fn read_header(file: &[u8]) -> Result<Vec<TensorInfo>, HeaderError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(HeaderError::TooShort { file_bytes: file.len() });
    };
    let header_bytes = u64::from_le_bytes(*length);
    if header_bytes > SAFETENSORS_HEADER_BYTES_MAX as u64 {
        return Err(HeaderError::TooLong { header_bytes });
    }
    let Some((header, data)) = rest.split_at_checked(header_bytes as usize) else {
        return Err(HeaderError::HeaderTruncated { header_bytes, file_bytes: file.len() });
    };
    if header.first() != Some(&b'{') {
        return Err(HeaderError::Json("it does not begin with {".into()));
    }
    let Header(mut entries) = serde_json::from_slice(header).map_err(|e| HeaderError::Json(clipped(&e.to_string())))?;
    entries.sort_by(|(a_name, a), (b_name, b)| (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name)));
    check_cover(&entries, data.len() as u64)?;
    let data_begin = file.len() - data.len();
    entries.into_iter().map(|(name, entry)| entry.resolve(name, data_begin)).collect()
}

/// Every byte of the data belongs to exactly one tensor, as the format demands.
fn check_cover(entries: &[(String, Entry)], data_bytes: u64) -> Result<(), HeaderError> {
    let mut end_before = 0;
    let mut before = "";
    for (name, entry) in entries {
        let [begin, end] = entry.data_offsets;
        if begin > end {
            return Err(HeaderError::Offsets { name: name.clone(), begin, end });
        }
        if begin < end_before {
            return Err(HeaderError::Overlap { name: name.clone(), begin, before: before.to_owned(), end: end_before });
        }
        if begin > end_before {
            return Err(HeaderError::Hole { name: name.clone(), begin: end_before, end: begin });
        }
        if end > data_bytes {
            return Err(HeaderError::Truncated { name: name.clone(), end, data_bytes });
        }
        (end_before, before) = (end, name);
    }
    if end_before != data_bytes {
        return Err(HeaderError::Trailing { end: end_before, data_bytes });
    }
    Ok(())
}

/// The JSON object of one tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// Checks shape against bytes; `check_cover` has placed the bytes inside the file.
    fn resolve(self, name: String, data_begin: usize) -> Result<TensorInfo, HeaderError> {
        let Some(dtype) = Dtype::parse(&self.dtype) else {
            return Err(HeaderError::Dtype { name, dtype: clipped(&self.dtype) });
        };
        let [begin, end] = self.data_offsets;
        let bits = self.shape.iter().try_fold(dtype.bits() as u64, |bits, &dim| bits.checked_mul(dim));
        if bits != (end - begin).checked_mul(8) || bits.is_none() {
            let needed = bits.map_or("more than 2^61".to_owned(), |bits| bits.div_ceil(8).to_string());
            return Err(HeaderError::Size { name, shape: self.shape, dtype, needed, given: end - begin });
        }
        // A dimension can exceed the address space only beside a zero one.
        let shape = self.shape.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
        Ok(TensorInfo { name, dtype, shape, bytes: data_begin + begin as usize..data_begin + end as usize })
    }
}

/// The header's entries in file order. A name that stands twice is refused: JSON maps would keep the last silently.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut seen = std::collections::HashSet::new();
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    check_name(&name).map_err(A::Error::custom)?;
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("{name} stands in it twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let entry = map.next_value().map_err(|e| A::Error::custom(format_args!("{name}: {e}")))?;
                        entries.push((name, entry));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Names stand in messages: one that no checkpoint has must not make a refusal longer than a line.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    if name.len() <= TENSOR_NAME_BYTES_MAX && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(format!("{} is no name of a tensor: {TENSOR_NAME_BYTES_MAX} bytes of plain text at most", clipped(name)))
}

impl Dtype {
    const OTHERS: [(&'static str, usize); 17] = [
        ("F64", 64),
        ("C64", 64),
        ("U64", 64),
        ("I32", 32),
        ("U32", 32),
        ("F16", 16),
        ("I16", 16),
        ("U16", 16),
        ("I8", 8),
        ("U8", 8),
        ("BOOL", 8),
        ("F8_E5M2", 8),
        ("F8_E4M3", 8),
        ("F8_E8M0", 8),
        ("F6_E2M3", 6),
        ("F6_E3M2", 6),
        ("F4", 4),
    ];

    pub fn parse(name: &str) -> Option<Dtype> {
        match name {
            "BF16" => Some(Dtype::Bf16),
            "F32" => Some(Dtype::F32),
            "I64" => Some(Dtype::I64),
            _ => Self::OTHERS.iter().find(|(known, _)| *known == name).map(|&(name, bits)| Dtype::Other(name, bits)),
        }
    }

    /// Bits of one element.
    pub fn bits(self) -> usize {
        match self {
            Dtype::Bf16 => 16,
            Dtype::F32 => 32,
            Dtype::I64 => 64,
            Dtype::Other(_, bits) => bits,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
            Dtype::I64 => "I64",
            Dtype::Other(name, _) => name,
        })
    }
}

/// A tensor to be written: name, dtype, shape and its bytes, little endian.
pub struct TensorOut<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

/// Writes a file that [`read_header`] and every other reader accept; the data begins at a multiple of 8.
pub fn write(out: &mut impl std::io::Write, tensors: &[TensorOut]) -> std::io::Result<()> {
    let mut header = String::from("{");
    let mut begin = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        let end = begin + tensor.bytes.len();
        let name = serde_json::Value::from(tensor.name);
        let comma = if index == 0 { "" } else { "," };
        header += &format!(
            "{comma}{name}:{{\"dtype\":\"{}\",\"shape\":{:?},\"data_offsets\":[{begin},{end}]}}",
            tensor.dtype, tensor.shape
        );
        begin = end;
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    tensors.iter().try_for_each(|tensor| out.write_all(tensor.bytes))
}
