//! Tokens to answer text: ids, then detokenizer, then stop strings. The one implementation behind streamed and gathered
//! answers, so that they cannot differ (B34).

use super::{Detokenizer, StopMatcher, Tokenizer};

/// A prompt as the text that stands before its answer, and where each of its tokens begins in it.
pub struct PromptText {
    pub text: String,
    /// In characters, as [`TextOutput::chars`] has it.
    pub offsets: Vec<usize>,
    pub chars: usize,
}

impl PromptText {
    pub fn new(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let mut output = TextOutput::new::<&str>(&[], false, 0);
        let mut text = String::new();
        let mut offsets = Vec::with_capacity(ids.len());
        for &id in ids {
            offsets.push(output.chars());
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
    /// Characters of the text so far, whether released, held back or cut off by a stop string.
    chars: usize,
}

impl TextOutput {
    /// `keeps_stop`: a stop string that matches stays in the text.
    pub fn new<S: AsRef<str>>(stops: &[S], keeps_stop: bool, min_tokens: u32) -> Self {
        let stops = StopMatcher::new(stops).keeping(keeps_stop);
        Self { detokenizer: Detokenizer::default(), stops, min_tokens, tokens: 0, chars: 0 }
    }

    /// A text that begins behind `chars` characters of something else (an echoed prompt).
    pub fn behind(self, chars: usize) -> Self {
        Self { chars, ..self }
    }

    /// Takes one token, appends what can be released to `out`; true when a stop string has matched. `silent` ids leave
    /// no text beside the tokenizer's own special ones (the model's EOS list). The first `min_tokens` tokens stop
    /// nothing: their text is never part of a match.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, silent: bool, out: &mut String) -> bool {
        self.tokens += 1;
        if silent {
            return self.stops.matched();
        }
        let mut text = String::new();
        self.detokenizer.push(&tokenizer.piece(id), &mut text);
        self.chars += text.chars().count();
        if self.tokens <= self.min_tokens {
            out.push_str(&text);
            return false;
        }
        self.stops.push(&text, out)
    }

    /// Where the next token's text begins, in characters; inside a character that is not whole yet, where that begins.
    pub fn chars(&self) -> usize {
        self.chars
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
