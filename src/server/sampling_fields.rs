//! The fields of a request that choose tokens: their ranges on the wire, and what they make of the model's defaults.
//!
//! Every number is checked before anything of the request is admitted, and refused by name with its value and its range
//! (B41, B43): an impossible parameter never reaches the engine.

use serde_json::Value;

use crate::error::Rejection;
use crate::limits::{
    ALLOWED_TOKEN_IDS_MAX, BAD_WORD_TOKENS_MAX, BAD_WORDS_MAX, CHOICES_PER_PROMPT_MAX, LOGIT_BIASES_MAX,
    STOP_TOKEN_IDS_MAX, TOKENS_PER_BAD_WORD_MAX,
};
use crate::request::LOGPROBS_MAX;
use crate::sampling::SamplingParams;
use crate::server::ServedModel;

/// What a request says; none: the model's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingFields {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub seed: Option<u64>,
    /// Choices a prompt.
    pub n: Option<usize>,
    pub repetition_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub min_tokens: u32,
    /// Ids as sent, ascending; whether the model has them is checked later.
    pub logit_bias: Vec<(u64, f32)>,
    pub allowed_token_ids: Option<Vec<u64>>,
    pub stop_token_ids: Vec<u64>,
    /// Text; tokenised later.
    pub bad_words: Vec<String>,
}

impl SamplingFields {
    pub const NAMES: [&str; 18] = [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "seed",
        "n",
        "best_of",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "min_tokens",
        "logit_bias",
        "allowed_token_ids",
        "stop_token_ids",
        "bad_words",
    ];

    /// Takes the value of the field `name`, one of [`SamplingFields::NAMES`]; null is the default.
    pub fn read(&mut self, name: &str, value: Value) -> Result<(), Rejection> {
        if value.is_null() {
            return Ok(());
        }
        match name {
            "temperature" => self.temperature = Some(number("temperature", &value, 0.0..=2.0, "0 to 2")?),
            "top_p" => self.top_p = Some(number("top_p", &value, 0.0..=1.0, "0 to 1")?),
            "min_p" => self.min_p = Some(number("min_p", &value, 0.0..=1.0, "0 to 1")?),
            "typical_p" => {
                let typical_p = number("typical_p", &value, 0.0..=1.0, "above 0, at most 1")?;
                if typical_p == 0.0 {
                    return Err(out_of_range("typical_p", &value, "above 0, at most 1"));
                }
                self.typical_p = Some(typical_p);
            }
            "xtc_probability" => self.xtc_probability = Some(number("xtc_probability", &value, 0.0..=1.0, "0 to 1")?),
            "xtc_threshold" => self.xtc_threshold = Some(number("xtc_threshold", &value, 0.0..=1.0, "0 to 1")?),
            "top_k" => {
                let expected = "-1 or 0 (off), or a whole number of tokens";
                let k = whole("top_k", &value, -1..=i64::from(i32::MAX), expected)?;
                self.top_k = Some(k.max(0) as u32);
            }
            "seed" => self.seed = Some(seed(&value)?),
            "n" => {
                let n = whole("n", &value, 1..=CHOICES_PER_PROMPT_MAX as i64, "1 to 128")?;
                self.n = Some(n as usize);
            }
            "best_of" => return Err(Rejection::BestOf),
            "repetition_penalty" => {
                self.repetition_penalty = Some(number("repetition_penalty", &value, 0.01..=2.0, "0.01 to 2")?)
            }
            "frequency_penalty" => {
                self.frequency_penalty = Some(number("frequency_penalty", &value, -2.0..=2.0, "-2 to 2")?)
            }
            "presence_penalty" => {
                self.presence_penalty = Some(number("presence_penalty", &value, -2.0..=2.0, "-2 to 2")?)
            }
            "min_tokens" => {
                let expected = "0 or a whole number of tokens";
                self.min_tokens = whole("min_tokens", &value, 0..=i64::from(i32::MAX), expected)? as u32;
            }
            "logit_bias" => self.logit_bias = logit_bias(&value)?,
            "allowed_token_ids" => {
                let ids = token_ids("allowed_token_ids", &value, 1..=ALLOWED_TOKEN_IDS_MAX, "1 to 1024 ids")?;
                self.allowed_token_ids = Some(ids);
            }
            "stop_token_ids" => {
                self.stop_token_ids = token_ids("stop_token_ids", &value, 0..=STOP_TOKEN_IDS_MAX, "at most 16 ids")?
            }
            "bad_words" => self.bad_words = bad_words(&value)?,
            _ => unreachable!("{name} is not a sampling field"),
        }
        Ok(())
    }

    /// The parameters of choice 0. `salt` is the seed of a request that names none: fixed here, once, so that whatever
    /// becomes of the request its draws stay the same.
    pub fn over(&self, defaults: &SamplingParams, salt: impl FnOnce() -> u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            typical_p: self.typical_p.unwrap_or(defaults.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(defaults.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(defaults.xtc_threshold),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            min_tokens: self.min_tokens,
            seed: self.seed.unwrap_or_else(salt),
            ..defaults.clone()
        }
    }

    /// The parts that name token ids, checked against the model, into `params`; returns the stop ids. An id the model
    /// does not have is refused by name and place (B43).
    pub fn resolve(&mut self, model: &ServedModel, params: &mut SamplingParams) -> Result<Vec<u32>, Rejection> {
        let id = |param: &'static str, id: u64| match u32::try_from(id) {
            Ok(narrow) if (narrow as usize) < model.vocab_size => Ok(narrow),
            _ => Err(Rejection::NoSuchToken { param, id, vocab_size: model.vocab_size }),
        };
        for &(token, bias) in &self.logit_bias {
            params.logit_bias.push((id("logit_bias", token)?, bias));
        }
        if let Some(allowed) = self.allowed_token_ids.take() {
            let allowed = allowed.into_iter().map(|token| id("allowed_token_ids", token)).collect::<Result<_, _>>()?;
            params.allowed_token_ids = Some(allowed);
        }
        let mut tokens = 0;
        for (index, word) in self.bad_words.iter().enumerate() {
            // A word in the middle of a text has a space in front of it.
            for text in [word.clone(), format!(" {word}")] {
                let ids =
                    model.tokenizer.encode(&text).map_err(|e| Rejection::BadWord { index, why: e.to_string() })?;
                let (count, limit) = (ids.len(), TOKENS_PER_BAD_WORD_MAX);
                if count == 0 || count > limit {
                    let why = format!("it has {count} tokens where 1 to {limit} can be banned");
                    return Err(Rejection::BadWord { index, why });
                }
                tokens += count;
                params.bad_words.push(ids);
            }
        }
        params.bad_words.sort_unstable();
        params.bad_words.dedup();
        if tokens > BAD_WORD_TOKENS_MAX {
            let value = format!("{tokens} tokens in all");
            return Err(Rejection::OutOfRange { param: "bad_words", value, expected: "at most 1024 tokens in all" });
        }
        self.stop_token_ids.iter().map(|&token| id("stop_token_ids", token)).collect()
    }
}

/// `{"id": bias}`, ids as decimal strings.
fn logit_bias(value: &Value) -> Result<Vec<(u64, f32)>, Rejection> {
    let map = value.as_object().ok_or_else(|| wrong_type("logit_bias", value, "an object of token ids"))?;
    if map.len() > LOGIT_BIASES_MAX {
        let value = format!("{} entries", map.len());
        return Err(Rejection::OutOfRange { param: "logit_bias", value, expected: "at most 1024 entries" });
    }
    let mut biases = Vec::with_capacity(map.len());
    for (key, bias) in map {
        let Ok(id) = key.parse::<u64>() else {
            let key = Value::String(key.clone());
            return Err(wrong_type("logit_bias", &key, "a token id in digits"));
        };
        biases.push((id, number("logit_bias", bias, -100.0..=100.0, "-100 to 100 for every id")?));
    }
    // "7" and "07" are one id.
    biases.sort_by_key(|&(id, _)| id);
    if let Some(twice) = biases.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Rejection::DuplicateField(format!("logit_bias.{}", twice[0].0)));
    }
    Ok(biases)
}

fn token_ids(
    param: &'static str,
    value: &Value,
    count: std::ops::RangeInclusive<usize>,
    expected: &'static str,
) -> Result<Vec<u64>, Rejection> {
    let list = value.as_array().ok_or_else(|| wrong_type(param, value, "a list of token ids"))?;
    if !count.contains(&list.len()) {
        return Err(Rejection::OutOfRange { param, value: format!("a list of {}", list.len()), expected });
    }
    list.iter().map(|id| id.as_u64().ok_or_else(|| wrong_type(param, id, "a token id"))).collect()
}

fn bad_words(value: &Value) -> Result<Vec<String>, Rejection> {
    let list = value.as_array().ok_or_else(|| wrong_type("bad_words", value, "a list of strings"))?;
    if list.len() > BAD_WORDS_MAX {
        let value = format!("a list of {}", list.len());
        return Err(Rejection::OutOfRange { param: "bad_words", value, expected: "at most 64 words" });
    }
    let word = |word: &Value| match word.as_str() {
        Some(word) if !word.is_empty() => Ok(word.to_owned()),
        _ => Err(wrong_type("bad_words", word, "a word")),
    };
    list.iter().map(word).collect()
}

fn out_of_range(param: &'static str, value: &Value, expected: &'static str) -> Rejection {
    Rejection::OutOfRange { param, value: value.to_string(), expected }
}

fn wrong_type(param: &'static str, value: &Value, expected: &str) -> Rejection {
    Rejection::WrongType { param: param.to_owned(), message: format!("{value} is not {expected}") }
}

fn number(
    param: &'static str,
    value: &Value,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<f32, Rejection> {
    let number = value.as_f64().ok_or_else(|| wrong_type(param, value, "a number"))?;
    if range.contains(&number) { Ok(number as f32) } else { Err(out_of_range(param, value, expected)) }
}

fn whole(
    param: &'static str,
    value: &Value,
    range: std::ops::RangeInclusive<i64>,
    expected: &'static str,
) -> Result<i64, Rejection> {
    match value.as_i64() {
        Some(whole) if range.contains(&whole) => Ok(whole),
        None if !value.is_number() || value.is_f64() => Err(wrong_type(param, value, "a whole number")),
        _ => Err(out_of_range(param, value, expected)),
    }
}

/// How many of the most likely tokens to report: up to [`LOGPROBS_MAX`], or null for no log-probabilities at all.
pub fn top_count(param: &'static str, value: Value) -> Result<Option<u32>, Rejection> {
    match value {
        Value::Null => Ok(None),
        value => Ok(Some(whole(param, &value, 0..=LOGPROBS_MAX as i64, "0 to 20")? as u32)),
    }
}

/// 64 bits, signed or not.
fn seed(value: &Value) -> Result<u64, Rejection> {
    let bits = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
    bits.ok_or_else(|| wrong_type("seed", value, "a whole number of 64 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(name: &str, value: Value) -> Result<SamplingFields, Rejection> {
        let mut fields = SamplingFields::default();
        fields.read(name, value).map(|()| fields)
    }

    #[test]
    fn values_inside_their_ranges_are_taken_at_both_ends() {
        // B41: 0 and 1 of top_p are inside.
        for (name, values) in [
            ("temperature", vec![json!(0), json!(-0.0), json!(2), json!(1e-320)]),
            ("top_p", vec![json!(0), json!(1.0)]),
            ("min_p", vec![json!(0), json!(1)]),
            ("typical_p", vec![json!(0.001), json!(1)]),
            ("top_k", vec![json!(-1), json!(0), json!(1), json!(2147483647)]),
            ("seed", vec![json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN)]),
            ("n", vec![json!(1), json!(128)]),
            ("xtc_probability", vec![json!(1)]),
            ("xtc_threshold", vec![json!(0.5)]),
        ] {
            for value in values {
                assert!(read(name, value.clone()).is_ok(), "{name} {value}");
            }
            assert_eq!(read(name, Value::Null), Ok(SamplingFields::default()));
        }
        assert_eq!(read("top_k", json!(-1)).unwrap().top_k, Some(0));
        assert_eq!(read("seed", json!(-1)).unwrap().seed, Some(u64::MAX));
    }

    #[test]
    fn values_outside_are_refused_with_name_value_and_range() {
        for (name, value, words) in [
            ("temperature", json!(2.1), "temperature is 2.1: expected 0 to 2"),
            ("temperature", json!(-1), "temperature is -1: expected 0 to 2"),
            ("top_p", json!(1.0001), "top_p is 1.0001: expected 0 to 1"),
            ("min_p", json!(-0.1), "min_p is -0.1: expected 0 to 1"),
            ("typical_p", json!(0), "typical_p is 0: expected above 0"),
            ("top_k", json!(-2), "top_k is -2: expected -1 or 0"),
            ("top_k", json!(2147483648u64), "top_k is 2147483648"),
            ("n", json!(0), "n is 0: expected 1 to 128"),
            ("n", json!(u64::MAX), "n is 18446744073709551615"),
            ("temperature", json!("hot"), "temperature: \"hot\" is not a number"),
            ("top_k", json!(1.5), "top_k: 1.5 is not a whole number"),
            ("seed", json!(1.5), "seed: 1.5 is not a whole number of 64 bits"),
            ("seed", json!([1]), "seed: [1] is not a whole number"),
        ] {
            let rejection = read(name, value).unwrap_err();
            assert!(rejection.to_string().contains(words), "{rejection}");
            assert_eq!((rejection.param(), rejection.status().as_u16()), (Some(name), 400));
        }
        assert_eq!(read("best_of", json!(1)), Err(Rejection::BestOf));
    }

    #[test]
    fn b43_lists_and_maps_of_ids_are_refused_by_name() {
        let many: serde_json::Map<String, Value> = (0..1025).map(|id: u32| (id.to_string(), json!(1))).collect();
        for (name, value, words) in [
            ("logit_bias", json!({"7": 100.5}), "logit_bias is 100.5: expected -100 to 100"),
            ("logit_bias", json!({"seven": 1}), "logit_bias: \"seven\" is not a token id in digits"),
            ("logit_bias", json!({"-1": 1}), "\"-1\" is not a token id"),
            ("logit_bias", json!({"7": 1, "07": 2}), "logit_bias.7"),
            ("logit_bias", json!([[7, 1]]), "is not an object of token ids"),
            ("logit_bias", Value::Object(many), "logit_bias is 1025 entries"),
            ("allowed_token_ids", json!([]), "allowed_token_ids is a list of 0"),
            ("allowed_token_ids", json!([1.5]), "allowed_token_ids: 1.5 is not a token id"),
            ("stop_token_ids", json!(vec![1; 17]), "stop_token_ids is a list of 17"),
            ("bad_words", json!([""]), "bad_words: \"\" is not a word"),
            ("bad_words", json!("word"), "bad_words: \"word\" is not a list"),
            ("min_tokens", json!(-1), "min_tokens is -1"),
            ("frequency_penalty", json!(2.5), "frequency_penalty is 2.5: expected -2 to 2"),
            ("presence_penalty", json!(-2.5), "presence_penalty is -2.5"),
            ("repetition_penalty", json!(0), "repetition_penalty is 0: expected 0.01 to 2"),
        ] {
            let rejection = read(name, value).unwrap_err();
            assert!(rejection.to_string().contains(words), "{rejection}");
            assert_eq!(rejection.status().as_u16(), 400);
        }
        let read = read("logit_bias", json!({"9": -100, "7": 100})).unwrap();
        assert_eq!(read.logit_bias, [(7, 100.0), (9, -100.0)]);
    }

    #[test]
    fn t000_9_a_request_without_a_seed_gets_its_salt_once() {
        let defaults = SamplingParams { temperature: 1.0, top_k: 64, top_p: 0.95, ..SamplingParams::greedy() };
        let silent = SamplingFields::default().over(&defaults, || 77);
        assert_eq!(silent, SamplingParams { seed: 77, ..defaults.clone() });
        let fields = SamplingFields { seed: Some(5), temperature: Some(0.5), top_k: Some(0), ..Default::default() };
        let said = fields.over(&defaults, || unreachable!("a seed was given"));
        assert_eq!((said.seed, said.temperature, said.top_k, said.top_p), (5, 0.5, 0, 0.95));
    }
}
