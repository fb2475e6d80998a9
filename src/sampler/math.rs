//! The sampler's arithmetic on the host: the mirror of `csrc/common/math.h` (`exp_poly`) and `sampling_math.h`,
//! operation by operation, so that a token drawn here is the token drawn on the device.

// The literals of the headers, digit for digit.
#![allow(clippy::excessive_precision)]

/// `exp_poly`: 0 below -104, infinite above 89.
pub fn exp(x: f32) -> f32 {
    let c = x.clamp(-104.0, 89.0); // NaN passes
    let round = 12_582_912.0f32;
    let shifted = c * 1.442_695_02 + round;
    let n = shifted - round;
    let r = (c - n * 0.693_145_752) - n * 1.428_606_77e-6;
    let mut q = 0.001_381_443_11f32;
    for coefficient in [0.008_368_796_67, 0.041_668_396_4, 0.166_665_196, 0.499_999_94] {
        q = q * r + coefficient;
    }
    let y = 1.0 + (r + (r * r) * q);
    let k = shifted.to_bits().wrapping_sub(0x4b40_0000).wrapping_add(512);
    let (low, high) = ((k / 2).wrapping_sub(256), (k - k / 2).wrapping_sub(256));
    let power = |e: u32| f32::from_bits(e.wrapping_add(127) << 23);
    (y * power(low)) * power(high)
}

/// Natural logarithm of a normal positive number, or of 0 or infinity.
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    if x.is_nan() || x <= 0.0 {
        return if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    }
    if bits >= 0x7f80_0000 {
        return x;
    }
    let shifted = bits.wrapping_add(0x3f80_0000 - 0x3f35_04f3);
    let k = ((shifted >> 23) as i32 - 127) as f32;
    let f = f32::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let even = w * (0.400_009_721 + w * 0.242_790_788);
    let odd = z * (0.666_666_627 + w * 0.284_987_867);
    let half = (0.5 * f) * f;
    k * 0.693_138_123 - ((half - (s * (half + (odd + even)) + k * 9.058_000_61e-6)) - f)
}

/// The order of floats as unsigned integers; -0 and +0 share a key.
pub fn key_of(v: f32) -> u32 {
    let u = (v + 0.0).to_bits();
    if u & 0x8000_0000 != 0 { !u } else { u | 0x8000_0000 }
}

const MASS_ONE: f32 = 1_099_511_627_776.0;

/// `exp(-distance)` in 40-bit fixed point: sums of it have one value in any order.
pub fn mass(distance: f32) -> u64 {
    (exp(-distance) * MASS_ONE) as u64
}

/// The same, times the distance.
pub fn mass_distance(distance: f32) -> u64 {
    ((exp(-distance) * distance) * MASS_ONE) as u64
}

/// A sum of exponentials as a mass.
pub fn mass_of_sum(sum: f32) -> u64 {
    (MASS_ONE * sum) as u64
}

/// A mass as a sum of exponentials.
pub fn sum_of_mass(mass: u64) -> f32 {
    mass as f32 / MASS_ONE
}

/// The least whole number not below `share * total`, at least 1.
pub fn mass_share(share: f32, total: u64) -> u64 {
    ((f64::from(share) * total as f64).ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every size up to 24 bits of mantissa, by a multiplicative walk.
    fn walk(from: f32, to: f32, count: u32) -> impl Iterator<Item = f32> {
        let ratio = (f64::from(to) / f64::from(from)).ln() / f64::from(count);
        (0..count).map(move |i| (f64::from(from) * (ratio * f64::from(i)).exp()) as f32)
    }

    #[test]
    fn ln_is_within_one_ulp_and_exact_at_one() {
        assert_eq!(ln(1.0), 0.0);
        assert_eq!((ln(0.0), ln(f32::INFINITY)), (f32::NEG_INFINITY, f32::INFINITY));
        assert!(ln(-1.0).is_nan() && ln(f32::NAN).is_nan());
        for x in walk(1.2e-38, 1e38, 200_000).chain(walk(0.5, 2.0, 200_000)) {
            let want = f64::from(x).ln();
            let near = (want as f32).abs();
            let error = (f64::from(ln(x)) - want).abs();
            let spacing = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
            assert!(error <= spacing, "ln({x}) = {} is {error} off {want}", ln(x));
        }
    }

    #[test]
    fn exp_is_within_one_ulp_and_masses_are_monotone() {
        assert_eq!((exp(0.0), exp(-104.5), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        let mut last = 1u64 << 40;
        for x in walk(1e-6, 100.0, 200_000) {
            let want = f64::from(-x).exp();
            let near = want as f32;
            let spacing = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
            assert!((f64::from(exp(-x)) - want).abs() <= spacing, "exp({})", -x);
            assert!(mass(x) <= last, "mass at {x}");
            last = mass(x);
        }
        assert_eq!(mass(0.0), 1 << 40);
    }
}
