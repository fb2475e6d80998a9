//! What a request asks of the sampler: plain values, known to the async side and the engine alike. How a slot holds
//! them is the sampler's affair ([`crate::sampler::params`]).

/// Below it a temperature is greedy.
pub const TEMPERATURE_MIN: f32 = 1e-5;

/// A request's sampling, valid and resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 to 2; below [`TEMPERATURE_MIN`] greedy.
    pub temperature: f32,
    /// 0: off.
    pub top_k: u32,
    /// In (0, 1]; 1: off.
    pub top_p: f32,
    /// In [0, 1]; 0: off.
    pub min_p: f32,
    /// In (0, 1]; 1: off.
    pub typical_p: f32,
    /// In [0, 1]; 0: off.
    pub xtc_probability: f32,
    /// Off above 0.5, where no two tokens can reach it.
    pub xtc_threshold: f32,
    /// Above 0; 1: off.
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub seed: u64,
    /// Which of n choices: each draws from a stream of its own.
    pub choice: u16,
    /// EOS and stop ids do not compete before this many tokens are out.
    pub min_tokens: u32,
    /// One entry an id.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these compete.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Token sequences that the output must not contain; none is empty.
    pub bad_words: Vec<Vec<u32>>,
    /// Most likely tokens to report beside the chosen one.
    pub logprobs: Option<u32>,
    /// Most likely tokens to report at each position of the prompt beside its token, always raw.
    pub prompt_logprobs: Option<u32>,
    /// The server's, the same for every request.
    pub logprobs_mode: LogprobsMode,
}

/// Which distribution log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobsMode {
    /// The model's own, before anything the request asks for.
    #[default]
    Raw,
    /// What the token was drawn from: after bans, biases, penalties, temperature and filters. Of a greedy row, or one
    /// whose token was forced, everything legal; at temperature 1 where greedy.
    Processed,
}

impl std::str::FromStr for LogprobsMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "raw" => Ok(LogprobsMode::Raw),
            "processed" => Ok(LogprobsMode::Processed),
            _ => Err("must be raw or processed".to_owned()),
        }
    }
}

impl std::fmt::Display for LogprobsMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LogprobsMode::Raw => "raw",
            LogprobsMode::Processed => "processed",
        })
    }
}

impl SamplingParams {
    /// Greedy, nothing else.
    pub fn greedy() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            seed: 0,
            choice: 0,
            min_tokens: 0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            logprobs_mode: LogprobsMode::Raw,
        }
    }

    /// Whether only the best token can be drawn. The filters that leave one token, up to ties, decide like greedy:
    /// nobody who asks for them wants a draw among ties.
    pub fn is_greedy(&self, vocab: usize) -> bool {
        self.temperature < TEMPERATURE_MIN || self.top_k == 1 || self.top_p <= 1.0 / vocab as f32 || self.min_p >= 1.0
    }

    /// Whether counts of tokens are needed.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self::greedy()
    }
}
