//! Tokens to answer text: ids, then detokenizer, then stop strings. The one implementation behind streamed and gathered
//! answers, so that they cannot differ (B34).

use super::{Detokenizer, StopMatcher, Tokenizer};

/// A prompt as the text that stands before its answer, and where each of its tokens begins in it.
pub struct PromptText {
    pub text: String,
    /// In characters, as [`TextOutput::offset`] has it.
    pub offsets: Vec<usize>,
    pub chars: usize,
}

impl PromptText {
    pub fn new(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let mut output = TextOutput::new::<&str>(&[], false, 0);
        let mut text = String::new();
        let mut offsets = Vec::with_capacity(ids.len());
        for &id in ids {
            offsets.push(output.offset(tokenizer, id));
            output.push(tokenizer, id, false, &mut text);
        }
        output.finish(&mut text);
        let chars = text.chars().count();
        PromptText { text, offsets, chars }
    }
}

pub struct TextOutput {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    min_tokens: u32,
    tokens: u32,
    /// Ids between which the text is a thought and not part of the answer, and whether the last token was there.
    thought: Option<(u32, u32)>,
    thinks: bool,
    /// Characters of the text so far, whether released, held back or cut off by a stop string.
    chars: usize,
}

impl TextOutput {
    /// `keeps_stop`: a stop string that matches stays in the text.
    pub fn new<S: AsRef<str>>(stops: &[S], keeps_stop: bool, min_tokens: u32) -> Self {
        let stops = StopMatcher::new(stops).keeping(keeps_stop);
        Self {
            detokenizer: Detokenizer::default(),
            stops,
            min_tokens,
            tokens: 0,
            thought: None,
            thinks: false,
            chars: 0,
        }
    }

    /// A text that begins behind `chars` characters of something else (an echoed prompt).
    pub fn behind(self, chars: usize) -> Self {
        Self { chars, ..self }
    }

    /// Leaves out the text between two ids, a thought; nothing with none.
    pub fn without_thoughts(self, ids: Option<(u32, u32)>) -> Self {
        Self { thought: ids, ..self }
    }

    /// Takes one token, appends what can be released to `out`; true when a stop string has matched. `silent` ids leave
    /// no text beside the tokenizer's own special ones (the model's EOS list, say). Within the first `min_tokens`
    /// tokens no stop string matches; one that ends behind them does.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, silent: bool, out: &mut String) -> bool {
        self.tokens += 1;
        if let Some((begin, end)) = self.thought {
            self.thinks = id == begin || (self.thinks && id != end);
        }
        if silent || self.thinks {
            return self.stops.matched();
        }
        let mut text = String::new();
        self.detokenizer.push(&tokenizer.piece(id), &mut text);
        self.chars += text.chars().count();
        if self.tokens <= self.min_tokens {
            self.stops.pass(&text, out);
            return false;
        }
        self.stops.push(&text, out)
    }

    /// Whether `id`, if it is the next token, belongs to a thought that is left out, marks included.
    pub fn leaves_out(&self, id: u32) -> bool {
        self.thought.is_some_and(|(begin, _)| id == begin || self.thinks)
    }

    /// Where the text of `id` begins if it is the next token, in characters; inside a character that is not whole yet,
    /// where that begins.
    pub fn offset(&self, tokenizer: &Tokenizer, id: u32) -> usize {
        self.chars + usize::from(self.detokenizer.is_broken_by(&tokenizer.piece(id)))
    }

    /// The last token came: releases what was held. True when the last characters completed a stop string.
    pub fn finish(&mut self, out: &mut String) -> bool {
        let mut text = String::new();
        self.detokenizer.finish(&mut text);
        self.stops.push(&text, out);
        self.stops.finish(out);
        self.stops.matched()
    }
}
