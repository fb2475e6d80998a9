//! The sampler's kernels on the software device against the oracle (`src/sampler/oracle.rs`). Tests carry the ids of
//! the rows they stand for (`t000_4_...`).

mod cases;
mod overlays;
mod parity;
mod rig;
mod rules;

use gemma4_serve::device::DeviceChoice;

#[test]
fn t000_15_device_and_oracle_agree_over_vocabulary_257() {
    let met = parity::check(rig::device(DeviceChoice::Soft), 1, 257, 1500, 60);
    assert!(met.is_enough(), "{met:?}");
}

#[test]
fn t000_15_device_and_oracle_agree_over_vocabulary_512() {
    let met = parity::check(rig::device(DeviceChoice::Soft), 2, 512, 1000, 126);
    assert!(met.is_enough(), "{met:?}");
}

#[test]
fn t000_15_device_and_oracle_agree_over_vocabulary_20000() {
    let met = parity::check(rig::device(DeviceChoice::Soft), 3, 20_000, 96, 16);
    assert!(met.is_enough(), "{met:?}");
}

#[test]
fn t000_15_device_and_oracle_agree_over_vocabulary_262144() {
    let met = parity::check(rig::device(DeviceChoice::Soft), 4, 262_144, 24, 8);
    assert!(met.tokens > 10 && met.drawn > 4, "{met:?}");
}
