//! What the tracer kernels must generate, from the token list alone: no pages, slots, rows, chunks or steps.
//!
//! The formula stands in csrc/tracer/payload.h; this is written from it, not from the kernels. The model has one
//! sliding layer, then one global one.

use gemma4_serve::request::{GenerateRequest, Terminal};
use gemma4_serve::sampler::oracle::{Logprobs, OracleRow, Outcome, sample};
use gemma4_serve::sampling::SamplingParams;

/// The tracer model's shape as the oracle needs it.
#[derive(Clone, Debug)]
pub struct Oracle {
    pub window: usize,
    pub vocab: usize,
    pub eos_ids: Vec<u32>,
}

/// What a request must give when nobody ends it early.
#[derive(Clone, Debug)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// One a token, and one for each token of the prompt but the first, where the request asks for them.
    pub logprobs: Vec<Logprobs>,
    pub prompt_logprobs: Vec<Logprobs>,
    pub terminal: Terminal,
}

const TOKEN: u64 = 0x746f_6b65_6e00_0001;
const KEY: u64 = 0x6b65_7900_0000_0002;
const VALUE: u64 = 0x7661_6c75_6500_0003;
const LOGITS: u64 = 0x6c6f_6769_7473_0004;

fn fold(h: u64, w: u64) -> u64 {
    let g = (h.rotate_left(23) ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    g ^ (g >> 29)
}

impl Oracle {
    /// The token after a prefix.
    pub fn next_token(&self, tokens: &[u32]) -> u32 {
        let mut prefix = Prefix::default();
        tokens.iter().for_each(|&token| prefix.push(token, self.window));
        prefix.next(self.vocab)
    }

    /// All tokens of a request and how it ends.
    pub fn answer(&self, request: &GenerateRequest) -> Answer {
        let mut prefix = Prefix::default();
        let (mut tokens, mut logprobs, mut prompt_logprobs) = (Vec::new(), Vec::new(), Vec::new());
        for (i, &token) in request.prompt.iter().enumerate() {
            if let (true, Some(count)) = (i > 0, request.sampling.prompt_logprobs) {
                prompt_logprobs.push(self.score(&prefix, token, count));
            }
            prefix.push(token, self.window);
        }
        let terminal = loop {
            let (token, scores) = self.draw(&prefix, request, &tokens);
            tokens.push(token);
            logprobs.extend(scores);
            let is_eos = !request.ignore_eos && self.eos_ids.contains(&token);
            if is_eos || request.stop_token_ids.contains(&token) {
                break Terminal::Stop;
            }
            if tokens.len() == request.max_tokens as usize {
                break Terminal::Length;
            }
            prefix.push(token, self.window);
        };
        Answer { tokens, logprobs, prompt_logprobs, terminal }
    }

    /// The token behind a prefix: the tracer's logits are 1 for its own token and 0 for all others, and the sampler's
    /// oracle draws from them.
    fn draw(&self, prefix: &Prefix, request: &GenerateRequest, output: &[u32]) -> (u32, Option<Logprobs>) {
        if request.sampling == SamplingParams::greedy() {
            return (prefix.next(self.vocab), None);
        }
        let row = OracleRow {
            logits: &self.logits(prefix),
            params: &request.sampling,
            prompt: &request.prompt,
            output,
            suppressed: &[],
            eos_ids: &self.eos_ids,
            stop_ids: &request.stop_token_ids,
            forced: None,
        };
        match sample(&row) {
            Outcome::Token { token, logprobs, .. } => (token, logprobs),
            other => panic!("{other:?}"),
        }
    }

    /// What a prompt's position says of the token that follows.
    fn score(&self, prefix: &Prefix, token: u32, count: u32) -> Logprobs {
        let params = SamplingParams { logprobs: Some(count), ..SamplingParams::greedy() };
        let (logits, none) = (self.logits(prefix), &[][..]);
        let (params, forced) = (&params, Some(token));
        let row = OracleRow {
            logits: &logits,
            params,
            prompt: none,
            output: none,
            suppressed: none,
            eos_ids: none,
            stop_ids: none,
            forced,
        };
        match sample(&row) {
            Outcome::Token { logprobs: Some(logprobs), .. } => logprobs,
            other => panic!("{other:?}"),
        }
    }

    fn logits(&self, prefix: &Prefix) -> Vec<f32> {
        let mut logits = vec![0.0; self.vocab];
        logits[prefix.next(self.vocab) as usize] = 1.0;
        logits
    }
}

/// K and V hashes of every position of a prefix, and what its last position came to.
#[derive(Default)]
struct Prefix {
    sliding: Vec<[u64; 2]>,
    global: Vec<[u64; 2]>,
    state: u64,
}

impl Prefix {
    fn push(&mut self, token: u32, window: usize) {
        let position = self.sliding.len();
        let mut x = fold(TOKEN, token.into());
        for (cells, first) in [(&mut self.sliding, (position + 1).saturating_sub(window)), (&mut self.global, 0)] {
            cells.push([KEY, VALUE].map(|kind| fold(fold(kind, x), position as u64)));
            let attention = cells[first..].iter().flatten().fold(x, |h, &cell| fold(h, cell));
            x = fold(x, attention);
            // The feed-forward half hands its input on as it is.
            x = fold(x, x);
        }
        self.state = x;
    }

    fn next(&self, vocab: usize) -> u32 {
        let g = fold(self.state, LOGITS);
        ((g ^ (g >> 32)) % vocab as u64) as u32
    }
}
