//! The fields that the chat route has beside those of both routes, and what they make of the request.

use serde_json::Value;

use super::messages::{self, Conversation};
use super::sampling_fields::top_count;
use super::wire::{CompletionRequest, Prompt};
use crate::error::Rejection;

/// What a chat request says beside the fields of both routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatFields {
    conversation: Conversation,
    /// The newer name of `max_tokens`.
    max_completion_tokens: Option<u64>,
    logprobs: bool,
    top_logprobs: Option<u32>,
}

/// Fields of the chat API that are known and not served yet, with what their refusal says.
const NOT_YET: [(&str, &str); 6] = [
    ("tools", "tool calls are not served yet"),
    ("tool_choice", "tool calls are not served yet"),
    ("parallel_tool_calls", "tool calls are not served yet"),
    ("functions", "function calls are not served; nor are tool calls yet"),
    ("function_call", "function calls are not served; nor are tool calls yet"),
    ("response_format", "structured output is not served yet; {\"type\": \"text\"} is"),
];

/// Fields of the completions route that a chat does not have.
const OTHER_ROUTE: [&str; 3] = ["prompt", "echo", "prompt_logprobs"];

impl ChatFields {
    /// Whether the field `name` is read here on the chat route, also to be refused.
    pub fn has(name: &str) -> bool {
        const NAMES: [&str; 5] =
            ["messages", "chat_template_kwargs", "max_completion_tokens", "logprobs", "top_logprobs"];
        NAMES.contains(&name) || OTHER_ROUTE.contains(&name) || NOT_YET.iter().any(|(field, _)| *field == name)
    }

    /// Takes the value of a field of [`ChatFields::has`]; null is the default.
    pub fn read(&mut self, name: &str, value: Value) -> Result<(), Rejection> {
        if OTHER_ROUTE.contains(&name) {
            return Err(Rejection::UnsupportedField(name.to_owned()));
        }
        if value.is_null() && name != "messages" {
            return Ok(());
        }
        match name {
            "messages" => self.conversation.messages = messages::read_messages(&value)?,
            "chat_template_kwargs" => self.conversation.variables = messages::read_variables(value)?,
            "max_completion_tokens" => {
                let tokens = value.as_u64().ok_or_else(|| wrong_type(name, &value, "a whole number of tokens"))?;
                self.max_completion_tokens = Some(tokens);
            }
            "logprobs" => {
                self.logprobs = value.as_bool().ok_or_else(|| wrong_type(name, &value, "true or false"))?;
            }
            "top_logprobs" => self.top_logprobs = top_count("top_logprobs", value)?,
            "response_format" if value == serde_json::json!({"type": "text"}) => {}
            _ => {
                let why = NOT_YET.iter().find(|(field, _)| *field == name).map_or("it is not served", |(_, why)| why);
                return Err(Rejection::NotServed { param: name.to_owned(), why });
            }
        }
        Ok(())
    }

    /// Puts everything into the request, whose other fields have been read.
    pub fn finish(self, request: &mut CompletionRequest) -> Result<(), Rejection> {
        // An empty list was refused when it was read.
        if self.conversation.messages.is_empty() {
            return Err(Rejection::MissingField("messages"));
        }
        request.prompts = vec![Prompt::Chat(self.conversation)];
        for (param, tokens) in
            [("max_completion_tokens", self.max_completion_tokens), ("max_tokens", request.max_tokens)]
        {
            if tokens == Some(0) {
                return Err(Rejection::OutOfRange { param, value: "0".into(), expected: "at least 1" });
            }
        }
        if let Some(tokens) = self.max_completion_tokens {
            if request.max_tokens.is_some_and(|max_tokens| max_tokens != tokens) {
                return Err(Rejection::OutOfRange {
                    param: "max_completion_tokens",
                    value: tokens.to_string(),
                    expected: "the same as max_tokens where both are given",
                });
            }
            request.max_tokens = Some(tokens);
        }
        // B50: without top_logprobs, the tokens' own.
        match (self.logprobs, self.top_logprobs) {
            (true, count) => request.logprobs = Some(count.unwrap_or(0)),
            (false, None) => {}
            (false, Some(count)) => {
                let (param, value) = ("top_logprobs", count.to_string());
                return Err(Rejection::OutOfRange { param, value, expected: "logprobs to be true beside it" });
            }
        }
        Ok(())
    }
}

fn wrong_type(param: &str, value: &Value, expected: &str) -> Rejection {
    Rejection::WrongType { param: param.to_owned(), message: format!("{value} is not {expected}") }
}
