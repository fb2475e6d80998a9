//! The checkpoint's tokenizer: text to ids, and the bytes one id stands for.
//!
//! Nothing is added while encoding: BOS is decided on ids by the caller (B87). Text is parsed as the tokenizer parses
//! it, so the text of a special token (`<bos>`, `<|turn>`) in a raw completion prompt becomes that token; only a chat
//! template, which knows which text is the user's, can do otherwise.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

/// Why a `tokenizer.json` is refused. `Display` is what the operator reads at start.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error("tokenizer.json cannot be parsed: {0}")]
    Parse(String),
    #[error("tokenizer.json: decoder step {0} is not supported: a token's text would depend on its neighbours")]
    Decoder(String),
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
}

/// What one token adds to the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// One byte of a character that may span several tokens.
    Byte(u8),
    /// Whole characters.
    Text(String),
    /// Special token, or an id without a token: nothing.
    Nothing,
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The same, but the text of a special token is text.
    plain: tokenizers::Tokenizer,
    special_ids: HashSet<u32>,
    byte_fallback: bool,
    /// Bytes of text that one token takes at most, where that is known.
    token_bytes_max: Option<usize>,
}

impl Tokenizer {
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.display().to_string(), source })?;
        Self::from_bytes(&bytes)
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let json: Value = serde_json::from_slice(bytes).map_err(|e| TokenizerError::Parse(e.to_string()))?;
        let mut byte_fallback = false;
        check_decoder(&json["decoder"], &mut byte_fallback)?;
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| TokenizerError::Parse(e.to_string()))?;
        // A file may carry truncation or padding of its training run; a prompt is never cut or padded in silence.
        inner.with_truncation(None).map_err(|e| TokenizerError::Parse(e.to_string()))?;
        inner.with_padding(None);
        let special_ids =
            inner.get_added_tokens_decoder().iter().filter(|(_, token)| token.special).map(|(id, _)| *id).collect();
        let mut plain = inner.clone();
        plain.set_encode_special_tokens(true);
        let token_bytes_max = token_bytes_max(&json, &inner);
        Ok(Self { inner, plain, special_ids, byte_fallback, token_bytes_max })
    }

    /// Tokens that `bytes` of text have at least; 0 where the tokenizer does not tell.
    pub fn tokens_at_least(&self, bytes: usize) -> usize {
        self.token_bytes_max.map_or(0, |most| bytes / most)
    }

    /// Ids of `text`, nothing added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of `text` in which nothing becomes a special token.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.plain.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The special tokens, ids ascending, with their spellings.
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let mut tokens: Vec<_> = self.special_ids.iter().filter_map(|&id| Some((id, self.id_to_token(id)?))).collect();
        tokens.sort_unstable();
        tokens
    }

    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Text of `ids` without special tokens, in one go; equal to pushing them through a [`super::Detokenizer`].
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = super::Detokenizer::default();
        let mut text = String::new();
        for &id in ids {
            detokenizer.push(&self.piece(id), &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Ids that leave no text: the tokens marked special.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// Ids of this tokenizer, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The name a token goes by where tokens are listed: its text; `bytes:\xHH` for a byte of a character; of a
    /// special token its own spelling.
    pub fn name(&self, id: u32) -> String {
        match self.piece(id) {
            Piece::Text(text) => text,
            Piece::Byte(byte) => format!("bytes:\\x{byte:02x}"),
            Piece::Nothing => self.inner.id_to_token(id).unwrap_or_else(|| format!("token_id:{id}")),
        }
    }

    /// Bytes that `id` adds to the text; none for a special token.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match self.piece(id) {
            Piece::Text(text) => Some(text.into_bytes()),
            Piece::Byte(byte) => Some(vec![byte]),
            Piece::Nothing => None,
        }
    }

    /// What `id` adds to the text. `check_decoder` made sure that this depends on nothing but the id.
    pub fn piece(&self, id: u32) -> Piece {
        if self.is_special(id) {
            return Piece::Nothing;
        }
        let Some(token) = self.inner.id_to_token(id) else { return Piece::Nothing };
        if self.byte_fallback
            && let Some(byte) = fallback_byte(&token)
        {
            return Piece::Byte(byte);
        }
        match self.inner.decode(&[id], false) {
            Ok(text) => Piece::Text(text),
            Err(_) => Piece::Nothing,
        }
    }
}

/// Bytes of text that one token takes at most: those of the longest spelling. None where text may vanish before it is
/// tokens (a normalizer other than Gemma's, which writes a longer character for each space; a token that takes the
/// spaces around it), or where one token stands for many unknown characters.
fn token_bytes_max(json: &Value, tokenizer: &tokenizers::Tokenizer) -> Option<usize> {
    let normalizer = &json["normalizer"];
    let grows = normalizer.is_null()
        || (normalizer["type"] == "Replace" && normalizer["pattern"]["String"] == " " && normalizer["content"] == "▁");
    let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let strips = added.iter().any(|token| token["lstrip"] == true || token["rstrip"] == true);
    if !grows || strips || json["model"]["byte_fallback"] != true {
        return None;
    }
    tokenizer.get_vocab(true).keys().map(String::len).max().filter(|&most| most > 0)
}

/// `<0xHH>`, the spelling of a byte-fallback token.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// Accepts the decoders under which the text of a sequence is the concatenation of its tokens' bytes: replacing a
/// string inside a token, byte fallback, joining. Anything else (stripping the first token's space, cleaning up) is
/// refused at start, since it would make the incremental text differ from the whole.
fn check_decoder(decoder: &Value, byte_fallback: &mut bool) -> Result<(), TokenizerError> {
    match decoder["type"].as_str() {
        Some("Sequence") => {
            let empty = Vec::new();
            decoder["decoders"].as_array().unwrap_or(&empty).iter().try_for_each(|d| check_decoder(d, byte_fallback))
        }
        Some("Replace") | Some("Fuse") => Ok(()),
        Some("ByteFallback") => {
            *byte_fallback = true;
            Ok(())
        }
        Some(other) => Err(TokenizerError::Decoder(other.to_owned())),
        None => Err(TokenizerError::Decoder("(none)".to_owned())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn tiny() -> Tokenizer {
        Tokenizer::from_bytes(include_bytes!("../../tests/data/tokenizer.json")).unwrap()
    }

    #[test]
    fn encoding_adds_nothing() {
        let t = tiny();
        assert_eq!(t.encode("").unwrap(), Vec::<u32>::new());
        assert_eq!(t.encode("the").unwrap(), vec![462]);
    }

    #[test]
    fn special_text_becomes_the_special_token_in_raw_text() {
        assert_eq!(tiny().encode("<bos>the<turn|>").unwrap(), vec![2, 462, 106]);
    }

    #[test]
    fn pieces_are_bytes_text_or_nothing() {
        let t = tiny();
        assert_eq!(t.piece(110 + 0xF0), Piece::Byte(0xF0));
        assert_eq!(t.piece(463), Piece::Text(" the".into()));
        assert_eq!(t.piece(106), Piece::Nothing);
        assert_eq!(t.piece(999_999), Piece::Nothing);
    }

    #[test]
    fn a_decoder_that_looks_at_neighbours_is_refused_at_start() {
        let mut json: Value = serde_json::from_slice(include_bytes!("../../tests/data/tokenizer.json")).unwrap();
        json["decoder"] = serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let bytes = serde_json::to_vec(&json).unwrap();
        assert!(matches!(Tokenizer::from_bytes(&bytes), Err(TokenizerError::Decoder(name)) if name == "Strip"));
    }
}
