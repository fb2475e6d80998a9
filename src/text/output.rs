//! Tokens to answer text: ids, then detokenizer, then stop strings. The one implementation behind streamed and gathered
//! answers, so that they cannot differ (B34).

use super::{Detokenizer, StopMatcher, Tokenizer};

pub struct TextOutput {
    detokenizer: Detokenizer,
    stops: StopMatcher,
}

impl TextOutput {
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        Self { detokenizer: Detokenizer::default(), stops: StopMatcher::new(stops) }
    }

    /// Takes one token, appends what can be released to `out`; true when a stop string has matched. `silent` ids leave
    /// no text beside the tokenizer's own special ones (the model's EOS list).
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, silent: bool, out: &mut String) -> bool {
        if silent {
            return self.stops.matched();
        }
        let mut text = String::new();
        self.detokenizer.push(&tokenizer.piece(id), &mut text);
        self.stops.push(&text, out)
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
