//! The checkpoint's own chat template: messages to prompt ids, with control tokens only where the template put them.
//!
//! Text of a client that spells a control token must stay text (B89), but the template may trim, split and join it, so
//! where it ends up is not known beforehand. So the text goes in marked: a character that no text needs (U+FDD0, a
//! Unicode noncharacter) stands in front of it, so that it cannot finish a control token that the template began, and
//! behind each character that a control token can begin with, so that it cannot begin one. In what comes out, a control
//! token spelled without marks is the template's; every other stretch loses its marks and is tokenised as plain text.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;

use super::{Tokenizer, TokenizerError};

const MARK: char = '\u{FDD0}';
/// In front of the letter that stands for a MARK or an ESCAPE of the client's own.
const ESCAPE: char = '\u{FDD1}';

/// Names of the template's variables that a client cannot set.
pub const RESERVED: [&str; 6] = ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// Text parts, for the template to join.
    Parts(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: Content,
}

/// Variables of the client's own (`chat_template_kwargs`).
pub type Variables = serde_json::Map<String, serde_json::Value>;

/// Why a template is refused at start, or a conversation by the template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatTemplateError {
    #[error("the chat template cannot be parsed: {0}")]
    Parse(String),
    #[error("the chat template refuses the messages: {0}")]
    Render(String),
    #[error("{0}")]
    Tokenizer(String),
}

impl From<TokenizerError> for ChatTemplateError {
    fn from(error: TokenizerError) -> Self {
        ChatTemplateError::Tokenizer(error.to_string())
    }
}

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The control tokens' spellings; pattern i is `control_ids[i]`.
    control: AhoCorasick,
    control_ids: Vec<u32>,
    /// What a control token can begin with.
    first_chars: Vec<char>,
    bos_token: String,
    eos_token: String,
}

const NAME: &str = "chat_template.jinja";

impl ChatTemplate {
    /// Parses the template in the dialect transformers runs it in: Jinja2 with `trim_blocks` and `lstrip_blocks`, the
    /// methods of Python's strings and dicts, and `raise_exception`.
    pub fn new(source: String, tokenizer: &Tokenizer, bos_id: u32, eos_id: u32) -> Result<Self, ChatTemplateError> {
        let parse = |error: Error| ChatTemplateError::Parse(sentence(&error));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(parse)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source).map_err(parse)?;
        let (control_ids, spellings): (Vec<u32>, Vec<String>) = tokenizer.special_tokens().into_iter().unzip();
        // Leftmost and longest, as the tokenizer itself finds them.
        let control = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&spellings);
        let mut first_chars: Vec<char> = spellings.iter().filter_map(|s| s.chars().next()).collect();
        first_chars.sort_unstable();
        first_chars.dedup();
        let spelling = |id: u32| tokenizer.id_to_token(id).unwrap_or_default();
        Ok(Self {
            environment,
            control: control.map_err(|e| ChatTemplateError::Tokenizer(e.to_string()))?,
            control_ids,
            first_chars,
            bos_token: spelling(bos_id),
            eos_token: spelling(eos_id),
        })
    }

    /// Prompt ids of a conversation, up to where the model is to answer.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        variables: &Variables,
    ) -> Result<Vec<u32>, ChatTemplateError> {
        encode(tokenizer, &self.pieces(messages, variables)?)
    }

    /// What the template makes of a conversation: its control tokens, and the text between them.
    pub fn pieces(&self, messages: &[Message], variables: &Variables) -> Result<Vec<Piece>, ChatTemplateError> {
        let rendered = self.render(messages, variables)?;
        let mut pieces = Vec::new();
        let mut at = 0;
        let text = |marked: &str| (!marked.is_empty()).then(|| Piece::Text(unmarked(marked).into_owned()));
        for found in self.control.find_iter(&rendered) {
            pieces.extend(text(&rendered[at..found.start()]));
            pieces.push(Piece::Control(self.control_ids[found.pattern().as_usize()]));
            at = found.end();
        }
        pieces.extend(text(&rendered[at..]));
        Ok(pieces)
    }

    /// The template's text, the client's stretches marked.
    fn render(&self, messages: &[Message], variables: &Variables) -> Result<String, ChatTemplateError> {
        let refuse = |error: Error| ChatTemplateError::Render(sentence(&error));
        let template = self.environment.get_template(NAME).map_err(refuse)?;
        let messages: Vec<serde_json::Value> = messages.iter().map(|message| self.marked_message(message)).collect();
        let mut context = Variables::new();
        for (name, value) in variables {
            context.insert(name.clone(), self.marked_value(value));
        }
        for (name, value) in RESERVED.into_iter().zip([
            messages.into(),
            serde_json::Value::Null,
            serde_json::Value::Null,
            true.into(),
            self.bos_token.as_str().into(),
            self.eos_token.as_str().into(),
        ]) {
            context.insert(name.to_owned(), value);
        }
        template.render(Value::from(Serde(context))).map_err(refuse)
    }

    fn marked_message(&self, message: &Message) -> serde_json::Value {
        // What the model thought in earlier turns is not part of a conversation (Gemma 4's grammar). The templates cut
        // it out themselves, but by spellings that would be marked by then.
        let text = |text: &str| match message.role {
            Role::Assistant => self.marked(&without_thoughts(text)),
            _ => self.marked(text),
        };
        let content: serde_json::Value = match &message.content {
            Content::Text(one) => text(one).into(),
            Content::Parts(parts) => {
                parts.iter().map(|part| serde_json::json!({"type": "text", "text": text(part)})).collect()
            }
        };
        serde_json::json!({"role": message.role, "content": content})
    }

    /// Strings anywhere in `value` are the client's. Names are not marked: the template looks things up by them.
    fn marked_value(&self, value: &serde_json::Value) -> serde_json::Value {
        use serde_json::Value::{Array, Object, String};
        match value {
            String(text) => self.marked(text).into(),
            Array(items) => items.iter().map(|item| self.marked_value(item)).collect(),
            Object(fields) => fields.iter().map(|(name, value)| (name.clone(), self.marked_value(value))).collect(),
            other => other.clone(),
        }
    }

    /// White space at the start stays in front of the mark, so that the template can still trim it.
    fn marked(&self, text: &str) -> String {
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let start = text.len() - text.trim_start().len();
        let mut marked = String::with_capacity(text.len() + 16);
        marked.push_str(&text[..start]);
        marked.push(MARK);
        for c in core.chars() {
            match c {
                MARK => marked.extend([ESCAPE, 'm']),
                ESCAPE => marked.extend([ESCAPE, 'e']),
                _ => marked.push(c),
            }
            if self.first_chars.contains(&c) {
                marked.push(MARK);
            }
        }
        marked.push_str(&text[start + core.len()..]);
        marked
    }
}

/// A part of a prompt.
pub enum Piece {
    /// A control token of the template's own.
    Control(u32),
    /// Text, in which nothing is a control token.
    Text(String),
}

impl Piece {
    pub fn text_bytes(&self) -> usize {
        match self {
            Piece::Control(_) => 0,
            Piece::Text(text) => text.len(),
        }
    }
}

/// Prompt ids of the pieces.
pub fn encode(tokenizer: &Tokenizer, pieces: &[Piece]) -> Result<Vec<u32>, ChatTemplateError> {
    let mut ids = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Control(id) => ids.push(*id),
            Piece::Text(text) => ids.extend(tokenizer.encode_plain(text)?),
        }
    }
    Ok(ids)
}

fn unmarked(text: &str) -> Cow<'_, str> {
    if !text.contains([MARK, ESCAPE]) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            MARK => {}
            ESCAPE => plain.push(if chars.next() == Some('m') { MARK } else { ESCAPE }),
            c => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

/// The ids between which a model of this tokenizer thinks, if it has any.
pub fn thought_ids(tokenizer: &Tokenizer) -> Option<(u32, u32)> {
    Some((tokenizer.token_to_id("<|channel>")?, tokenizer.token_to_id("<channel|>")?))
}

/// What lies between `<|channel>` and `<channel|>` is cut out, with the markers.
fn without_thoughts(text: &str) -> Cow<'_, str> {
    if !text.contains("channel") {
        return Cow::Borrowed(text);
    }
    text.split("<channel|>").map(|part| part.split("<|channel>").next().unwrap_or_default()).collect()
}

/// The error's own words and, where there are any, its line in the template.
fn sentence(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match (error.kind(), error.line()) {
        // A refusal of the template's own (raise_exception): its words are meant for the client.
        (ErrorKind::InvalidOperation, _) | (_, None) => what,
        (_, Some(line)) => format!("{what} (line {line})"),
    }
}

#[cfg(test)]
#[path = "chat_template_tests.rs"]
mod tests;
