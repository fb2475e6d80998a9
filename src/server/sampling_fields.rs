//! The fields of a request that choose tokens: their ranges on the wire, and what they make of the model's defaults.
//!
//! Every number is checked before anything of the request is admitted, and refused by name with its value and its range
//! (B41, B43): an impossible parameter never reaches the engine.

use serde_json::Value;

use crate::error::Rejection;
use crate::limits::CHOICES_PER_PROMPT_MAX;
use crate::sampling::SamplingParams;

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
}

impl SamplingFields {
    pub const NAMES: [&str; 10] = [
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
            seed: self.seed.unwrap_or_else(salt),
            ..defaults.clone()
        }
    }
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
    fn t000_9_a_request_without_a_seed_gets_its_salt_once() {
        let defaults = SamplingParams { temperature: 1.0, top_k: 64, top_p: 0.95, ..SamplingParams::greedy() };
        let silent = SamplingFields::default().over(&defaults, || 77);
        assert_eq!(silent, SamplingParams { seed: 77, ..defaults.clone() });
        let fields = SamplingFields { seed: Some(5), temperature: Some(0.5), top_k: Some(0), ..Default::default() };
        let said = fields.over(&defaults, || unreachable!("a seed was given"));
        assert_eq!((said.seed, said.temperature, said.top_k, said.top_p), (5, 0.5, 0, 0.95));
    }
}
