//! How many bytes each buffer of the device takes, as lines of arithmetic that a person can check.

use super::config::{ExpertsConfig, LayerConfig, LayerKind, ModelConfig};
use super::kernels::bindings::G4_SAMPLE_GROUP;
use super::kernels::{G4ExpertTile, G4Record, G4Slot};
use super::plan::PlanOptions;
use super::tensors;
use crate::kv::KvShape;
use crate::limits::{BUCKETS, ROWS_MAX};
use crate::sampler::overlays::Overlays;
use crate::scheduler::buckets;
use crate::slots::records_max;

/// The counts that fix every buffer's size. Tokens, pages, rows and items are counts; only `*_bytes` are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub max_running: usize,
    /// Rows of the largest decode bucket: at least `max_running`.
    pub decode_rows: usize,
    /// Tokens of one prompt chunk: `--prefill-chunk`, or the whole context where that is less.
    pub chunk_tokens: usize,
    /// Tokens one sequence can have in the cache, and positions of the rotary tables.
    pub max_context: usize,
    pub page_tokens_sliding: usize,
    pub page_tokens_global: usize,
    /// Keys of an attention segment.
    pub segment_sliding: usize,
    pub segment_global: usize,
    /// Tokens a sliding layer sees, the current one included.
    pub window: usize,
    /// Sliding pages of one slot: W - 1 + 2 tokens (the whole context where that is less), rounded up to pages.
    pub ring_pages: usize,
    /// Sliding pages in all: one ring a running sequence.
    pub sliding_pages: usize,
    /// Global pages in all: `--kv-pages`.
    pub global_pages: usize,
    /// Entries of a slot's global page table: pages of `max_context`.
    pub global_table_pages: usize,
    /// Pages of the scratch that holds a chunk's sliding K and V of one layer; a chunk may begin inside a page.
    pub scratch_pages: usize,
    /// Attention work items of a decode step, at most.
    pub sliding_items: usize,
    pub global_items: usize,
    pub per_layer_table: TablePlace,
}

/// One KV family's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilySizes {
    pub page_tokens: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Entries of a slot's page-table row.
    pub table_pages: usize,
    /// Keys of an attention segment.
    pub segment: usize,
    /// Attention work items of a decode step, at most.
    pub items: usize,
    /// Keys in (q - window, q]; 0: all.
    pub window: usize,
}

/// Where the table of per-layer embeddings lies. A token takes one row of it, [layers][width]: 18 KB of the E2B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TablePlace {
    Device,
    /// In pinned memory, read by kernels across the bus.
    Host,
}

impl std::fmt::Display for TablePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            TablePlace::Device => "device",
            TablePlace::Host => "host",
        })
    }
}

/// One kind of buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub name: &'static str,
    /// What is multiplied, with units.
    pub arithmetic: String,
    pub bytes: u64,
}

impl Geometry {
    pub fn new(config: &ModelConfig, options: &PlanOptions, max_context: usize, global_pages: usize) -> Geometry {
        let (page_s, page_g) = (options.page_tokens_sliding, options.page_tokens_global);
        let max_running = options.max_running;
        let chunk_tokens = options.prefill_chunk.min(max_context);
        let ring_pages = (config.window + 1).min(max_context).div_ceil(page_s);
        // A row's window of W keys touches that many segments, wherever it begins.
        let window_items = (config.window - 1).div_ceil(options.segment_sliding) + 1;
        // A row of t tokens has ceil(t / SEG) segments, and the rows' tokens lie in distinct pages: the pool bounds
        // the sum.
        let by_context = max_running * max_context.div_ceil(options.segment_global);
        let by_pages = global_pages.saturating_mul(page_g) / options.segment_global + max_running;
        Geometry {
            max_running,
            decode_rows: *buckets(max_running).last().unwrap_or(&BUCKETS[0]),
            chunk_tokens,
            max_context,
            page_tokens_sliding: page_s,
            page_tokens_global: page_g,
            segment_sliding: options.segment_sliding,
            segment_global: options.segment_global,
            window: config.window,
            ring_pages,
            sliding_pages: max_running * ring_pages,
            global_pages,
            global_table_pages: max_context.div_ceil(page_g),
            scratch_pages: chunk_tokens.div_ceil(page_s) + 1,
            sliding_items: max_running * window_items,
            global_items: by_context.min(by_pages),
            per_layer_table: options.per_layer_table,
        }
    }

    /// What an allocation or a launch needs of one KV family.
    pub fn family(&self, kind: LayerKind) -> FamilySizes {
        match kind {
            LayerKind::Sliding => FamilySizes {
                page_tokens: self.page_tokens_sliding,
                pages: self.sliding_pages,
                table_pages: self.ring_pages,
                segment: self.segment_sliding,
                items: self.sliding_items,
                window: self.window,
            },
            LayerKind::Global => FamilySizes {
                page_tokens: self.page_tokens_global,
                pages: self.global_pages,
                table_pages: self.global_table_pages,
                segment: self.segment_global,
                items: self.global_items,
                window: 0,
            },
        }
    }

    /// Rows of the activation buffers: a prompt chunk's or the largest decode bucket's.
    pub fn rows_max(&self) -> usize {
        self.chunk_tokens.max(self.decode_rows)
    }

    /// What the scheduler accounts for.
    pub fn kv_shape(&self) -> KvShape {
        KvShape {
            sliding_pages: self.sliding_pages,
            ring_pages: self.ring_pages,
            global_pages: self.global_pages,
            page_tokens_global: self.page_tokens_global,
        }
    }

    /// Bytes of one page of a family over all layers that own K and V in it.
    pub fn page_bytes(&self, config: &ModelConfig, kind: LayerKind) -> u64 {
        config.kv_layers_of(kind).map(|(_, layer)| self.layer_page_bytes(layer)).sum()
    }

    /// Every buffer on the device. The order is that of the printed page.
    pub fn lines(&self, config: &ModelConfig, own_head: bool) -> Vec<Line> {
        let mut lines = weight_lines(config, own_head, self.per_layer_table);
        lines.extend(self.rope_lines(config));
        lines.extend(self.pool_lines(config));
        lines.extend(self.scratch_lines(config));
        lines.extend(self.step_lines(config));
        lines
    }

    /// Pinned host memory that the options put in place of the device's.
    pub fn host_lines(&self, config: &ModelConfig) -> Vec<Line> {
        table_line(config).filter(|_| self.per_layer_table == TablePlace::Host).into_iter().collect()
    }

    fn layer_page_bytes(&self, layer: &LayerConfig) -> u64 {
        let page_tokens = match layer.kind {
            LayerKind::Sliding => self.page_tokens_sliding,
            LayerKind::Global => self.page_tokens_global,
        };
        2 * product(&[layer.kv_heads, page_tokens, layer.head_dim]) * BF16
    }

    fn scratch_page_bytes(&self, config: &ModelConfig) -> u64 {
        config.kv_layers_of(LayerKind::Sliding).map(|(_, layer)| self.layer_page_bytes(layer)).max().unwrap_or(0)
    }

    /// Bytes that one more token of `--prefill-chunk` takes, from chunks on that can report more than a decode step.
    pub fn chunk_token_bytes(&self, config: &ModelConfig) -> u64 {
        let report = product(&[records_max(ROWS_MAX) - records_max(ROWS_MAX - 1), RECORD_BYTES]);
        let widths = Widths::of(config);
        widths.row_bytes()
            + widths.expert_row_bytes()
            + self.scratch_page_bytes(config) / self.page_tokens_sliding as u64
            + report
    }

    fn rope_lines(&self, config: &ModelConfig) -> Vec<Line> {
        let table = |name, pairs: usize| Line {
            name,
            arithmetic: format!("cos and sin, {} positions x {pairs} pairs x {BF16} B", self.max_context),
            bytes: 2 * product(&[self.max_context, pairs]) * BF16,
        };
        vec![
            table("rotary table, sliding", config.rope_sliding.pairs),
            table("rotary table, global", config.rope_global.pairs),
        ]
    }

    fn pool_lines(&self, config: &ModelConfig) -> Vec<Line> {
        let pool = |name, kind, pages: usize, how: String| {
            let page_bytes = self.page_bytes(config, kind);
            let layers = config.kv_layers_of(kind).count();
            let arithmetic = format!("{pages} pages ({how}) x {page_bytes} B, K and V of {layers} layers");
            Line { name, arithmetic, bytes: page_bytes.saturating_mul(pages as u64) }
        };
        let rings =
            format!("{} rings of {}, {} tokens each", self.max_running, self.ring_pages, self.page_tokens_sliding);
        let tokens = format!("{} tokens each", self.page_tokens_global);
        vec![
            pool("KV pool, sliding", LayerKind::Sliding, self.sliding_pages, rings),
            pool("KV pool, global", LayerKind::Global, self.global_pages, tokens),
        ]
    }

    fn scratch_lines(&self, config: &ModelConfig) -> Vec<Line> {
        let rows = self.rows_max();
        let widths = Widths::of(config);
        let Widths { h, qkv, q, i, p, experts } = widths;
        let per_layer = if p > 0 { format!(" + {p}") } else { String::new() };
        let activations = Line {
            name: "activations",
            arithmetic: format!(
                "{rows} rows x (3 x {h} + {qkv} + 2 x {q} + 3 x {i}{per_layer}) x {BF16} B + ids of 16 B"
            ),
            bytes: rows as u64 * widths.row_bytes(),
        };
        let of_experts = experts.map(|ExpertsConfig { count, top, intermediate }| Line {
            name: "activations of experts",
            arithmetic: format!(
                "{rows} rows x ({h} x {BF16} B + {count} x {F32} B + {top} x ((3 x {intermediate} + {h}) x {BF16} B + \
                 {PAIR_BYTES} B)) + {I32} B"
            ),
            bytes: rows as u64 * widths.expert_row_bytes() + I32 as u64,
        });
        let page_bytes = self.scratch_page_bytes(config);
        let chunk = Line {
            name: "chunk K and V, sliding",
            arithmetic: format!("{} pages x {page_bytes} B of one layer", self.scratch_pages),
            bytes: page_bytes * self.scratch_pages as u64,
        };
        [Some(activations), of_experts, Some(chunk)].into_iter().flatten().collect()
    }

    fn step_lines(&self, config: &ModelConfig) -> Vec<Line> {
        // An item keeps O of head_dim, m and l for every query head; the families take turns with the same scratch.
        let item_bytes = |kind| product(&[config.heads, config.rope(kind).head_dim + 2, F32]);
        let (sliding, global) = (item_bytes(LayerKind::Sliding), item_bytes(LayerKind::Global));
        let partials = Line {
            name: "attention partials",
            arithmetic: format!(
                "the larger of {} sliding items x {sliding} B and {} global items x {global} B",
                self.sliding_items, self.global_items
            ),
            bytes: (sliding * self.sliding_items as u64).max(global * self.global_items as u64),
        };
        let (rows, vocab) = (self.decode_rows, config.vocab);
        let groups = vocab.div_ceil(G4_SAMPLE_GROUP as usize);
        let logits = Line {
            name: "logits",
            arithmetic: format!("{rows} rows x ({vocab} x {F32} B + {groups} groups' maxima and sums, 16 B)"),
            bytes: product(&[rows, vocab, F32]) + product(&[rows, groups, 16]),
        };
        let slot_bytes = SLOT_BYTES + I32 * (self.ring_pages + self.global_table_pages);
        let tables = Line {
            name: "slots and page tables",
            arithmetic: format!(
                "{} slots x ({SLOT_BYTES} B + {I32} B x ({} ring + {} table pages))",
                self.max_running, self.ring_pages, self.global_table_pages
            ),
            bytes: product(&[self.max_running, slot_bytes]),
        };
        let tickets = rows * config.layers.iter().map(|layer| layer.kv_heads).max().unwrap_or(0);
        let (row_bytes, score_bytes) = (7 * I32, size_of::<G4Slot>() + I32);
        let records = Line {
            name: "row tables and records",
            arithmetic: format!(
                "{ROWS_MAX} rows x {row_bytes} B + {tickets} tickets x {I32} B + 3 counts + {rows} rows of prompts x \
                 {score_bytes} B + {} records of 16 B, a prompt chunk's with log-probabilities or a step's",
                records_max(self.chunk_tokens)
            ),
            bytes: product(&[ROWS_MAX, row_bytes])
                + product(&[tickets, I32])
                + 3 * I32 as u64
                + product(&[rows, score_bytes])
                + product(&[records_max(self.chunk_tokens), RECORD_BYTES]),
        };
        let (overlay_bytes, upload_bytes) = (Overlays::slot_bytes(vocab), I32 * Overlays::upload_words(vocab));
        let overlays = Line {
            name: "sampling overlays",
            arithmetic: format!(
                "{} slots x {overlay_bytes} B of counts, masks, biases and bad words + {upload_bytes} B of upload",
                self.max_running
            ),
            bytes: product(&[self.max_running, overlay_bytes]) + upload_bytes as u64,
        };
        vec![partials, logits, tables, overlays, records]
    }
}

/// Widths of the activations, each that of the widest layer.
pub(super) struct Widths {
    pub h: usize,
    pub qkv: usize,
    pub q: usize,
    /// Of the MLP, and of the gate of a per-layer embedding, which takes the same buffers.
    pub i: usize,
    /// Per-layer embeddings of all layers.
    pub p: usize,
    pub experts: Option<ExpertsConfig>,
}

impl Widths {
    pub fn of(config: &ModelConfig) -> Widths {
        let widest = |of: &dyn Fn(&LayerConfig) -> usize| config.layers.iter().map(of).max().unwrap_or(0);
        let per_layer = config.per_layer_width.unwrap_or(0);
        Widths {
            h: config.hidden,
            qkv: widest(&|layer| layer.qkv_width(config.heads)),
            q: widest(&|layer| config.heads * layer.head_dim),
            i: widest(&|layer| layer.intermediate).max(per_layer),
            p: per_layer * config.layers.len(),
            experts: config.experts,
        }
    }

    /// x, its norm and a projection's output; q | k | v; q after its norm; attention's output; gate | up; their
    /// product; per-layer embeddings; token, position, slot and a token to score.
    fn row_bytes(&self) -> u64 {
        let width = 3 * self.h + self.qkv + 2 * self.q + 3 * self.i + self.p;
        width as u64 * BF16 + 4 * I32 as u64
    }

    /// The experts' input; the router's logits; for each of a token's experts gate | up, their product, the output, and
    /// what routing and grouping write.
    fn expert_row_bytes(&self) -> u64 {
        self.experts.map_or(0, |ExpertsConfig { count, top, intermediate }| {
            let pair = (3 * intermediate + self.h) as u64 * BF16 + PAIR_BYTES;
            self.h as u64 * BF16 + product(&[count, F32]) + top as u64 * pair
        })
    }
}

const BF16: u64 = 2;
const F32: usize = 4;
const I32: usize = 4;
/// A slot, and the token forced upon it.
const SLOT_BYTES: usize = size_of::<G4Slot>() + I32;
const RECORD_BYTES: usize = size_of::<G4Record>();
/// A row at one of its experts: the expert, its weight, a place in the list, and, at most, a tile.
const PAIR_BYTES: u64 = (3 * I32 + size_of::<G4ExpertTile>()) as u64;
/// Weights pass through this many device buffers of this size while they are packed, in pieces of whole 16-row tiles,
/// so that a matrix need not stand on the device twice.
pub const STAGING_BUFFERS: usize = 2;
pub const STAGING_BYTES_MAX: usize = 32 << 20;
/// The line of those buffers: of the weights' lines the one that holds no weights.
pub const STAGING: &str = "staging of packing";

/// Bounded by the configuration's limits, except where a page count is a factor: there it saturates.
fn product(factors: &[usize]) -> u64 {
    factors.iter().fold(1u64, |product, &factor| product.saturating_mul(factor as u64))
}

/// Bytes of a packed weight: rows and depth are padded to whole 16 x 16 tiles.
pub fn packed_bytes(rows: usize, depth: usize) -> u64 {
    product(&[rows.next_multiple_of(16), depth.next_multiple_of(16)]) * BF16
}

/// Bytes of weights a decode step of `rows` rows reads: every packed matrix of the layers, of experts as many as rows
/// that choose evenly and each for itself go to (one row: those of a token), the head, the norms and scalars. Rows of
/// the per-layer embeddings are looked up and not counted.
pub fn weight_bytes_a_step(config: &ModelConfig, rows: usize) -> u64 {
    let sums = WeightSums::of(config);
    let of_experts = config.experts.map_or(0, |experts| {
        let missed = (1.0 - experts.top as f64 / experts.count as f64).powf(rows as f64);
        (sums.experts as f64 * (1.0 - missed)).round() as u64
    });
    sums.matrices + of_experts + sums.projection + sums.vectors + packed_bytes(config.vocab, config.hidden)
}

/// Bytes of one token's K and V over the layers of one kind: what the cache holds.
pub fn kv_bytes_a_token(config: &ModelConfig, kind: LayerKind) -> u64 {
    config.kv_layers_of(kind).map(|(_, layer)| layer_kv_bytes(layer)).sum()
}

/// Bytes a decode step reads of one key and its value over the layers of one kind: each layer reads, its own or not.
pub fn kv_bytes_a_key(config: &ModelConfig, kind: LayerKind) -> u64 {
    config.layers_of(kind).map(|(_, layer)| layer_kv_bytes(layer)).sum()
}

fn layer_kv_bytes(layer: &LayerConfig) -> u64 {
    2 * product(&[layer.kv_heads, layer.head_dim]) * BF16
}

/// Bytes of everything but the embedding and the head.
#[derive(Default)]
struct WeightSums {
    /// Packed matrices of the layers, and how many.
    matrices: u64,
    count: usize,
    largest: u64,
    /// Packed matrices of every expert of every layer.
    experts: u64,
    /// Norms and scalars.
    vectors: u64,
    /// Of per-layer embeddings, whose table is looked up: the packed projection.
    projection: u64,
}

impl WeightSums {
    fn of(config: &ModelConfig) -> WeightSums {
        let mut sums = WeightSums::default();
        for index in 0..config.layers.len() {
            tensors::layer(config, index).map(|tensor| match tensor.shape[..] {
                [rows, depth] => {
                    sums.count += 1;
                    sums.matrices += packed_bytes(rows, depth);
                    sums.largest = packed_bytes(rows, depth).max(sums.largest);
                }
                [count, rows, depth] => {
                    sums.experts += packed_bytes(rows, depth).saturating_mul(count as u64);
                    sums.largest = packed_bytes(rows, depth).max(sums.largest);
                }
                _ => sums.vectors += product(&tensor.shape) * BF16,
            });
        }
        let outer = tensors::outer(config);
        sums.vectors += product(&outer.norm.shape) * BF16;
        if let Some(of) = outer.per_layer {
            sums.vectors += product(&of.norm.shape) * BF16;
            sums.projection = packed_bytes(of.projection.shape[0], of.projection.shape[1]);
        }
        sums
    }
}

/// The lines of weights alone.
pub fn weight_lines(config: &ModelConfig, own_head: bool, per_layer_table: TablePlace) -> Vec<Line> {
    let WeightSums { matrices, count, largest, experts, vectors, projection, .. } = WeightSums::of(config);
    let embed = packed_bytes(config.vocab, config.hidden);
    let tables = 1 + u64::from(own_head);
    let mut lines = vec![
        Line {
            name: "weights of the layers",
            arithmetic: format!("{count} packed matrices of {} layers", config.layers.len()),
            bytes: matrices,
        },
        Line {
            name: "embedding and head",
            arithmetic: format!("{tables} x {} x {} x {BF16} B, packed", config.vocab, config.hidden),
            bytes: embed * tables,
        },
        Line { name: "norms and scalars", arithmetic: "unpacked".to_owned(), bytes: vectors },
        Line {
            name: STAGING,
            arithmetic: format!("{STAGING_BUFFERS} buffers of the largest matrix, each at most {STAGING_BYTES_MAX} B"),
            bytes: STAGING_BUFFERS as u64 * embed.max(largest).min(STAGING_BYTES_MAX as u64),
        },
    ];
    if let Some(ExpertsConfig { count, top, .. }) = config.experts {
        let layers = config.layers.len();
        let each = experts / (layers * count) as u64;
        let arithmetic = format!("{layers} layers x {count} experts x {each} B, packed; a token reads {top} a layer");
        lines.push(Line { name: "weights of experts", arithmetic, bytes: experts });
    }
    if let Some(width) = config.per_layer_width {
        let arithmetic = format!("{} x {width} x {} x {BF16} B, packed", config.layers.len(), config.hidden);
        lines.push(Line { name: "per-layer projection", arithmetic, bytes: projection });
    }
    lines.extend(table_line(config).filter(|_| per_layer_table == TablePlace::Device));
    lines
}

/// The table of per-layer embeddings, on either side.
fn table_line(config: &ModelConfig) -> Option<Line> {
    let width = config.per_layer_width?;
    let (vocab, layers) = (config.vocab, config.layers.len());
    let arithmetic = format!("{vocab} rows x {layers} layers x {width} x {BF16} B, looked up by row");
    Some(Line { name: "per-layer embeddings", arithmetic, bytes: product(&[vocab, layers, width]) * BF16 })
}
