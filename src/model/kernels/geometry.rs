//! How large a launch is: blocks and shared memory of the kernels whose grid depends on shapes, as their files state
//! them.

use super::bindings::*;

/// S(K) of the numeric contract: the largest of 8, 4, 2, 1 that divides ceil(k/16) with at least 11 steps a slab.
pub fn slab_count(k: usize) -> usize {
    let steps = k.div_ceil(G4_TILE_K as usize);
    [8, 4, 2].into_iter().find(|&s| steps.is_multiple_of(s) && steps / s >= G4_SLAB_STEPS_MIN as usize).unwrap_or(1)
}

/// Tokens the smallest small-GEMM instance that fits `rows` is made for: 8, 16, 32, 64 or 128.
pub fn gemm_instance_tokens(rows: usize) -> usize {
    rows.div_ceil(8).next_power_of_two() * 8
}

/// Blocks a direct GEMM wants at least before it keeps more rows a block, and has at most (csrc/kernels/gemm.cuh).
const GEMM_BLOCKS_MIN: usize = 112;
const GEMM_BLOCKS_MIN_ONE: usize = 132;
const GEMM_BLOCKS_MAX: usize = 264;

/// Fewer blocks of 128 weight rows than this: a staged GEMM keeps fewer rows a block.
const GEMM_ROW_BLOCKS_MIN: usize = 200;
/// Shared bytes of a block beyond which a device has room for the larger stage budgets.
const SHARED_BYTES_LARGE: usize = 227 * 1024;

/// Shared bytes a staged GEMM may have for its stages, where a block may have `shared_bytes_max`.
pub fn gemm_stage_budget(shared_bytes_max: usize, token_tiles: usize, row_tiles: usize) -> usize {
    match (shared_bytes_max >= SHARED_BYTES_LARGE, row_tiles) {
        (false, _) => 96 * 1024,
        (true, 8) if token_tiles < 16 => 112 * 1024,
        (true, _) => 200 * 1024,
    }
}

/// Shared bytes of a staged GEMM: of the stage counts its kernel can wait for, the most that fit the budget.
pub fn gemm_staged_bytes(token_tiles: usize, row_tiles: usize, budget: usize) -> usize {
    let stage = 2048 * row_tiles + 1280 * token_tiles;
    let fits = |count: &usize| count * stage <= budget;
    [10, 8, 6, 5, 4].into_iter().find(fits).unwrap_or(3) * stage
}

/// Grid and shared bytes of a small GEMM with `token_tiles` tiles of 8 tokens.
pub fn gemm_geometry(token_tiles: usize, n: usize, slabs: usize, shared_bytes_max: usize) -> (usize, usize) {
    let tiles = n.div_ceil(16);
    if token_tiles >= 4 {
        let rows = match (tiles.div_ceil(8) >= GEMM_ROW_BLOCKS_MIN, token_tiles) {
            (true, _) => 8,
            (false, 4) => 2,
            (false, _) => 4,
        };
        let budget = gemm_stage_budget(shared_bytes_max, token_tiles, rows);
        return (tiles.div_ceil(rows), gemm_staged_bytes(token_tiles, rows, budget));
    }
    let groups = |r: usize| tiles.div_ceil(r * 8 / slabs);
    let mut r = if token_tiles == 1 { 2 } else { 4 };
    let least = if token_tiles == 1 { GEMM_BLOCKS_MIN_ONE } else { GEMM_BLOCKS_MIN };
    while r > 1 && groups(r) < least {
        r /= 2;
    }
    let blocks = match groups(r) {
        all if all <= GEMM_BLOCKS_MAX => all,
        all if all <= 2 * GEMM_BLOCKS_MAX => all.div_ceil(2),
        _ => GEMM_BLOCKS_MAX,
    };
    (blocks, 4096 * r * token_tiles)
}

/// Grid and shared bytes of an expert product in tiles of `tile_tokens` (csrc/kernels/expert_gemm.cu).
pub fn expert_gemm_geometry(
    tile_tokens: usize,
    n: usize,
    slabs: usize,
    tiles_max: usize,
    shared_bytes_max: usize,
) -> (usize, usize, usize) {
    let tiles = n.div_ceil(16);
    if tile_tokens == G4_EXPERT_TILE_TOKENS as usize {
        return (tiles.div_ceil(2 * 8 / slabs), tiles_max, 8192);
    }
    (tiles.div_ceil(8), tiles_max, gemm_staged_bytes(8, 8, gemm_stage_budget(shared_bytes_max, 8, 8)))
}

/// Tiles that `pairs` pairs of `experts` experts can make at most: one for each expert that has any, and a further one
/// for each whole tile.
pub fn expert_tiles_max(pairs: usize, experts: usize, tile_tokens: usize) -> usize {
    if pairs <= experts { pairs } else { experts + (pairs - experts) / tile_tokens }
}

/// Shared bytes of an attention block (csrc/common/attention.h).
pub fn attention_shared_bytes(head_dim: usize, segment: usize) -> usize {
    32 * head_dim + 98 * segment + 50432
}

/// The most dynamic shared memory a kernel is launched with, where a block may have `device_max`.
pub fn shared_bytes_max(name: &str, device_max: u32) -> u32 {
    let staged = |token_tiles, row_tiles| {
        gemm_staged_bytes(token_tiles, row_tiles, gemm_stage_budget(device_max as usize, token_tiles, row_tiles))
    };
    let bytes = match name {
        "g4_gemm_t1" | "g4_logits_t1" => 4096 * 2,
        "g4_gemm_t2" | "g4_logits_t2" => 4096 * 4 * 2,
        "g4_gemm_t4" | "g4_logits_t4" => staged(4, 8).max(staged(4, 2)),
        "g4_gemm_t8" | "g4_logits_t8" | "g4_gemm_tiled" | "g4_logits_tiled" | "g4_expert_gemm_t8" => {
            staged(8, 8).max(staged(8, 4))
        }
        // Not launched where it does not fit.
        "g4_gemm_t16" | "g4_logits_t16" => staged(16, 8).max(staged(16, 4)).min(device_max as usize),
        "g4_sample_rows" => G4_SAMPLE_SHARED_BYTES as usize,
        _ if name.starts_with("g4_attn_decode_h") || name.starts_with("g4_attn_prompt_h") => {
            let number =
                |prefix: &str| name.split('_').find_map(|part| part.strip_prefix(prefix)?.parse().ok()).unwrap_or(0);
            attention_shared_bytes(number("h"), number("s"))
        }
        _ => 8192,
    };
    bytes as u32
}

#[cfg(test)]
mod tests {
    use super::{expert_gemm_geometry, expert_tiles_max, gemm_geometry};

    /// The table of csrc/tests/gemm_test.cpp: token tiles, n, S, then the grid, then shared bytes where a block may
    /// have 227 KiB and where it may have 99.
    #[test]
    fn gemm_geometry_is_that_of_the_kernels() {
        let table = [
            (1, 3840, 8, 240, 4096, 4096),
            (1, 9216, 8, 144, 8192, 8192),
            (1, 30720, 8, 264, 8192, 8192),
            (2, 8192, 8, 128, 32768, 32768),
            (4, 3840, 8, 120, 92160, 92160),
            (4, 30720, 8, 240, 107520, 86016),
            (8, 3840, 8, 60, 184320, 92160),
            (8, 30720, 8, 240, 106496, 79872),
            (16, 3840, 8, 60, 172032, 86016),
            (16, 262144, 8, 2048, 184320, 110592),
        ];
        for (token_tiles, n, slabs, blocks, large, small) in table {
            assert_eq!(gemm_geometry(token_tiles, n, slabs, 232448), (blocks, large), "{token_tiles} {n}");
            assert_eq!(gemm_geometry(token_tiles, n, slabs, 101376), (blocks, small), "{token_tiles} {n}");
        }
    }

    /// The table of csrc/tests/expert_test.cpp: pairs, experts, tokens a tile, the most tiles; then n, S, blocks a tile
    /// and shared bytes as above, of the 26B-A4B.
    #[test]
    fn expert_geometry_is_that_of_the_kernels() {
        let table = [
            (8, 128, 8, 8, 1408, 8, 44, 8192, 8192),
            (8, 128, 8, 8, 2816, 4, 44, 8192, 8192),
            (1024, 128, 8, 240, 2816, 4, 44, 8192, 8192),
            (16384, 128, 64, 382, 1408, 8, 11, 106496, 79872),
            (16384, 128, 64, 382, 2816, 4, 22, 106496, 79872),
        ];
        for (pairs, experts, tokens, tiles, n, slabs, blocks, large, small) in table {
            assert_eq!(super::super::expert_tile_tokens(pairs, experts), tokens, "{pairs} pairs");
            assert_eq!(expert_tiles_max(pairs, experts, tokens), tiles, "{pairs} pairs");
            assert_eq!(expert_gemm_geometry(tokens, n, slabs, tiles, 232448), (blocks, tiles, large), "{n}");
            assert_eq!(expert_gemm_geometry(tokens, n, slabs, tiles, 101376), (blocks, tiles, small), "{n}");
        }
        for (experts, top) in [(128, 8), (16, 4), (256, 3), (1, 1)] {
            let rows = super::super::expert_rows_many(experts, top);
            let tokens = [rows - 1, rows].map(|rows| super::super::expert_tile_tokens(rows * top, experts));
            assert_eq!(tokens, [8, 64], "{top} of {experts}");
        }
    }
}
