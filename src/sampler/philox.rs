//! Philox4x32-10 (Random123) and the noise of the sampler, without state: a draw is a function of the request's seed,
//! the index of the output token, the purpose and the element. Nothing of batch, slot or schedule enters. Mirrors
//! `csrc/common/sampling_math.h`.

// The literals of the header, digit for digit.
#![allow(clippy::excessive_precision)]

use super::math::ln;

/// What a draw is for; draws of different purposes are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Elements are token ids.
    TokenNoise = 0,
    /// Elements are groups of 256 tokens.
    GroupNoise = 1,
    /// One element.
    XtcGate = 5,
}

/// Who draws: one choice of a request at one output index.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    pub seed: u64,
    /// Tokens generated before this one.
    pub output_index: u32,
    /// Of n > 1.
    pub choice: u16,
}

const VERSION: u32 = 1;
const DOMAIN: u32 = 0x6734_6476;

impl Draw {
    /// The random word of an element; four consecutive elements share a block.
    pub fn word(&self, purpose: Purpose, element: u32) -> u32 {
        let third = purpose as u32 | u32::from(self.choice) << 8 | VERSION << 24;
        let counter = [element >> 2, self.output_index, third, DOMAIN];
        philox(counter, [self.seed as u32, (self.seed >> 32) as u32])[element as usize & 3]
    }

    pub fn noise(&self, purpose: Purpose, element: u32) -> f32 {
        gumbel(self.word(purpose, element))
    }
}

pub fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let (a, b) = (0xd251_1f53 * u64::from(c[0]), 0xcd9e_8d57 * u64::from(c[2]));
        c = [(b >> 32) as u32 ^ c[1] ^ key[0], b as u32, (a >> 32) as u32 ^ c[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    c
}

/// In (0, 1]; compare with `<`.
pub fn uniform(word: u32) -> f32 {
    word as f32 * 2.328_306_44e-10 + 1.164_153_22e-10
}

/// Standard Gumbel noise, -2.8 to 22.87 or minus infinity; small words win.
pub fn gumbel(word: u32) -> f32 {
    let u = uniform(word);
    let series = (((0.25 * u + 0.333_333_343) * u + 0.5) * u + 1.0) * u;
    -ln(if u < 0.015_625 { series } else { -ln(1.0 - u) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        assert_eq!(pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn t000_13_noise_is_defined_at_both_ends_of_the_words() {
        assert!((gumbel(0) - 22.87).abs() < 0.01, "{}", gumbel(0));
        assert_eq!(gumbel(u32::MAX), f32::NEG_INFINITY);
        // The largest u below 1 that a word reaches.
        let last = (0..=u32::MAX).rev().step_by(64).map(gumbel).find(|g| g.is_finite()).expect("some word is finite");
        assert!((-2.9..-2.7).contains(&last), "{last}");
    }

    #[test]
    fn noise_agrees_with_double_on_both_sides_of_the_series() {
        for i in 0..400_000u32 {
            let word = i * 10_737;
            let u = f64::from(uniform(word));
            let want = -(-(-u).ln_1p()).ln();
            let got = f64::from(gumbel(word));
            assert!((got - want).abs() <= 2e-6 * (1.0 + want.abs()) || u > 0.99, "word {word}: {got}, want {want}");
        }
    }

    /// Mean and variance of the uniforms of two streams and their correlation, over one row.
    fn correlation(a: impl Fn(u32) -> u32, b: impl Fn(u32) -> u32) -> f64 {
        let n = 262_144u32;
        let sum: f64 = (0..n).map(|i| (f64::from(uniform(a(i))) - 0.5) * (f64::from(uniform(b(i))) - 0.5)).sum();
        sum / f64::from(n) * 12.0
    }

    #[test]
    fn t000_6_streams_of_seeds_indices_choices_and_purposes_are_unrelated() {
        let draw = |seed, output_index, choice, purpose| {
            move |element| Draw { seed, output_index, choice }.word(purpose, element)
        };
        let base = || draw(7, 3, 0, Purpose::TokenNoise);
        let others = [
            draw(8, 3, 0, Purpose::TokenNoise),
            draw(7 | 1 << 63, 3, 0, Purpose::TokenNoise),
            draw(7, 4, 0, Purpose::TokenNoise),
            draw(7, 3, 1, Purpose::TokenNoise),
            draw(7, 3, 0, Purpose::GroupNoise),
        ];
        for (i, other) in others.into_iter().enumerate() {
            let r = correlation(base(), other);
            assert!(r.abs() < 0.01, "stream {i}: {r}"); // five standard errors of 0.002
        }
        assert!(correlation(base(), base()) > 0.99);
        let lag = correlation(base(), |element| base()(element + 1));
        assert!(lag.abs() < 0.01, "{lag}");
        let mut bins = [0u32; 256];
        (0..262_144).for_each(|i| bins[(base()(i) >> 24) as usize] += 1);
        let chi: f64 = bins.iter().map(|&n| (f64::from(n) - 1024.0).powi(2) / 1024.0).sum();
        assert!((170.0..350.0).contains(&chi), "chi-square {chi} of 255 degrees");
    }
}
