//! Token pieces to text, one at a time: whole characters as soon as they are whole, nothing before (B35).
//!
//! The only undecided state is the bytes of one unfinished character, three at most, so the cost of a token does not
//! depend on how many came before. Bytes that cannot become a character turn into U+FFFD, one for each maximal invalid
//! part (the Unicode recommendation, and what `String::from_utf8_lossy` does), when that becomes certain: at the next
//! piece or at the end. The text is therefore the lossy decoding of the concatenated bytes, whatever the split. It
//! equals `tokenizers`' own decode wherever runs of byte tokens are valid UTF-8; where a run is not, that library
//! replaces the whole run, valid characters included, which a stream could only follow by holding every run back to its
//! end.

use super::tokenizer::Piece;

#[derive(Default)]
pub struct Detokenizer {
    /// Bytes of one incomplete character.
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Appends to `text` what has become certain.
    pub fn push(&mut self, piece: &Piece, text: &mut String) {
        match piece {
            Piece::Nothing => {}
            Piece::Byte(byte) => {
                self.pending.push(*byte);
                self.settle(text);
            }
            Piece::Text(piece) => {
                if !piece.is_empty() {
                    self.finish(text);
                    text.push_str(piece);
                }
            }
        }
    }

    /// Whether `piece` makes it certain that the bytes before it are no character: then U+FFFD stands before its text.
    pub fn is_broken_by(&self, piece: &Piece) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        match piece {
            Piece::Nothing => false,
            Piece::Text(text) => !text.is_empty(),
            Piece::Byte(byte) => {
                let bytes = [&self.pending[..], &[*byte]].concat();
                std::str::from_utf8(&bytes).is_err_and(|e| e.error_len().is_some())
            }
        }
    }

    /// No more pieces: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }

    /// Moves everything but an incomplete tail out of `pending`.
    fn settle(&mut self, text: &mut String) {
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    return;
                }
                Err(e) => {
                    let valid = e.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[..valid]));
                    match e.error_len() {
                        Some(bad) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            self.pending.drain(..valid + bad);
                        }
                        None => {
                            self.pending.drain(..valid);
                            return;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tokenizer::tests::tiny;
    use super::*;

    /// Bytes that `ids` stand for, concatenated: the text's definition.
    fn lossy(ids: &[u32]) -> String {
        let tokenizer = tiny();
        let mut bytes = Vec::new();
        for &id in ids {
            match tokenizer.piece(id) {
                Piece::Byte(b) => bytes.push(b),
                Piece::Text(t) => bytes.extend_from_slice(t.as_bytes()),
                Piece::Nothing => {}
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn an_emoji_of_four_byte_tokens_comes_out_once_and_whole() {
        // B35
        let tokenizer = tiny();
        let mut detokenizer = Detokenizer::default();
        let mut deltas = Vec::new();
        for id in tokenizer.encode("a🌍b").unwrap() {
            let mut delta = String::new();
            detokenizer.push(&tokenizer.piece(id), &mut delta);
            deltas.push(delta);
        }
        assert_eq!(deltas, ["a", "", "", "", "🌍", "b"]);
    }

    #[test]
    fn an_incomplete_character_is_replaced_only_at_the_end() {
        let (mut detokenizer, mut text) = (Detokenizer::default(), String::new());
        detokenizer.push(&Piece::Byte(0xF0), &mut text);
        detokenizer.push(&Piece::Byte(0x9F), &mut text);
        assert_eq!(text, "");
        detokenizer.finish(&mut text);
        assert_eq!(text, "\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_text_comes_back_token_by_token(text in "\\PC{0,40}") {
            let tokenizer = tiny();
            prop_assume!(!text.contains("<") && !text.contains('▁'));
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids), text);
        }

        #[test]
        fn valid_runs_decode_as_the_library_does(
            text in "[ -;=-~é🌍中\n]{0,40}",
            specials in prop::collection::vec((0usize..60, prop::sample::select(vec![1u32, 2, 105, 106])), 0..4),
        ) {
            let tokenizer = tiny();
            let ids = tokenizer.encode(&text).unwrap();
            let library = tokenizers::Tokenizer::from_bytes(include_bytes!("../../tests/data/tokenizer.json")).unwrap();
            prop_assert_eq!(library.decode(&ids, true).unwrap(), tokenizer.decode(&ids));
            // Special tokens anywhere change nothing.
            let mut with = ids.clone();
            for (at, id) in specials { with.insert(at.min(with.len()), id); }
            prop_assert_eq!(tokenizer.decode(&with), tokenizer.decode(&ids));
        }

        #[test]
        fn any_ids_decode_to_the_lossy_text_of_their_bytes(
            ids in prop::collection::vec(prop_oneof![110u32..366, 100u32..480], 0..60),
        ) {
            let tokenizer = tiny();
            prop_assert_eq!(tokenizer.decode(&ids), lossy(&ids));
        }
    }
}
