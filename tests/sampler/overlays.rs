//! What is laid over the logits before a token is chosen, what a bad row does, and log-probabilities.

use gemma4_serve::device::DeviceChoice;
use gemma4_serve::sampler::params::mask_of;
use gemma4_serve::sampling::{LogprobsMode, SamplingParams};

use crate::cases::{self, Random};
use crate::rig::{Model, Request, Rig, device};
use crate::rules::{gemma, kept, plain, rig, token, tokens_of};

#[test]
fn penalties_follow_the_published_formulas() {
    // Ids 0 to 3 stand in the prompt, 2 to 5 in the output, 5 twice.
    let mut z = vec![-50.0; 257];
    for (id, value) in [(0, 4.0), (1, -4.0), (2, 4.0), (3, -4.0), (4, 4.0), (5, 4.0)] {
        z[id] = value;
    }
    let mut rig = rig(257, 1);
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..SamplingParams::greedy()
    };
    let request = Request { prompt: vec![0, 1, 2, 3], output: vec![2, 3, 4, 5, 5], ..Request::new(params.clone()) };
    // 4 / 2 = 2 stays for id 0; the others lose more.
    assert_eq!(token(&mut rig, &request, &z), 0);
    let biased = |id: u32, bias: f32| {
        let params = SamplingParams { logit_bias: vec![(id, bias)], ..params.clone() };
        Request { params, ..request.clone() }
    };
    // Id 5: (4 + b) / 2 - 2 * 0.5 - 0.25 is above 2 from b = 2.5 on, at which the lower id wins the tie.
    assert_eq!(token(&mut rig, &biased(5, 2.5), &z), 0);
    assert_eq!(token(&mut rig, &biased(5, 2.51), &z), 5);
    // Id 3: negative, so multiplied: (-4 + b) * 2 - 0.75; at b = 5.5 it is (1.5) / 2 - 0.75 = 0; at 9.5, 2.
    assert_eq!(token(&mut rig, &biased(3, 9.4), &z), 0);
    assert_eq!(token(&mut rig, &biased(3, 9.6), &z), 3);
}

#[test]
fn b44_a_bias_of_minus_100_bans_and_of_plus_100_forces_but_raises_nothing_that_is_masked() {
    let mut z = vec![0.0; 512];
    (z[3], z[4]) = (30.0, 29.0);
    let mut rig = rig(512, 4);
    let rows = [
        SamplingParams { logit_bias: vec![(3, -100.0)], ..SamplingParams::greedy() },
        SamplingParams { logit_bias: vec![(400, 100.0)], ..plain(1) },
        SamplingParams {
            logit_bias: vec![(400, 100.0)],
            allowed_token_ids: Some(vec![4, 5]),
            ..SamplingParams::greedy()
        },
        SamplingParams { logit_bias: vec![(3, 100.0)], bad_words: vec![vec![3]], ..SamplingParams::greedy() },
    ];
    assert_eq!(tokens_of(&mut rig, &rows, &vec![z; 4]), [4, 400, 4, 4]);
}

#[test]
fn min_tokens_bans_every_eos_and_stop_id_up_to_exactly_that_index() {
    let model = Model { suppressed: vec![50], eos_ids: vec![1, 106] };
    let mut rig = Rig::new(device(DeviceChoice::Soft), 257, 1, model);
    let mut z = vec![0.0; 257];
    (z[50], z[1], z[106], z[7], z[9]) = (9.0, 8.0, 7.0, 6.0, 5.0);
    let params = SamplingParams { min_tokens: 3, ..SamplingParams::greedy() };
    for (index, want) in [(0, 9), (1, 9), (2, 9), (3, 1), (4, 1)] {
        let request = Request { output: vec![9; index], stop_ids: vec![7], ..Request::new(params.clone()) };
        assert_eq!(token(&mut rig, &request, &z), want, "index {index}");
    }
}

#[test]
fn bad_words_ban_their_last_token_behind_the_others() {
    let mut rig = rig(257, 1);
    let mut z = vec![0.0; 257];
    (z[30], z[31]) = (9.0, 8.0);
    let params =
        SamplingParams { bad_words: vec![vec![5, 6, 30], vec![6, 6, 31], vec![77]], ..SamplingParams::greedy() };
    rig.admit(0, &Request::new(params), 1);
    // The words are watched on the device, token by token; forced tokens stand in for drawn ones.
    let mut next = |forced: Option<u32>| {
        if let Some(token) = forced {
            rig.force(0, token);
        }
        rig.step(&[0], &z)[0].record.token
    };
    assert_eq!(next(None), 30); // nothing before it
    assert_eq!(next(Some(5)), 5);
    assert_eq!(next(None), 30); // only part of the word
    assert_eq!([next(Some(5)), next(Some(6))], [5, 6]);
    assert_eq!(next(None), 31); // 5 6 stand before
    assert_eq!([next(Some(6)), next(Some(6))], [6, 6]);
    assert_eq!(next(None), 30); // 6 6: 31 is banned, 30 is not
}

#[test]
fn a_scripted_mask_and_override_beside_rows_without_one() {
    // What a grammar would do: a mask a step for slot 0, a forced token at step 3; slot 1 never notices.
    let vocab = 512;
    let mut r = Random(18);
    let mut rig = rig(vocab, 2);
    let logits: Vec<Vec<f32>> = (0..6).map(|_| cases::logits(&mut r, vocab, "scattered")).collect();
    rig.admit(1, &Request::new(gemma(8)), 1);
    let alone: Vec<i32> = logits.iter().map(|z| rig.step(&[1], z)[0].record.token).collect();
    rig.admit(1, &Request::new(gemma(8)), 2);
    let open = SamplingParams { allowed_token_ids: Some(vec![0]), ..gemma(3) };
    rig.admit(0, &Request::new(open), 2);
    for (step, z) in logits.iter().enumerate() {
        let legal: Vec<u32> = (0..4).map(|i| (step * 50 + i) as u32).collect();
        rig.set_mask(0, &mask_of(&legal, vocab));
        if step == 3 {
            rig.force(0, 511);
        }
        let got = rig.step(&[0, 1], &[&z[..], z].concat());
        let token = got[0].record.token as u32;
        assert!(if step == 3 { token == 511 } else { legal.contains(&token) }, "step {step}: {token}");
        assert_eq!(got[1].record.token, alone[step]);
    }
}

#[test]
fn b62_a_row_of_nan_or_of_nothing_fails_alone() {
    let vocab = 20_000;
    let mut r = Random(19);
    let mut rig = rig(vocab, 6);
    let good = cases::logits(&mut r, vocab, "scattered");
    let params = [gemma(1), plain(2), SamplingParams::greedy()];
    let alone = tokens_of(&mut rig, &params, &vec![good.clone(); 3]);
    for (shape, status) in [("NaN", -2), ("all masked", -3)] {
        let bad = cases::logits(&mut r, vocab, shape);
        let both: Vec<SamplingParams> = params.iter().chain(&params).cloned().collect();
        let logits = [vec![good.clone(); 3], vec![bad; 3]].concat();
        let got = tokens_of(&mut rig, &both, &logits);
        assert_eq!(got[..3], alone[..], "neighbours of {shape}");
        assert_eq!(got[3..], [status; 3]);
        let states = rig.slot_states();
        assert!(states[3..].iter().all(|s| s.live == 0 && s.output_index == 0));
    }
}

#[test]
fn traps_of_section_2_4() {
    let mut rig = rig(512, 8);
    // Fewer legal tokens than k; p = 1 drops nothing; r on zero changes nothing.
    let mut five = vec![f32::NEG_INFINITY; 512];
    [3, 99, 100, 400, 511].into_iter().for_each(|id| five[id] = 1.0);
    let request = Request::new(SamplingParams { top_k: 64, ..plain(1) });
    assert_eq!(kept(&rig, &request, &five), [3, 99, 100, 400, 511]);
    let flat = vec![0.0; 512];
    let all = Request::new(SamplingParams { min_p: 0.5, top_p: 1.0, ..plain(2) });
    assert_eq!(kept(&rig, &all, &flat).len(), 512);
    // Ties of the boundary stay together, for top-k and for top-p.
    let ties: Vec<f32> = (0..512).map(|id| if id % 100 == 0 { 2.0 } else { 0.0 }).collect();
    for p in [SamplingParams { top_k: 2, ..plain(3) }, SamplingParams { top_p: 0.01, ..plain(3) }] {
        assert_eq!(kept(&rig, &Request::new(p), &ties), [0, 100, 200, 300, 400, 500]);
    }
    let repeated = SamplingParams { repetition_penalty: 1.9, ..plain(4) };
    let request = Request { prompt: vec![1, 2, 3], ..Request::new(repeated) };
    let unpenalised = token(&mut rig, &Request::new(plain(4)), &flat);
    assert_eq!(token(&mut rig, &request, &flat), unpenalised);
}

#[test]
fn b50_b51_logprobs_are_finite_and_include_the_token() {
    let mut rig = rig(512, 1);
    let mut z = vec![f32::NEG_INFINITY; 512];
    (z[5], z[6], z[7]) = (1.0, 0.0, 0.0);
    let params = SamplingParams { logprobs: Some(20), ..SamplingParams::greedy() };
    rig.admit(0, &Request::new(params), 1);
    let got = rig.step(&[0], &z);
    let total = 1f64.exp() + 2.0;
    let (of_token, l) = (f64::from(got[0].record.logprob), &got[0].logprobs);
    assert!((of_token - (1.0 - total.ln())).abs() < 1e-6);
    assert_eq!((l.rank, l.id[..4].to_vec()), (1, vec![5, 6, 7, -1]));
    assert!((f64::from(l.logprob[1]) + total.ln()).abs() < 1e-6);
}

#[test]
fn b51_processed_logprobs_are_of_what_is_drawn_from_raw_ones_of_the_model() {
    let mut rig = rig(512, 4);
    let mut z = vec![-8.0f32; 512];
    (z[5], z[6], z[7], z[8]) = (3.0, 2.0, 1.0, 0.0);
    let raw = SamplingParams { top_k: 3, temperature: 0.5, logprobs: Some(4), ..plain(1) };
    let raw = SamplingParams { logit_bias: vec![(5, -100.0)], ..raw };
    let processed = SamplingParams { logprobs_mode: LogprobsMode::Processed, ..raw.clone() };
    let greedy = SamplingParams { temperature: 0.0, top_k: 0, ..processed.clone() };
    let all = [raw, greedy, processed.clone(), processed];
    all.iter().enumerate().for_each(|(slot, p)| rig.admit(slot, &Request::new(p.clone()), 1));
    rig.force(3, 5);
    // Rows out of the order of slots: entries follow rows.
    let got = rig.step(&[2, 0, 3, 1], &[z.clone(), z.clone(), z.clone(), z.clone()].concat());
    let close = |got: f32, want: f64| assert!((f64::from(got) - want).abs() < 1e-5, "{got} {want}");
    let tail = 508.0 * (-8f64).exp();
    // Processed: 5 is banned and three are left, at temperature 0.5.
    let l = &got[0].logprobs;
    assert_eq!(l.id[..4], [6, 7, 8, -1]);
    let total = 4f64.exp() + 2f64.exp() + 1.0;
    [4.0, 2.0, 0.0].iter().zip(l.logprob).for_each(|(y, got)| close(got, y - total.ln()));
    // Raw: the model's own.
    let l = &got[1].logprobs;
    assert_eq!(l.id[..5], [5, 6, 7, 8, -1]);
    let total = 3f64.exp() + 2f64.exp() + 1f64.exp() + 1.0 + tail;
    close(l.logprob[0], 3.0 - total.ln());
    // Forced: everything legal, the token itself though it is nearly banned.
    close(got[2].logprobs.token_logprob, -97.0 * 2.0 - 4.0 - (1.0 + (-2f64).exp() + (-4f64).exp()).ln());
    // Greedy: everything legal at temperature 1.
    let l = &got[3].logprobs;
    assert_eq!((l.rank, got[3].record.token, l.id[0]), (1, 6, 6));
    close(l.token_logprob, 2.0 - (2f64.exp() + 1f64.exp() + 1.0 + tail).ln());
}
