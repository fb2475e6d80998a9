//! The served model as the async side sees it: names, ids and limits. The engine start fills it in once.

use std::collections::BTreeSet;

use crate::error::Rejection;
use crate::sampling::SamplingParams;
use crate::server::messages::Conversation;
use crate::text::chat_template::{self, Piece};
use crate::text::{ChatTemplate, Tokenizer};

pub struct ServedModel {
    /// The model's id in requests and answers.
    pub id: String,
    pub tokenizer: Tokenizer,
    /// None: the chat route is refused.
    pub chat_template: Option<ChatTemplate>,
    pub bos_id: u32,
    /// Every list of EOS ids the checkpoint has, united (B27); they leave no text.
    pub eos_ids: Vec<u32>,
    /// Ids that stand for image, audio or video input, with the word the refusal uses.
    pub refused_ids: Vec<(u32, String)>,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// How tokens are chosen for a request that does not say.
    pub sampling: SamplingParams,
    /// Tokens of prompt and answer together.
    pub max_context: usize,
    /// Tokens the whole KV pool holds for one request (global pages times page tokens).
    pub kv_tokens_max: usize,
}

impl ServedModel {
    /// EOS ids of config.json, generation_config.json and the tokenizer as one sorted list (B27, B28: merged, not
    /// replaced).
    pub fn unite_eos<'a>(lists: impl IntoIterator<Item = &'a [u32]>) -> Vec<u32> {
        lists.into_iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub fn is_eos(&self, id: u32) -> bool {
        self.eos_ids.contains(&id)
    }

    /// A text prompt in ids: exactly one BOS in front, whether the text began with it or not (B87, decided on ids).
    pub fn encode(&self, prompt_index: usize, text: &str) -> Result<Vec<u32>, Rejection> {
        self.check_text_bytes(prompt_index, text.len())?;
        let mut ids = self
            .tokenizer
            .encode(text)
            .map_err(|e| Rejection::NotTokenised { prompt_index, message: e.to_string() })?;
        if ids.first() != Some(&self.bos_id) {
            ids.insert(0, self.bos_id);
        }
        Ok(ids)
    }

    /// A conversation in ids, up to where the model is to answer: exactly one BOS in front (B87).
    pub fn encode_chat(&self, conversation: &Conversation) -> Result<Vec<u32>, Rejection> {
        let template = self.chat_template.as_ref().ok_or(Rejection::NoChatTemplate)?;
        let pieces = template.pieces(&conversation.messages, &conversation.variables)?;
        self.check_text_bytes(0, pieces.iter().map(Piece::text_bytes).sum())?;
        let mut ids = chat_template::encode(&self.tokenizer, &pieces)?;
        if ids.first() != Some(&self.bos_id) {
            ids.insert(0, self.bos_id);
        }
        Ok(ids)
    }

    /// Refuses text that has more tokens than the context holds, whatever they are: tokenising it would cost a hundred
    /// times its bytes.
    fn check_text_bytes(&self, prompt_index: usize, bytes: usize) -> Result<(), Rejection> {
        let tokens_min = self.tokenizer.tokens_at_least(bytes);
        if tokens_min > self.max_context {
            let context = self.max_context;
            return Err(Rejection::PromptTooLong { prompt_index, bytes, tokens_min, context });
        }
        Ok(())
    }

    /// An id prompt as the engine wants it: untouched (B87), each id in range.
    pub fn narrow(&self, prompt_index: usize, ids: &[u64]) -> Result<Vec<u32>, Rejection> {
        ids.iter()
            .enumerate()
            .map(|(position, &id)| match u32::try_from(id) {
                Ok(narrow) if (narrow as usize) < self.vocab_size => Ok(narrow),
                _ => Err(Rejection::TokenIdOutOfRange { prompt_index, position, id, vocab_size: self.vocab_size }),
            })
            .collect()
    }

    /// Refuses ids the model would take for another modality's input (B89's kind), and ids past the embedding table.
    pub fn check_ids(&self, prompt_index: usize, ids: &[u32]) -> Result<(), Rejection> {
        for (position, &id) in ids.iter().enumerate() {
            if id as usize >= self.vocab_size {
                let vocab_size = self.vocab_size;
                return Err(Rejection::TokenIdOutOfRange { prompt_index, position, id: id.into(), vocab_size });
            }
            if let Some((_, name)) = self.refused_ids.iter().find(|(refused, _)| *refused == id) {
                return Err(Rejection::ModalityToken { prompt_index, position, id, name: name.clone() });
            }
        }
        Ok(())
    }

    /// The answer's length: as asked if context and KV pool hold it, else a refusal with the numbers (B47, B48).
    /// Without `max_tokens`, the default cut to what fits. 0 is taken where it is asked for.
    pub fn max_tokens(
        &self,
        prompt_index: usize,
        prompt_tokens: usize,
        asked: Option<u64>,
        default: usize,
    ) -> Result<u32, Rejection> {
        // The last generated token is never fed back, so the pool holds one token more than its cache.
        let context_room = self.max_context.saturating_sub(prompt_tokens);
        let pool_room = (self.kv_tokens_max + 1).saturating_sub(prompt_tokens);
        let max_tokens = asked.unwrap_or_else(|| default.min(context_room.min(pool_room).max(1)) as u64);
        if max_tokens > context_room as u64 || prompt_tokens > self.max_context {
            let context = self.max_context;
            return Err(Rejection::ContextExceeded { prompt_index, prompt_tokens, max_tokens, context });
        }
        // For none, one is generated all the same and not given out.
        if max_tokens.max(1) > pool_room as u64 {
            let needed = prompt_tokens as u64 + max_tokens.max(1) - 1;
            let pool = self.kv_tokens_max;
            return Err(Rejection::PoolExceeded { prompt_index, prompt_tokens, max_tokens, needed, pool });
        }
        u32::try_from(max_tokens).map_err(|_| Rejection::ContextExceeded {
            prompt_index,
            prompt_tokens,
            max_tokens,
            context: self.max_context,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(max_context: usize, kv_tokens_max: usize) -> ServedModel {
        ServedModel {
            id: "m".into(),
            tokenizer: Tokenizer::from_bytes(include_bytes!("../../tests/data/tokenizer.json")).unwrap(),
            chat_template: None,
            bos_id: 2,
            eos_ids: ServedModel::unite_eos([&[1u32, 106][..], &[106, 50], &[1]]),
            refused_ids: vec![(46, "image".into())],
            vocab_size: 512,
            sampling: SamplingParams::greedy(),
            max_context,
            kv_tokens_max,
        }
    }

    #[test]
    fn eos_lists_are_united() {
        // B27
        assert_eq!(model(64, 64).eos_ids, [1, 50, 106]);
    }

    #[test]
    fn a_text_prompt_has_exactly_one_bos() {
        // B87, B46
        let m = model(64, 64);
        assert_eq!(m.encode(0, "the").unwrap(), [2, 462]);
        assert_eq!(m.encode(0, "<bos>the").unwrap(), [2, 462]);
        assert_eq!(m.encode(0, "").unwrap(), [2]);
        assert_eq!(m.narrow(0, &[462]).unwrap(), [462]);
        assert_eq!(m.narrow(0, &[2, 2]).unwrap(), [2, 2]);
    }

    #[test]
    fn ids_out_of_range_and_modality_ids_are_refused_with_their_place() {
        let m = model(64, 64);
        assert!(m.narrow(0, &[511]).is_ok());
        for id in [512, u64::from(u32::MAX), u64::MAX] {
            assert!(matches!(m.narrow(1, &[5, id]),
                Err(Rejection::TokenIdOutOfRange { prompt_index: 1, position: 1, id: i, vocab_size: 512 }) if i == id));
        }
        assert!(matches!(m.check_ids(0, &[2, 46]), Err(Rejection::ModalityToken { position: 1, id: 46, .. })));
        assert_eq!(m.check_ids(0, &[2, 45, 47]), Ok(()));
    }

    #[test]
    fn the_length_rule_holds_at_its_edges() {
        // B47 with a context of 64.
        let m = model(64, 1000);
        assert_eq!(m.max_tokens(0, 10, None, 16), Ok(16));
        assert_eq!(m.max_tokens(0, 63, None, 16), Ok(1));
        // The chat route's default is what is left.
        assert_eq!(m.max_tokens(0, 10, None, usize::MAX), Ok(54));
        assert_eq!(m.max_tokens(0, 54, Some(10), 16), Ok(10));
        for (prompt, asked) in [(63, Some(10)), (64, None), (65, None), (55, Some(10)), (1, Some(u64::MAX))] {
            let rejection = m.max_tokens(0, prompt, asked, 16).unwrap_err();
            assert_eq!(rejection.code(), "context_length_exceeded", "{prompt} {asked:?}");
            assert!(rejection.to_string().contains("64"), "{rejection}");
        }
    }

    #[test]
    fn what_can_never_fit_the_pool_is_refused_with_the_numbers() {
        // B48: a pool of 32 tokens caches a prompt of 20 and 12 more; the thirteenth answer token needs no place.
        let m = model(64, 32);
        assert_eq!(m.max_tokens(0, 20, Some(13), 16), Ok(13));
        assert_eq!(
            m.max_tokens(0, 20, Some(14), 16),
            Err(Rejection::PoolExceeded { prompt_index: 0, prompt_tokens: 20, max_tokens: 14, needed: 33, pool: 32 })
        );
        assert_eq!(m.max_tokens(0, 30, None, 16), Ok(3));
        assert!(matches!(m.max_tokens(0, 33, None, 16), Err(Rejection::PoolExceeded { .. })));
    }
}
