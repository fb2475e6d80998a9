//! The rows of the sampling specification, one by one, on the software device.

use gemma4_serve::device::{DeviceChoice, soft};
use gemma4_serve::sampler::oracle::{self, Outcome};
use gemma4_serve::sampling::SamplingParams;

use crate::cases::{self, Random};
use crate::rig::{Model, Request, Rig, device};

pub fn rig(vocab: usize, slots: usize) -> Rig {
    Rig::new(device(DeviceChoice::Soft), vocab, slots, Model::default())
}

/// Temperature 1, nothing else.
pub fn plain(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() }
}

/// The published defaults of Gemma.
pub fn gemma(seed: u64) -> SamplingParams {
    SamplingParams { top_k: 64, top_p: 0.95, ..plain(seed) }
}

/// Tokens of requests that stand in slots 0, 1, ... and are all sampled in one step from logits of their own.
pub fn tokens(rig: &mut Rig, requests: &[Request], logits: &[Vec<f32>]) -> Vec<i32> {
    assert_eq!(requests.len(), logits.len());
    requests.iter().enumerate().for_each(|(slot, request)| rig.admit(slot, request, 1));
    let rows: Vec<i32> = (0..requests.len() as i32).collect();
    rig.step(&rows, &logits.concat()).iter().map(|s| s.record.token).collect()
}

pub fn tokens_of(rig: &mut Rig, params: &[SamplingParams], logits: &[Vec<f32>]) -> Vec<i32> {
    let requests: Vec<Request> = params.iter().cloned().map(Request::new).collect();
    tokens(rig, &requests, logits)
}

/// The token of a request that is sampled alone.
pub fn token(rig: &mut Rig, request: &Request, z: &[f32]) -> i32 {
    rig.admit(0, request, 1);
    rig.step(&[0], z)[0].record.token
}

pub fn kept(rig: &Rig, request: &Request, logits: &[f32]) -> Vec<u32> {
    match oracle::sample(&rig.oracle_row(request, logits, None)) {
        Outcome::Token { kept, .. } => kept,
        other => panic!("{other:?}"),
    }
}

#[test]
fn t000_1_two_launches_and_one_copy_a_step_for_any_mix_of_parameters() {
    for rows in [1usize, 8, 64] {
        let mut r = Random(100 + rows as u64);
        let mut rig = rig(512, rows);
        let mut all = Vec::new();
        for slot in 0..rows {
            rig.admit(slot, &cases::request(&mut r, 512), 1);
            all.extend(cases::logits(&mut r, 512, "scattered"));
        }
        let before = rig.context.traffic();
        rig.step(&(0..rows as i32).collect::<Vec<_>>(), &all);
        let after = rig.context.traffic();
        assert_eq!(after.kernel_launches - before.kernel_launches, 2, "{rows} rows");
    }
}

#[test]
fn t000_3_disabled_forms_are_the_same_as_nothing() {
    let mut rig = rig(512, 16);
    let z = cases::logits(&mut Random(5), 512, "scattered");
    for seed in 0..40 {
        let off = plain(seed);
        let forms = [
            off.clone(),
            SamplingParams { top_k: 512, ..off.clone() },
            SamplingParams { top_k: 513, ..off.clone() },
            SamplingParams { top_k: u32::MAX, ..off.clone() },
            SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.51, ..off.clone() },
            SamplingParams { min_tokens: 0, logit_bias: vec![(3, 0.0)], ..off.clone() },
            SamplingParams { allowed_token_ids: Some((0..512).collect()), ..off.clone() },
            SamplingParams { bad_words: vec![vec![7, 8]], ..off.clone() },
        ];
        let got = tokens_of(&mut rig, &forms, &vec![z.clone(); forms.len()]);
        assert!(got.iter().all(|&t| t == got[0]), "seed {seed}: {got:?}");
        let greedy = [
            SamplingParams { temperature: 0.0, ..off.clone() },
            SamplingParams { temperature: 9.9e-6, ..off.clone() },
            SamplingParams { top_k: 1, ..off.clone() },
            SamplingParams { top_p: 1.0 / 512.0, ..off.clone() },
            SamplingParams { min_p: 1.0, ..off },
        ];
        let got = tokens_of(&mut rig, &greedy, &vec![z.clone(); greedy.len()]);
        assert!(got.iter().all(|&t| t == got[0]), "{got:?}");
    }
}

/// Top-k then top-p of the renormalised rest, in double, by the definition: ties apart, for the logits have none.
fn kept_in_double(z: &[f32], k: usize, p: f64) -> Vec<u32> {
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| z[b].total_cmp(&z[a]));
    if k > 0 {
        order.truncate(k);
    }
    let weights: Vec<f64> = order.iter().map(|&id| f64::from(z[id] - z[order[0]]).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut before = 0.0;
    let mut kept = Vec::new();
    for (&id, weight) in order.iter().zip(&weights) {
        if before / total >= p {
            break;
        }
        kept.push(id as u32);
        before += weight;
    }
    kept.sort_unstable();
    kept
}

#[test]
fn t000_4_top_k_comes_before_top_p_which_sees_the_rest_renormalised() {
    let mut rig = rig(1024, 16);
    let mut r = Random(6);
    for (k, p) in [(0, 1.0), (5, 1.0), (0, 0.6), (5, 0.6), (2, 1.0), (1000, 1.0), (3, 0.3), (64, 0.95)] {
        for round in 0..20u64 {
            let z = cases::logits(&mut r, 1024, "scattered");
            let params = SamplingParams { top_k: k, top_p: p, ..plain(round) };
            let want = kept_in_double(&z, k as usize, f64::from(p));
            let got = kept(&rig, &Request::new(params.clone()), &z);
            assert_eq!(got, want, "k {k}, p {p}");
            let requests: Vec<SamplingParams> =
                (0..16).map(|i| SamplingParams { seed: i + round, ..params.clone() }).collect();
            for token in tokens_of(&mut rig, &requests, &vec![z.clone(); 16]) {
                assert!(want.contains(&(token as u32)), "k {k}, p {p}: {token} of {want:?}");
            }
        }
    }
}

#[test]
fn t000_5_the_best_token_survives_every_filter() {
    let mut rig = rig(257, 8);
    let mut z = vec![0.0; 257];
    z[200] = 8.0;
    let tight = [
        SamplingParams { top_p: 0.005, ..plain(1) },
        SamplingParams { top_p: 0.1, top_k: 2, ..plain(2) },
        SamplingParams { min_p: 0.999, ..plain(3) },
        SamplingParams { top_p: 1e-6, ..plain(4) },
    ];
    assert_eq!(tokens_of(&mut rig, &tight, &vec![z; 4]), [200; 4]);
}

#[test]
fn t000_6_a_row_draws_the_same_alone_and_at_any_place_of_any_batch() {
    let vocab = 20_000;
    let mut r = Random(7);
    let mut rig = rig(vocab, 17);
    for _ in 0..4 {
        let requests: Vec<Request> = (0..16).map(|_| cases::request(&mut r, vocab)).collect();
        let logits: Vec<Vec<f32>> = (0..16).map(|_| cases::logits(&mut r, vocab, "scattered")).collect();
        let together = tokens(&mut rig, &requests, &logits);
        for (row, request) in requests.iter().enumerate() {
            // Another slot, another row, other neighbours.
            rig.admit(16, request, 2);
            rig.admit(3, &Request::new(gemma(99)), 2);
            let alone = rig.step(&[16], &logits[row]);
            assert_eq!(alone[0].record.token, together[row], "alone");
            rig.admit(16, request, 3);
            let pair = rig.step(&[3, -1, 16], &[&logits[0][..], &logits[1], &logits[row]].concat());
            assert_eq!(pair[2].record.token, together[row], "in a batch of three");
        }
    }
}

#[test]
fn t000_7_t000_8_rows_at_different_output_indices_draw_what_they_draw_alone() {
    let mut rig = rig(512, 4);
    let z = cases::logits(&mut Random(8), 512, "flat");
    let at = |n: usize| Request { output: vec![1; n], ..Request::new(plain(42)) };
    let requests = [0, 1, 10, 1000].map(at);
    let together = tokens(&mut rig, &requests, &vec![z.clone(); 4]);
    for (request, &want) in requests.iter().zip(&together) {
        assert_eq!(tokens(&mut rig, std::slice::from_ref(request), std::slice::from_ref(&z)), [want]);
    }
    // The device counts on by itself: the second token of a run is that of index 1.
    rig.admit(0, &requests[0], 5);
    let run: Vec<i32> = (0..2).map(|_| rig.step(&[0], &z)[0].record.token).collect();
    assert_eq!(run, together[..2]);
    let distinct: std::collections::HashSet<i32> = together.into_iter().collect();
    assert!(distinct.len() > 1, "indices share a draw");
}

#[test]
fn t000_10_t002_11_a_seeded_request_in_a_batch_replays_its_run_alone() {
    let (vocab, steps) = (512, 24);
    let mut r = Random(9);
    let mut rig = rig(vocab, 32);
    let logits: Vec<Vec<f32>> = (0..steps).map(|_| cases::logits(&mut r, vocab, "scattered")).collect();
    let mine = SamplingParams { presence_penalty: 1.0, ..gemma(1234) };
    rig.admit(0, &Request::new(mine.clone()), 1);
    let alone: Vec<i32> = logits.iter().map(|z| rig.step(&[0], z)[0].record.token).collect();
    for slot in 0..32 {
        let request = if slot == 21 { Request::new(mine.clone()) } else { cases::request(&mut r, vocab) };
        rig.admit(slot, &request, 2);
    }
    let rows: Vec<i32> = (0..32).rev().collect();
    for (step, z) in logits.iter().enumerate() {
        let mut all: Vec<Vec<f32>> = (0..32).map(|_| cases::logits(&mut r, vocab, "scattered")).collect();
        all[10] = z.clone();
        assert_eq!(rig.step(&rows, &all.concat())[10].record.token, alone[step], "step {step}");
    }
    // Cut off after 10 tokens and begun again from there: nothing but the history is needed.
    let output: Vec<u32> = alone[..10].iter().map(|&t| t as u32).collect();
    rig.admit(5, &Request { output, ..Request::new(mine) }, 3);
    let rest: Vec<i32> = logits[10..].iter().map(|z| rig.step(&[5], z)[0].record.token).collect();
    assert_eq!(rest, alone[10..]);
}

#[test]
fn t000_11_greedy_and_sampled_rows_mix_in_one_launch() {
    let mut rig = rig(512, 3);
    let z = cases::logits(&mut Random(10), 512, "scattered");
    let order = kept_in_double(&z, 2, 1.0);
    let best = kept_in_double(&z, 1, 1.0)[0] as i32;
    for seed in 0..30 {
        let mix = [
            SamplingParams::greedy(),
            SamplingParams { top_k: 1, ..plain(seed) },
            SamplingParams { top_k: 2, ..plain(seed) },
        ];
        let got = tokens_of(&mut rig, &mix, &vec![z.clone(); 3]);
        assert_eq!(got[..2], [best, best]);
        assert!(order.contains(&(got[2] as u32)));
        let states = rig.slot_states();
        assert!(states.iter().all(|s| s.output_index == 1 && s.live == 1), "{states:?}");
    }
}

#[test]
fn t000_12_ties_of_a_greedy_row_go_to_the_lowest_id() {
    let mut rig = rig(262_144, 1);
    let mut z = vec![0.0; 262_144];
    for id in [70_000, 70_001, 200_000] {
        z[id] = 5.0;
    }
    for seed in 0..3 {
        let params = SamplingParams { seed, ..SamplingParams::greedy() };
        assert_eq!(tokens_of(&mut rig, &[params], &[z.clone()]), [70_000]);
    }
}

/// Chi-square of counts against expectations, cells below five expected draws thrown together.
fn chi_square(counts: &[u64], expected: &[f64]) -> (f64, usize) {
    let (mut chi, mut cells, mut rest) = (0.0, 0usize, (0.0, 0.0));
    for (&n, &e) in counts.iter().zip(expected) {
        if e < 5.0 {
            rest = (rest.0 + n as f64, rest.1 + e);
        } else {
            chi += (n as f64 - e).powi(2) / e;
            cells += 1;
        }
    }
    if rest.1 > 0.0 {
        chi += (rest.0 - rest.1).powi(2) / rest.1.max(1.0);
        cells += 1;
    }
    (chi, cells - 1)
}

/// Draws `count` tokens on the device, 128 a step, each at an output index of its own.
fn draw_many(rig: &mut Rig, params: &SamplingParams, z: &[f32], count: usize) -> Vec<u64> {
    let mut counts = vec![0; z.len()];
    let rows: Vec<i32> = (0..128).collect();
    let all = z.repeat(128);
    for batch in 0..count / 128 {
        for slot in 0..128 {
            rig.admit(slot, &Request { output: vec![0; batch * 128 + slot], ..Request::new(params.clone()) }, 1);
        }
        rig.step(&rows, &all).iter().for_each(|s| counts[s.record.token as usize] += 1);
    }
    counts
}

fn check_distribution(z: &[f32], params: &SamplingParams, draws: usize) {
    let mut rig = rig(z.len(), 128);
    let kept = kept(&rig, &Request::new(params.clone()), z);
    let counts = draw_many(&mut rig, params, z, draws);
    let weights: Vec<f64> = kept.iter().map(|&id| f64::from(z[id as usize] / params.temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let drawn: u64 = counts.iter().sum();
    let inside: Vec<u64> = kept.iter().map(|&id| counts[id as usize]).collect();
    assert_eq!(inside.iter().sum::<u64>(), drawn, "a draw outside of the kept set");
    let expected: Vec<f64> = weights.iter().map(|w| w / total * drawn as f64).collect();
    let (chi, degrees) = chi_square(&inside, &expected);
    let bound = degrees as f64 + 5.0 * (2.0 * degrees as f64).sqrt() + 5.0;
    assert!(chi < bound, "chi-square {chi} of {degrees} degrees: {params:?}");
}

#[test]
fn t000_14_draws_follow_the_filtered_distribution() {
    let mut r = Random(11);
    let z: Vec<f32> = (0..600).map(|_| 1.5 * r.normal()).collect();
    check_distribution(&z, &SamplingParams { top_p: 0.999, ..plain(1) }, 8_064);
    check_distribution(&z, &SamplingParams { top_k: 40, top_p: 0.9, temperature: 0.8, ..plain(2) }, 8_064);
    check_distribution(&z, &plain(3), 8_064); // by groups
    check_distribution(&z, &SamplingParams { typical_p: 0.5, ..plain(4) }, 8_064);
}

#[test]
fn t000_14_a_million_draws_stay_inside_the_kept_set() {
    // By the oracle, whose tokens are the device's; the set is found once, the noise is what varies.
    let mut r = Random(12);
    let rig = rig(257, 1);
    let z: Vec<f32> = (0..257).map(|_| 2.0 * r.normal()).collect();
    let params = SamplingParams { top_k: 20, top_p: 0.9, ..plain(5) };
    let kept = kept(&rig, &Request::new(params.clone()), &z);
    assert!((5..20).contains(&kept.len()), "{}", kept.len());
    let weights: Vec<f64> = kept.iter().map(|&id| f64::from(z[id as usize]).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut counts = vec![0u64; 257];
    for output_index in 0..1_000_000 {
        let draw = gemma4_serve::sampler::philox::Draw { seed: 5, output_index, choice: 0 };
        counts[oracle::draw_among(&draw, &z, &kept) as usize] += 1;
    }
    let inside: Vec<u64> = kept.iter().map(|&id| counts[id as usize]).collect();
    assert_eq!(inside.iter().sum::<u64>(), 1_000_000);
    let expected: Vec<f64> = weights.iter().map(|w| w / total * 1e6).collect();
    let (chi, degrees) = chi_square(&inside, &expected);
    assert!(chi < degrees as f64 + 5.0 * (2.0 * degrees as f64).sqrt(), "chi-square {chi} of {degrees} degrees");
}

#[test]
fn nuclei_of_every_width_are_found_in_the_whole_vocabulary() {
    // Top-p alone: resolved among the first candidates, not resolved there, and too many ties to gather.
    let vocab = 262_144;
    let mut r = Random(21);
    let mut rig = rig(vocab, 12);
    let mut widths = Vec::new();
    for (shape, min_p) in [("scattered", 0.0), ("flat", 0.0), ("integers", 0.0), ("flat", 1e-4)] {
        let z = cases::logits(&mut r, vocab, shape);
        let at = |(seed, &top_p): (usize, &f32)| SamplingParams { top_p, min_p, ..plain(seed as u64) };
        let params: Vec<SamplingParams> = [0.01, 0.5, 0.999].iter().enumerate().map(at).collect();
        let got = tokens_of(&mut rig, &params, &vec![z.clone(); 3]);
        for (p, got) in params.into_iter().zip(got) {
            let request = Request::new(p);
            match oracle::sample(&rig.oracle_row(&request, &z, None)) {
                Outcome::Token { token, kept, .. } => {
                    assert_eq!(got, token as i32, "{shape}, {:?}", request.params);
                    widths.push(kept.len());
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(widths.iter().any(|&n| n < 4096) && widths.iter().any(|&n| n > 100_000), "{widths:?}");
}

#[test]
fn t001_2_parameters_are_a_rows_own_to_the_last_bit() {
    // 0.7 and its neighbour in one launch: each row is what it is alone, and somewhere they differ.
    let mut r = Random(13);
    let mut rig = rig(512, 2);
    let next = f32::from_bits(0.7f32.to_bits() + 1);
    let params = [0.7, next].map(|temperature| SamplingParams { temperature, top_p: 0.8, ..plain(3) });
    for _ in 0..50 {
        let z = cases::logits(&mut r, 512, "scattered");
        let got = tokens_of(&mut rig, &params, &[z.clone(), z.clone()]);
        for (row, p) in params.iter().enumerate() {
            assert_eq!(tokens_of(&mut rig, std::slice::from_ref(p), std::slice::from_ref(&z)), [got[row]]);
        }
    }
}

#[test]
fn t001_3_every_feature_rides_beside_plain_rows_and_changes_nothing_for_them() {
    let vocab = 512;
    let mut r = Random(14);
    let mut rig = rig(vocab, 16);
    let z = cases::logits(&mut r, vocab, "scattered");
    let alone = token(&mut rig, &Request::new(gemma(1)), &z);
    let busy = [
        SamplingParams { allowed_token_ids: Some(vec![1, 2, 3]), ..gemma(2) },
        SamplingParams { logprobs: Some(20), ..gemma(3) },
        SamplingParams { repetition_penalty: 1.3, frequency_penalty: 1.0, ..gemma(4) },
        SamplingParams { logit_bias: vec![(9, 100.0)], ..gemma(5) },
        SamplingParams { xtc_probability: 1.0, ..gemma(6) },
        SamplingParams { typical_p: 0.4, ..gemma(7) },
        SamplingParams { min_p: 0.2, ..gemma(8) },
        SamplingParams { bad_words: vec![vec![4], vec![5, 6]], ..gemma(9) },
        SamplingParams::greedy(),
        plain(10),
    ];
    for feature in busy {
        let both = tokens_of(&mut rig, &[feature.clone(), gemma(1)], &[z.clone(), z.clone()]);
        assert_eq!(both[1], alone, "{feature:?}");
    }
}

#[test]
fn t001_5_t001_6_greedy_rows_are_the_same_at_1_4_and_8() {
    let mut r = Random(15);
    let mut rig = rig(20_000, 8);
    let logits: Vec<Vec<f32>> = (0..8).map(|_| cases::logits(&mut r, 20_000, "bf16 ties")).collect();
    let greedy = vec![SamplingParams::greedy(); 8];
    let eight = tokens_of(&mut rig, &greedy, &logits);
    let four = tokens_of(&mut rig, &greedy[..4], &logits[..4]);
    let one = tokens_of(&mut rig, &greedy[..1], &logits[..1]);
    assert_eq!((&four[..], &one[..]), (&eight[..4], &eight[..1]));
    let plain_argmax = |z: &Vec<f32>| (0..z.len()).rev().max_by(|&a, &b| z[a].total_cmp(&z[b])).map(|id| id as i32);
    assert_eq!(eight.iter().map(|&t| Some(t)).collect::<Vec<_>>(), logits.iter().map(plain_argmax).collect::<Vec<_>>());
}

#[test]
fn t002_1_one_launch_of_k_rows_is_k_launches_of_one() {
    let mut r = Random(16);
    let mut rig = rig(512, 12);
    let requests: Vec<Request> = (0..12).map(|_| cases::request(&mut r, 512)).collect();
    let logits: Vec<Vec<f32>> = (0..12).map(|_| cases::logits(&mut r, 512, "clustered")).collect();
    let together = tokens(&mut rig, &requests, &logits);
    let singly: Vec<i32> = (0..12).map(|i| tokens(&mut rig, &requests[i..=i], &logits[i..=i])[0]).collect();
    assert_eq!(together, singly);
}

#[test]
fn t002_2_xtc_gates_open_row_by_row() {
    // Two equal tops and a floor: an open gate leaves the tops tied at the threshold, so give them an order.
    let mut z = vec![-20.0; 257];
    (z[10], z[20]) = (3.0, 2.5);
    let mut rig = rig(257, 64);
    let rows: Vec<SamplingParams> =
        (0..64).map(|seed| SamplingParams { xtc_probability: 0.5, top_k: 2, ..plain(seed) }).collect();
    let requests: Vec<Request> = rows.iter().cloned().map(Request::new).collect();
    let open: Vec<bool> = requests.iter().map(|request| kept(&rig, request, &z) == [20]).collect();
    let count = open.iter().filter(|&&o| o).count();
    assert!((18..46).contains(&count), "{count} of 64 gates are open at probability 0.5");
    let got = tokens_of(&mut rig, &rows, &vec![z; 64]);
    for (row, token) in got.into_iter().enumerate() {
        assert!(token == 20 || (token == 10 && !open[row]), "row {row}: {token}");
    }
}

#[test]
fn t002_10_a_slot_keeps_nothing_of_the_request_before() {
    let vocab = 512;
    let mut r = Random(17);
    let (mut fresh, mut used) = (rig(vocab, 4), rig(vocab, 4));
    for round in 0..30 {
        let requests: Vec<Request> = (0..4).map(|_| cases::request(&mut r, vocab)).collect();
        let logits: Vec<Vec<f32>> = (0..4).map(|_| cases::logits(&mut r, vocab, "scattered")).collect();
        let want = tokens(&mut fresh, &requests, &logits);
        assert_eq!(tokens(&mut used, &requests, &logits), want, "round {round}");
        fresh = rig(vocab, 4);
    }
}

#[test]
fn tokens_do_not_depend_on_the_order_of_blocks_and_threads() {
    let vocab = 20_000;
    let mut r = Random(20);
    let mut rig = rig(vocab, 12);
    let requests: Vec<Request> = (0..12).map(|_| cases::request(&mut r, vocab)).collect();
    let logits: Vec<Vec<f32>> = (0..12).map(|i| cases::logits(&mut r, vocab, cases::SHAPES[i % 7])).collect();
    let want = tokens(&mut rig, &requests, &logits);
    for seed in 1..6 {
        assert!(soft::set("seed", seed) && soft::set("delay_us", 0));
        let got = tokens(&mut rig, &requests, &logits);
        soft::set("seed", 0);
        assert_eq!(got, want, "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "rows")]
fn t000_2_wrong_shapes_are_refused_before_any_launch() {
    let mut rig = rig(512, 130);
    rig.step(&(0..130).map(|_| -1).collect::<Vec<_>>(), &vec![0.0; 130 * 512]);
}
