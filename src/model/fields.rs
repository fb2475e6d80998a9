//! Typed reading of a JSON object's fields. Every error carries the file and the dotted path of the field.

use serde_json::{Map, Value};

/// Why a configuration is refused. `Display` names the file, the field and the value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("{file}: not a JSON object: {why}")]
    Json { file: &'static str, why: String },
    #[error("{file}: {field} is missing")]
    Missing { file: &'static str, field: String },
    #[error("{file}: {field} is {found}, expected {expected}")]
    WrongType { file: &'static str, field: String, expected: &'static str, found: String },
    #[error("{file}: {field} is {value}, expected {min} to {max}")]
    OutOfRange { file: &'static str, field: String, value: String, min: String, max: String },
    #[error("{file}: {field} is {value}: {why}")]
    Unsupported { file: &'static str, field: String, value: String, why: String },
}

/// One JSON object and where it stands.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    file: &'static str,
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The top object of a file.
    pub fn top(file: &'static str, value: &'a Value) -> Result<Self, ConfigError> {
        let map =
            value.as_object().ok_or_else(|| ConfigError::Json { file, why: format!("it is {}", shown(value)) })?;
        Ok(Fields { file, path: String::new(), map })
    }

    /// Dotted path of a field of this object.
    pub fn path(&self, key: &str) -> String {
        let key = clipped(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    pub fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// The value of a field; null counts as absent, as it does in the published files.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        self.get(key)
            .map(|v| match v.as_object() {
                Some(map) => Ok(Fields { file: self.file, path: self.path(key), map }),
                None => Err(self.wrong_type(key, "an object", v)),
            })
            .transpose()
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ConfigError> {
        self.get(key)
            .map(|v| v.as_array().map(Vec::as_slice).ok_or_else(|| self.wrong_type(key, "a list", v)))
            .transpose()
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| self.wrong_type(key, "a string", v))).transpose()
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.get(key).map(|v| v.as_bool().ok_or_else(|| self.wrong_type(key, "true or false", v))).transpose()
    }

    /// An integer within `min..=max`; `64.0` and `"64"` are not integers.
    pub fn count(&self, key: &str, min: usize, max: usize) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        if !value.is_i64() && !value.is_u64() {
            return Err(self.wrong_type(key, "an integer", value));
        }
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (min..=max).contains(&n) => Ok(Some(n)),
            _ => Err(self.out_of_range(key, value, min, max)),
        }
    }

    pub fn require_count(&self, key: &str, min: usize, max: usize) -> Result<usize, ConfigError> {
        self.count(key, min, max)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number within `min..=max`, written as an integer or not.
    pub fn number(&self, key: &str, min: f64, max: f64) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(key, "a number", value))?;
        if number >= min && number <= max { Ok(Some(number)) } else { Err(self.out_of_range(key, value, min, max)) }
    }

    /// Token ids: one id or a list of ids, each at most `max`; absent or null is an empty list.
    pub fn token_ids(&self, key: &str, max: usize) -> Result<Vec<u32>, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        list.iter()
            .map(|v| match v.as_u64() {
                Some(id) if id <= max as u64 => Ok(id as u32),
                Some(_) => Err(self.out_of_range(key, v, 0, max)),
                None => Err(self.wrong_type(key, "a token id or a list of token ids", v)),
            })
            .collect()
    }

    pub fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing { file: self.file, field: self.path(key) }
    }

    pub fn wrong_type(&self, key: &str, expected: &'static str, found: &Value) -> ConfigError {
        ConfigError::WrongType { file: self.file, field: self.path(key), expected, found: shown(found) }
    }

    pub fn unsupported(&self, key: &str, value: impl ToString, why: impl Into<String>) -> ConfigError {
        ConfigError::Unsupported {
            file: self.file,
            field: self.path(key),
            value: clipped(&value.to_string()),
            why: why.into(),
        }
    }

    fn out_of_range(&self, key: &str, value: &Value, min: impl ToString, max: impl ToString) -> ConfigError {
        let (min, max) = (min.to_string(), max.to_string());
        ConfigError::OutOfRange { file: self.file, field: self.path(key), value: shown(value), min, max }
    }
}

/// A value as an error shows it: short, whatever the file holds.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("an object of {} fields", map.len()),
        other => clipped(&other.to_string()),
    }
}

/// Text out of a file as an error shows it: of bounded length, and control characters escaped, so that a refusal stays
/// one line.
pub(super) fn clipped(text: &str) -> String {
    const CHARS_MAX: usize = 240;
    let mut shown = String::new();
    for (index, char) in text.chars().enumerate() {
        if index == CHARS_MAX {
            shown += "...";
            break;
        }
        if char.is_control() { shown.extend(char.escape_default()) } else { shown.push(char) }
    }
    shown
}
