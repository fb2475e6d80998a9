//! Log-probabilities on the wire: the completions route's lists, and the chat route's list of objects, made from the
//! same tokens.
//!
//! Numbers are natural logarithms, of the model's own distribution or of what was drawn from (`--logprobs-mode`). JSON
//! has no minus infinity: an impossible token has [`IMPOSSIBLE`] (B51).

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::server::generation::ScoredToken;
use crate::text::Tokenizer;

/// Instead of minus infinity, as other servers of this API do.
pub const IMPOSSIBLE: f32 = -9999.0;

/// `choices[].logprobs` of `/v1/completions`: four lists of equal length. The first token of an echoed prompt, before
/// which nothing stands, has nulls.
#[derive(Debug, PartialEq, serde::Serialize)]
pub struct Legacy {
    pub text_offset: Vec<usize>,
    pub token_logprobs: Vec<Option<f32>>,
    pub tokens: Vec<String>,
    pub top_logprobs: Vec<Option<Ranked>>,
}

/// Token names and their log-probabilities, most likely first: an object in that order. Of two tokens that go by one
/// name the likelier stays.
#[derive(Debug, PartialEq)]
pub struct Ranked(pub Vec<(String, f32)>);

impl Serialize for Ranked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, logprob)| map.serialize_entry(name, logprob))?;
        map.end()
    }
}

/// The completions route's form. `top_logprobs` also has the token itself where it is not among the most likely, so one
/// entry more than was asked for.
pub fn legacy(tokenizer: &Tokenizer, tokens: &[ScoredToken]) -> Legacy {
    let ranked = |token: &ScoredToken| {
        let logprobs = token.logprobs?;
        let own = (token.token, logprobs.logprob);
        let chosen = logprobs.top().iter().all(|&(id, _)| id != token.token).then_some(own);
        let mut entries: Vec<(String, f32)> = Vec::with_capacity(logprobs.top().len() + 1);
        for (id, logprob) in logprobs.top().iter().copied().chain(chosen) {
            let name = tokenizer.name(id);
            if entries.iter().all(|(known, _)| *known != name) {
                entries.push((name, finite(logprob)));
            }
        }
        Some(Ranked(entries))
    };
    Legacy {
        text_offset: tokens.iter().map(|token| token.text_offset).collect(),
        token_logprobs: tokens.iter().map(|token| token.logprobs.map(|l| finite(l.logprob))).collect(),
        tokens: tokens.iter().map(|token| tokenizer.name(token.token)).collect(),
        top_logprobs: tokens.iter().map(ranked).collect(),
    }
}

/// `choices[].prompt_logprobs`: for each token of the prompt, null for the first, its own entry and those of the most
/// likely ones by their ids, most likely first.
#[derive(Debug, PartialEq, serde::Serialize)]
pub struct PromptLogprobs(pub Vec<Option<PromptEntries>>);

#[derive(Debug, PartialEq)]
pub struct PromptEntries(pub Vec<(u32, PromptEntry)>);

#[derive(Debug, PartialEq, serde::Serialize)]
pub struct PromptEntry {
    pub logprob: f32,
    /// 1 for the most likely token.
    pub rank: u32,
    pub decoded_token: String,
}

impl Serialize for PromptEntries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(id, entry)| map.serialize_entry(&id.to_string(), entry))?;
        map.end()
    }
}

/// The form of a prompt's own list.
pub fn prompt(tokenizer: &Tokenizer, tokens: &[ScoredToken]) -> PromptLogprobs {
    let entry = |id: u32, logprob: f32, rank: u32| {
        (id, PromptEntry { logprob: finite(logprob), rank, decoded_token: tokenizer.name(id) })
    };
    let entries = tokens.iter().map(|token| {
        let logprobs = token.logprobs?;
        let top = logprobs.top().iter().zip(1..).map(|(&(id, logprob), rank)| entry(id, logprob, rank));
        let is_among = logprobs.top().iter().any(|&(id, _)| id == token.token);
        let own = (!is_among).then(|| entry(token.token, logprobs.logprob, logprobs.rank));
        Some(PromptEntries(top.chain(own).collect()))
    });
    PromptLogprobs(entries.collect())
}

/// `choices[].logprobs` of `/v1/chat/completions`.
#[derive(Debug, PartialEq, serde::Serialize)]
pub struct Chat {
    pub content: Vec<ChatToken>,
}

#[derive(Debug, PartialEq, serde::Serialize)]
pub struct ChatToken {
    #[serde(flatten)]
    pub token: NamedToken,
    /// As many as were asked for; empty for none (B50).
    pub top_logprobs: Vec<NamedToken>,
}

#[derive(Debug, PartialEq, serde::Serialize)]
pub struct NamedToken {
    pub token: String,
    pub logprob: f32,
    /// What the token adds to the text, which may be part of a character; null for a special token, which adds nothing.
    pub bytes: Option<Vec<u8>>,
}

/// The chat route's form.
pub fn chat(tokenizer: &Tokenizer, tokens: &[ScoredToken]) -> Chat {
    let named = |id: u32, logprob: f32| NamedToken {
        token: tokenizer.name(id),
        logprob: finite(logprob),
        bytes: tokenizer.bytes(id),
    };
    let content = tokens.iter().filter_map(|token| {
        let logprobs = token.logprobs?;
        let top_logprobs = logprobs.top().iter().map(|&(id, logprob)| named(id, logprob)).collect();
        Some(ChatToken { token: named(token.token, logprobs.logprob), top_logprobs })
    });
    Chat { content: content.collect() }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::TokenLogprobs;

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_bytes(include_bytes!("../../tests/data/tokenizer.json")).unwrap()
    }

    /// `the`, the second byte of a character, and the end of the turn.
    fn tokens() -> Vec<ScoredToken> {
        let scored = |token, text_offset, (logprob, rank), top: &[(u32, f32)]| ScoredToken {
            token,
            text_offset,
            logprobs: Some(TokenLogprobs::new(token, logprob, rank, top)),
        };
        vec![
            scored(462, 0, (-0.5, 1), &[(462, -0.5), (463, -1.25)]),
            scored(110 + 0x9f, 3, (-7.0, 9), &[(462, -0.5), (463, -0.75)]),
            scored(106, 3, (f32::NEG_INFINITY, 500), &[]),
        ]
    }

    #[test]
    fn b52_the_legacy_lists_are_of_equal_length_and_hold_the_chosen_token() {
        let first = ScoredToken { token: 2, text_offset: 0, logprobs: None };
        let all: Vec<ScoredToken> = std::iter::once(first).chain(tokens()).collect();
        let legacy = serde_json::to_string(&legacy(&tokenizer(), &all)).unwrap();
        // As text: the order of an object's names is the order of likelihood.
        let expected = concat!(
            r#"{"text_offset":[0,0,3,3],"token_logprobs":[null,-0.5,-7.0,-9999.0],"#,
            r#""tokens":["<bos>","the","bytes:\\x9f","<turn|>"],"#,
            r#""top_logprobs":[null,{"the":-0.5," the":-1.25},{"the":-0.5," the":-0.75,"bytes:\\x9f":-7.0},"#,
            r#"{"<turn|>":-9999.0}]}"#
        );
        assert_eq!(legacy, expected);
    }

    #[test]
    fn a_prompts_own_list_is_by_ids_with_ranks() {
        let first = ScoredToken { token: 2, text_offset: 0, logprobs: None };
        let all: Vec<ScoredToken> = std::iter::once(first).chain(tokens()).collect();
        let list = serde_json::to_value(prompt(&tokenizer(), &all)).unwrap();
        assert_eq!(list[0], serde_json::Value::Null);
        assert_eq!(list[1]["462"], json!({"logprob": -0.5, "rank": 1, "decoded_token": "the"}));
        assert_eq!(list[1]["463"]["rank"], 2);
        assert_eq!(list[2].as_object().unwrap().len(), 3);
        assert_eq!(list[2]["269"], json!({"logprob": -7.0, "rank": 9, "decoded_token": "bytes:\\x9f"}));
    }

    #[test]
    fn b50_b51_the_chat_list_has_bytes_and_no_more_than_was_asked_for() {
        let chat = serde_json::to_value(chat(&tokenizer(), &tokens())).unwrap();
        let the = json!({"token": "the", "logprob": -0.5, "bytes": [116, 104, 101]});
        assert_eq!(chat["content"][0]["top_logprobs"][0], the);
        assert_eq!(chat["content"][0]["top_logprobs"].as_array().unwrap().len(), 2);
        let byte = &chat["content"][1];
        assert_eq!((&byte["token"], &byte["bytes"]), (&json!("bytes:\\x9f"), &json!([0x9f])));
        assert_eq!(
            chat["content"][2],
            json!({"token": "<turn|>", "logprob": -9999.0, "bytes": null, "top_logprobs": []})
        );
    }
}
