//! The memory plan of every served size at two contexts and three numbers of slots: each line, page count and byte
//! against arithmetic from the published shapes (spec/gemma4.md, 1.2 and 3), written here a second time.

use clap::ValueEnum;
use gemma4_serve::model::checkpoint::Checkpoint;
use gemma4_serve::model::config::{LayerKind, ModelConfig};
use gemma4_serve::model::plan::{MemoryPlan, PlanOptions, kv_bytes_a_token, weight_bytes_a_step};
use gemma4_serve::model::synthetic::{SyntheticModel, Variant};

/// A size a line. `l`: layers; `every`: from one global layer to the next; `kv`: KV heads of sliding and global layers;
/// `share`: layers at the end that read another's K and V, whose MLP is `wide`; `ple`: width of the per-layer
/// embeddings; `k=v`: global layers have no V matrix; `exp`: experts of a layer, of which a token goes to `top`, each
/// `x-w` wide. Then what the specification works out: KV bytes a token of both families, and gigabytes read a token.
const SIZES: &str = "
    size     hid  l every heads kv-s kv-f   mlp  wide share  win ple k=v exp top x-w  kvb-s kvb-f   gb
    e2b     1536 35     5     8    1    1  6144 12288    20  512 256   0   0   0   0  12288  6144  4.6
    e4b     2560 42     6     8    2    2 10240 10240    18  512 256   0   0   0   0  40960 16384  9.3
    12b     3840 48     6    16    8    1 15360 15360     0 1024   0   1   0   0   0 327680 16384 23.8
    26b-a4b 2816 30     6    16    8    2  2112  2112     0 1024   0   1 128   8 704 204800 20480  7.6
    31b     5376 60     6    32   16    4 21504 21504     0 1024   0   1   0   0   0 819200 81920 61.4
";
const VOCAB: u64 = 262_144;
const CONTEXTS: [u64; 2] = [8_192, 131_072];
const SLOTS: [u64; 3] = [1, 8, 64];
const CHUNK: u64 = 2_048;
const PAGE: u64 = 16;
const BF16: u64 = 2;
/// Structs of csrc/gemma4_kernels.h: 9 words, 16 stop ids and 18 words of sampling; 1299 words; 44 words.
const SLOT: u64 = 4 * (9 + 16 + 18);
const BAD_WORDS: u64 = 4 * (1 + 129 + 1024 + 1 + 128 + 16);
const LOGPROBS: u64 = 4 * (4 + 20 + 20);
const RECORD: u64 = 16;
const BIASES: u64 = 2048 * 8;

struct Size {
    variant: Variant,
    hidden: u64,
    layers: u64,
    every: u64,
    heads: u64,
    kv: [u64; 2],
    mlp: u64,
    wide: u64,
    shared: u64,
    window: u64,
    ple: u64,
    k_eq_v: bool,
    experts: u64,
    top: u64,
    expert_wide: u64,
    kv_bytes: [u64; 2],
    read_gb: f64,
}

fn sizes() -> Vec<Size> {
    let mut lines = SIZES.lines().filter(|line| !line.trim().is_empty());
    let names: Vec<&str> = lines.next().expect("a head").split_whitespace().collect();
    let size = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), names.len(), "{line}");
        let word = |name| words[names.iter().position(|n| *n == name).expect("a column")];
        let n = |name| word(name).parse::<u64>().expect("a number");
        Size {
            variant: Variant::from_str(word("size"), false).expect("a size"),
            hidden: n("hid"),
            layers: n("l"),
            every: n("every"),
            heads: n("heads"),
            kv: [n("kv-s"), n("kv-f")],
            mlp: n("mlp"),
            wide: n("wide"),
            shared: n("share"),
            window: n("win"),
            ple: n("ple"),
            k_eq_v: n("k=v") == 1,
            experts: n("exp"),
            top: n("top"),
            expert_wide: n("x-w"),
            kv_bytes: [n("kvb-s"), n("kvb-f")],
            read_gb: word("gb").parse().expect("a number"),
        }
    };
    lines.map(size).collect()
}

/// One layer of the published pattern.
struct Layer {
    global: bool,
    shares: bool,
}

impl Layer {
    fn head_dim(&self) -> u64 {
        if self.global { 512 } else { 256 }
    }
}

impl Size {
    fn pattern(&self) -> impl Iterator<Item = Layer> {
        (0..self.layers)
            .map(|i| Layer { global: i % self.every == self.every - 1, shares: i >= self.layers - self.shared })
    }

    /// K and V matrices of a layer: both, K alone where V is K, none where another's are read.
    fn kv_parts(&self, layer: &Layer) -> u64 {
        match (layer.shares, layer.global && self.k_eq_v) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => 2,
        }
    }

    fn kv_heads(&self, layer: &Layer) -> u64 {
        self.kv[usize::from(layer.global)]
    }

    /// All but those of experts, whose router is one.
    fn matrices(&self) -> u64 {
        let of = |layer: Layer| {
            let (q, kv) = (self.heads * layer.head_dim(), self.kv_heads(&layer) * layer.head_dim());
            let mlp = if layer.shares { self.wide } else { self.mlp };
            self.hidden * (2 * q + self.kv_parts(&layer) * kv + 3 * mlp + 2 * self.ple + self.experts)
        };
        self.pattern().map(of).sum()
    }

    fn expert(&self) -> u64 {
        3 * self.hidden * self.expert_wide
    }

    fn vectors(&self) -> u64 {
        let of = |layer: Layer| {
            // Three norms more beside experts, and the scale of their router's input; a scale an expert.
            let norms = 4 + u64::from(self.ple > 0) + if self.experts > 0 { 4 } else { 0 };
            let head_norms = if layer.shares { 1 } else { 2 };
            norms * self.hidden + 1 + head_norms * layer.head_dim() + self.experts
        };
        self.pattern().map(of).sum::<u64>() + self.hidden + self.ple
    }

    /// Bytes of K and V of one token in the layers of one family that have their own.
    fn kv_bytes_of(&self, global: bool) -> u64 {
        let own = self.pattern().filter(|layer| layer.global == global && !layer.shares);
        own.map(|layer| 2 * self.kv_heads(&layer) * layer.head_dim() * BF16).sum()
    }

    fn kv_bytes_a_layer(&self) -> u64 {
        2 * self.kv[0] * 256 * BF16
    }

    /// Every line of the plan: name and bytes.
    fn lines(&self, context: u64, slots: u64) -> Vec<(&'static str, u64)> {
        let (ring, table) = ((self.window + 1).div_ceil(PAGE), context.div_ceil(PAGE));
        let rows = CHUNK.max(slots);
        let qkv = self.pattern().map(|l| (self.heads + self.kv_parts(&l) * self.kv_heads(&l)) * l.head_dim());
        let width = 3 * self.hidden
            + qkv.max().expect("layers")
            + 2 * self.heads * 512
            + 3 * self.mlp.max(self.wide)
            + self.layers * self.ple;
        let sliding_items = slots * ((self.window - 1).div_ceil(128) + 1);
        let global_items = slots * context.div_ceil(256);
        let mask = 2 * 4 * VOCAB / 32;
        let scored = CHUNK + 1;
        let mut lines = vec![
            ("weights of the layers", self.matrices() * BF16),
            ("embedding and head", VOCAB * self.hidden * BF16),
            ("norms and scalars", self.vectors() * BF16),
            ("staging of packing", 2 * (32 << 20)),
            ("rotary table, sliding", 2 * context * 128 * BF16),
            ("rotary table, global", 2 * context * 64 * BF16),
            ("KV pool, sliding", slots * ring * PAGE * self.kv_bytes[0]),
            ("KV pool, global", slots * table * PAGE * self.kv_bytes[1]),
            ("activations", rows * (width * BF16 + 4 * 4)),
            ("chunk K and V, sliding", (CHUNK / PAGE + 1) * PAGE * self.kv_bytes_a_layer()),
            ("attention partials", (sliding_items * 258).max(global_items * 514) * self.heads * 4),
            ("logits", slots * (VOCAB * 4 + VOCAB / 256 * 16)),
            ("slots and page tables", slots * (SLOT + 4 + 4 * (ring + table))),
            ("sampling overlays", slots * (2 * VOCAB + mask + BIASES + BAD_WORDS) + mask + BIASES + BAD_WORDS),
            (
                "row tables and records",
                128 * 7 * 4
                    + 4 * slots * self.kv[0].max(self.kv[1])
                    + 3 * 4
                    + slots * (SLOT + 4)
                    + scored * (RECORD + LOGPROBS),
            ),
        ];
        if self.experts > 0 {
            lines.push(("weights of experts", self.layers * self.experts * self.expert() * BF16));
            // Of a row its input and the router's logits; of each pair gate | up, their product, the output, ids.
            let pairs = self.top * ((3 * self.expert_wide + self.hidden) * BF16 + 24);
            lines.push(("activations of experts", rows * (self.hidden * BF16 + self.experts * 4 + pairs) + 4));
        }
        if self.ple > 0 {
            lines.push(("per-layer embeddings", VOCAB * self.layers * self.ple * BF16));
            lines.push(("per-layer projection", self.layers * self.ple * self.hidden * BF16));
        }
        lines
    }

    fn config(&self) -> ModelConfig {
        Checkpoint::synthetic(&SyntheticModel { variant: self.variant, layers: None }).expect("a served size").config
    }
}

/// Every slot at its full length, on a device that holds anything.
fn plan(config: &ModelConfig, context: u64, slots: u64, chunk: u64) -> MemoryPlan {
    let options = PlanOptions {
        max_running: slots as usize,
        max_context: Some(context as usize),
        kv_pages: Some((slots * context.div_ceil(PAGE)) as usize),
        prefill_chunk: chunk as usize,
        ..PlanOptions::default()
    };
    MemoryPlan::resolve(config, &options, false, u64::MAX).expect("a plan")
}

fn bytes(plan: &MemoryPlan, name: &str) -> u64 {
    plan.lines.iter().find(|line| line.name == name).unwrap_or_else(|| panic!("no line {name}")).bytes
}

#[test]
fn kv_bytes_a_token_and_weights_read_a_step_are_the_specifications() {
    for size in sizes() {
        let (config, name) = (size.config(), size.variant.name());
        assert_eq!([false, true].map(|global| size.kv_bytes_of(global)), size.kv_bytes, "{name}: the table itself");
        let kv = [LayerKind::Sliding, LayerKind::Global].map(|kind| kv_bytes_a_token(&config, kind));
        assert_eq!(kv, size.kv_bytes, "{name}");
        let looked_at = size.layers * size.top * size.expert() + (VOCAB + size.layers * size.ple) * size.hidden;
        let read = BF16 * (size.matrices() + size.vectors() + looked_at);
        assert_eq!(weight_bytes_a_step(&config, 1), read, "{name}");
        assert!((read as f64 / 1e9 - size.read_gb).abs() < 0.06, "{name}: {read}");
    }
}

#[test]
fn every_line_of_every_size_is_the_arithmetic_of_its_shape() {
    for size in sizes() {
        let config = size.config();
        for context in CONTEXTS {
            for slots in SLOTS {
                let what = format!("{}, {context} tokens, {slots} slots", size.variant.name());
                let plan = plan(&config, context, slots, CHUNK);
                let expected = size.lines(context, slots);
                for (name, expected) in &expected {
                    assert_eq!(bytes(&plan, name), *expected, "{what}: {name}");
                }
                let known = |name: &str| expected.iter().any(|(known, _)| *known == name);
                let new: Vec<&str> = plan.lines.iter().map(|line| line.name).filter(|name| !known(name)).collect();
                assert!(new.is_empty(), "{what}: lines without arithmetic in this test: {new:?}");
                assert_eq!(plan.total_bytes, expected.iter().map(|(_, bytes)| bytes).sum::<u64>(), "{what}");
                let g = &plan.geometry;
                let pages = [g.ring_pages, g.sliding_pages, g.global_table_pages, g.global_pages].map(|n| n as u64);
                let (ring, table) = ((size.window + 1).div_ceil(PAGE), context.div_ceil(PAGE));
                assert_eq!(pages, [ring, slots * ring, table, slots * table], "{what}");
                assert_eq!(plan.full_sequences() as u64, slots, "{what}");
            }
        }
    }
}

/// B78, <https://github.com/tenstorrent/tt-xla/issues/5727>: sliding layers were sized for the whole context, and 50 of
/// 60 layers over-allocated.
#[test]
fn b78_the_sliding_family_costs_a_window_and_a_chunk_a_sequence_whatever_the_context() {
    for size in sizes() {
        let config = size.config();
        for slots in SLOTS {
            let mut whole = None;
            for context in [16, 100, size.window, size.window + 1, 8_192, 65_536, config.max_position as u64] {
                for chunk in [1, 16, 1_000, CHUNK] {
                    let plan = plan(&config, context, slots, chunk);
                    let what = format!("{}, {context} tokens, {slots} slots, {chunk}", size.variant.name());
                    let (pool, scratch) = (bytes(&plan, "KV pool, sliding"), bytes(&plan, "chunk K and V, sliding"));
                    let pages = (size.window.min(context) + 1).div_ceil(PAGE);
                    assert!(pool <= slots * pages * PAGE * size.kv_bytes[0], "{what}: {pool}");
                    // A chunk is one layer's, for all sequences together, and may begin inside a page.
                    let chunk_pages = chunk.min(context).div_ceil(PAGE) + 1;
                    assert_eq!(scratch, chunk_pages * PAGE * size.kv_bytes_a_layer(), "{what}");
                    if context > size.window {
                        assert_eq!(*whole.get_or_insert(pool), pool, "{what}: grows with the context");
                    }
                }
            }
        }
    }
}
