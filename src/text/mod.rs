//! Text and token ids, in the order a request meets them: [`chat_template`] (messages to ids), [`tokenizer`] (text to
//! ids), [`detokenizer`] (ids to text, a token at a time), [`stop`] (stop strings over that text), [`output`] (the one
//! pipeline of the two for streamed and gathered answers).

pub mod chat_template;
pub mod detokenizer;
pub mod output;
pub mod stop;
pub mod tokenizer;

pub use chat_template::{ChatTemplate, ChatTemplateError};
pub use detokenizer::Detokenizer;
pub use output::{PromptText, TextOutput};
pub use stop::StopMatcher;
pub use tokenizer::{Tokenizer, TokenizerError};
