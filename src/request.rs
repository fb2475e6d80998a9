//! What crosses between the async side and the engine thread: a request in token ids, its tokens, its one terminal.

use std::fmt;

use crate::sampling::SamplingParams;

/// Identity of a request inside this process; the client's `X-Request-Id` stays on the async side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A generation request as the engine sees it: valid, resolved, in token ids.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// Prompt token ids, at least one, each below the vocabulary size.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most, at least one; `prompt.len() + max_tokens` is within the context limit.
    pub max_tokens: u32,
    /// The model's EOS list does not stop this request (`stop_token_ids` still do).
    pub ignore_eos: bool,
    /// Further ids that stop the request, at most [`crate::limits::STOP_TOKEN_IDS_MAX`].
    pub stop_token_ids: Vec<u32>,
    /// How tokens are chosen, the seed included.
    pub sampling: SamplingParams,
}

impl GenerateRequest {
    /// Tokens the KV cache must hold for this request in the worst case. The last generated token is never fed back.
    pub fn kv_tokens_max(&self) -> usize {
        self.prompt.len() + self.max_tokens as usize - 1
    }
}

/// Most likely tokens a position can report beside its own.
pub const LOGPROBS_MAX: usize = 20;

/// What a position of the text says of its token and of the likeliest ones. Of a fixed size: it crosses from the engine
/// thread without an allocation of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprobs {
    pub token: u32,
    /// Minus infinity where the token was impossible.
    pub logprob: f32,
    /// Tokens at least as likely, itself among them.
    pub rank: u32,
    top: [(u32, f32); LOGPROBS_MAX],
    count: usize,
}

impl TokenLogprobs {
    /// `top`: at most [`LOGPROBS_MAX`], most likely first, lowest id on ties.
    pub fn new(token: u32, logprob: f32, rank: u32, top: &[(u32, f32)]) -> Self {
        let mut all = [(0, 0.0); LOGPROBS_MAX];
        all[..top.len()].copy_from_slice(top);
        TokenLogprobs { token, logprob, rank, top: all, count: top.len() }
    }

    /// The most likely tokens, as many as were asked for and are possible.
    pub fn top(&self) -> &[(u32, f32)] {
        &self.top[..self.count]
    }

    /// The same with the first `count` of them alone.
    pub fn cut(mut self, count: usize) -> Self {
        self.count = self.count.min(count);
        self
    }
}

/// How an accepted request ended. Exactly one per request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// An EOS or stop id was generated (it is the last token of the ring), or a stop string matched.
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The client went away, or the async side ended the request.
    Cancelled,
    /// The request cannot be finished: what the client is told.
    Failed(Failure),
}

/// Why an accepted request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the device or engine failed: {0}")]
    Engine(String),
    #[error("the logits of output token {output_index} are not a number")]
    NotANumber { output_index: u32 },
    #[error("the logits behind prompt token {position} are not a number")]
    PromptNotANumber { position: usize },
    #[error(
        "every token is masked at output token {output_index}: allowed_token_ids, bad_words, min_tokens and logit_bias \
         leave none"
    )]
    AllMasked { output_index: u32 },
    #[error("the server is shutting down and the drain time is over")]
    DrainTimeout,
}

/// Why the async side wants a request to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cancel {
    /// The client's connection is gone.
    ClientGone = 1,
    /// A stop string matched in the generated text.
    StopString = 2,
    /// The drain limit passed.
    DrainTimeout = 3,
}
