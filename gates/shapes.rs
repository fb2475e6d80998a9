//! Gate: the real dimensions.
//!
//! Two layers of each published size, one sliding and one global, and two or three more where a tail shares K and V,
//! with weights made up on the device. 40 or 130 tokens by prefill, by decode through captured graphs, and in chunks of
//! 7 give one set of bytes: every hidden state and the logits. What each product of these sizes gives, row by row, is
//! checked beside the kernels (csrc/tests/widths_test.cpp).

mod common;
#[path = "common/scores.rs"]
mod scores;

use common::Gate;
use gemma4_serve::config::ScorePath;
use gemma4_serve::device::{DeviceKind, soft};
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::config::{LayerConfig, LayerKind};
use gemma4_serve::model::kernels::KernelImage;
use gemma4_serve::model::plan::TablePlace;
use gemma4_serve::model::synthetic::{SyntheticModel, Variant};
use gemma4_serve::score::{ScoreOptions, score};
use scores::differences;

/// Two layers of the 31B and its embedding are 5 GB, those of the 26B-A4B 5 GB too; and buffers of 130 rows.
const MEMORY_BYTES: u64 = 8 << 30;

fn main() {
    let mut gate = Gate::start("shapes");
    let device = Gate::device();
    assert!(device != DeviceKind::Soft || soft::set("memory_bytes", MEMORY_BYTES), "memory is set before it is used");
    // Layers, and tokens of the prompt: more than a page and a bucket's tiles not full; so many that a prompt has large
    // tiles of experts and the tiled products, which decode has not.
    let sizes = [
        (Variant::E2b, 4, 40),
        (Variant::E4b, 5, 40),
        (Variant::Dense12b, 2, 40),
        (Variant::Moe26b, 2, 130),
        (Variant::Dense31b, 2, 40),
    ];
    for &(variant, layers, tokens) in if gate.full { &sizes[..] } else { &sizes[..1] } {
        let model = SyntheticModel { variant, layers: Some(layers) };
        let checkpoint = Checkpoint::synthetic(&model).expect("a synthetic model opens");
        let config = &checkpoint.config;
        let both = |layers: &[LayerConfig]| {
            [LayerKind::Sliding, LayerKind::Global].iter().all(|kind| layers.iter().any(|layer| layer.kind == *kind))
        };
        let (own, shared) = config.layers.split_at(config.layers_with_kv());
        let all = both(own) && if layers == 2 { shared.is_empty() } else { both(shared) };
        let counts = format!("{} layers with K and V of their own, {} without", own.len(), shared.len());
        gate.fact(all, &format!("{model}: sliding and global ones among {counts}"));

        let ids: Vec<u32> = (0..tokens).map(|i| ((2 + 7919 * i) % config.vocab) as u32).collect();
        let run = |path, graphs| {
            let options =
                ScoreOptions { path, graphs, hidden: true, segment: None, per_layer_table: TablePlace::Device };
            score(&checkpoint, device, KernelImage::Shipped(device), &ids, options).expect("a score")
        };
        let prefill = run(ScorePath::Prefill, false);
        let most = prefill.logits.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let finite = prefill.logits.iter().all(|logit| logit.is_finite());
        gate.fact(finite && most > 0.1 && most < 30.0, &format!("{model}: logits are finite and up to {most}"));
        for (path, graphs) in [(ScorePath::Decode, true), (ScorePath::Chunks(7), false)] {
            let different = differences(&prefill, &run(path, graphs));
            let label = format!("{model}: {tokens} tokens by {path:?} equal prefill");
            gate.fact(different.is_none(), &format!("{label} {}", different.unwrap_or_default()));
        }
    }
    gate.finish();
}
