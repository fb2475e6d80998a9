//! The conversation of a chat request on the wire: `messages` and `chat_template_kwargs`, or a refusal that names the
//! message and field.

use serde_json::{Map, Value};

use crate::error::Rejection;
use crate::text::chat_template::{Content, Message, RESERVED, Role, Variables};

/// What the chat template is run on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub messages: Vec<Message>,
    pub variables: Variables,
}

pub fn read_messages(value: &Value) -> Result<Vec<Message>, Rejection> {
    let list = value.as_array().ok_or_else(|| wrong("messages".into(), value, "a list of messages"))?;
    if list.is_empty() {
        return Err(Rejection::NoMessages);
    }
    list.iter().enumerate().map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, message: &Value) -> Result<Message, Rejection> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let fields = message.as_object().ok_or_else(|| wrong(format!("messages[{index}]"), message, "a message"))?;
    let role = read_role(at("role"), fields.get("role").unwrap_or(&Value::Null))?;
    // Answers of this API come back in histories with the fields that were empty in them: those say nothing.
    let is_unknown = |(name, value): &(&String, &Value)| {
        let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        !matches!(name.as_str(), "role" | "content") && !is_empty
    };
    if let Some((name, _)) = fields.iter().find(is_unknown) {
        return Err(match name.as_str() {
            "tool_calls" | "function_call" => not_served(at(name), "tool calls are not served yet"),
            "reasoning" | "reasoning_content" => not_served(at(name), "thoughts are not taken back yet"),
            _ => Rejection::UnsupportedField(at(name)),
        });
    }
    Ok(Message { role, content: read_content(index, fields)? })
}

fn read_role(param: String, role: &Value) -> Result<Role, Rejection> {
    match role.as_str() {
        Some("system") => Ok(Role::System),
        Some("developer") => Ok(Role::Developer),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool" | "function") => Err(not_served(param, "tool messages are not served yet")),
        _ => Err(wrong(param, role, "system, developer, user or assistant")),
    }
}

fn read_content(index: usize, fields: &Map<String, Value>) -> Result<Content, Rejection> {
    let param = || format!("messages[{index}].content");
    match fields.get("content").unwrap_or(&Value::Null) {
        Value::String(text) => Ok(Content::Text(text.clone())),
        Value::Array(parts) => {
            let part = |(place, part): (usize, &Value)| read_part(format!("{}[{place}]", param()), part);
            Ok(Content::Parts(parts.iter().enumerate().map(part).collect::<Result<_, _>>()?))
        }
        other => Err(wrong(param(), other, "text or a list of text parts")),
    }
}

fn read_part(param: String, part: &Value) -> Result<String, Rejection> {
    let fields = part.as_object().ok_or_else(|| wrong(param.clone(), part, "a part"))?;
    match fields.get("type").and_then(Value::as_str) {
        Some("text") => {}
        Some(_) => return Err(not_served(format!("{param}.type"), "only text parts are served")),
        None => return Err(wrong(format!("{param}.type"), part, "a part with a type")),
    }
    if let Some(name) = fields.keys().find(|name| !matches!(name.as_str(), "type" | "text")) {
        return Err(Rejection::UnsupportedField(format!("{param}.{name}")));
    }
    match fields.get("text") {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong(format!("{param}.text"), other.unwrap_or(&Value::Null), "text")),
    }
}

/// The template's variables of this request; what the server itself sets cannot be set.
pub fn read_variables(value: Value) -> Result<Variables, Rejection> {
    const PARAM: &str = "chat_template_kwargs";
    let Value::Object(variables) = value else { return Err(wrong(PARAM.into(), &value, "an object")) };
    for (name, value) in &variables {
        let param = || format!("{PARAM}.{name}");
        if RESERVED.contains(&name.as_str()) {
            return Err(not_served(param(), "the server sets it itself"));
        }
        if name == "enable_thinking" {
            match value {
                Value::Bool(false) | Value::Null => {}
                Value::Bool(true) => return Err(not_served(param(), "thoughts are not told from answers yet")),
                other => return Err(wrong(param(), other, "true or false")),
            }
        }
    }
    Ok(variables)
}

fn not_served(param: String, why: &'static str) -> Rejection {
    Rejection::NotServed { param, why }
}

/// Values of a client can be long: the refusal shows their kind, and a short one itself.
fn wrong(param: String, value: &Value, expected: &str) -> Rejection {
    let what = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.len() <= 32 => format!("{text:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    Rejection::WrongType { param, message: format!("{what} is not {expected}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_roles_with_text_or_text_parts() {
        let messages = read_messages(&json!([
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
            {"role": "user", "content": ""},
            // As the openai client gives an answer back.
            {"role": "assistant", "content": "4", "refusal": null, "tool_calls": null, "annotations": []},
        ]))
        .unwrap();
        let roles: Vec<Role> = messages.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::Developer, Role::User, Role::Assistant]);
        assert_eq!(messages[1].content, Content::Parts(vec!["a".into(), "".into()]));
    }

    #[test]
    fn what_is_not_served_is_refused_by_its_place() {
        for (message, param) in [
            (json!({"role": "tool", "content": "x"}), "messages[1].role"),
            (json!({"role": "robot", "content": "x"}), "messages[1].role"),
            (json!({"content": "x"}), "messages[1].role"),
            (json!({"role": "user"}), "messages[1].content"),
            (json!({"role": "assistant", "content": null}), "messages[1].content"),
            (json!({"role": "user", "content": 7}), "messages[1].content"),
            (json!({"role": "user", "content": ["x"]}), "messages[1].content[0]"),
            (json!({"role": "user", "content": [{"text": "x"}]}), "messages[1].content[0].type"),
            (json!({"role": "user", "content": [{"type": "text"}]}), "messages[1].content[0].text"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
                "messages[1].content[0].type",
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}),
                "messages[1].content[0].cache_control",
            ),
            (json!({"role": "user", "content": "x", "name": "Ann"}), "messages[1].name"),
            (json!({"role": "assistant", "content": "x", "tool_calls": [{}]}), "messages[1].tool_calls"),
            (json!({"role": "assistant", "content": "x", "reasoning_content": "y"}), "messages[1].reasoning_content"),
            (json!("hello"), "messages[1]"),
        ] {
            let refused = read_messages(&json!([{"role": "user", "content": "a"}, message])).unwrap_err();
            assert_eq!((refused.param(), refused.status().as_u16()), (Some(param), 400), "{refused}");
        }
        assert_eq!(read_messages(&json!([])), Err(Rejection::NoMessages));
        assert_eq!(read_messages(&json!("hi")).unwrap_err().param(), Some("messages"));
    }

    #[test]
    fn variables_pass_but_the_servers_own() {
        assert!(read_variables(json!({"enable_thinking": false, "style": ["a"]})).is_ok());
        for (value, param) in [
            (json!({"enable_thinking": true}), "chat_template_kwargs.enable_thinking"),
            (json!({"enable_thinking": "no"}), "chat_template_kwargs.enable_thinking"),
            (json!({"messages": []}), "chat_template_kwargs.messages"),
            (json!({"bos_token": ""}), "chat_template_kwargs.bos_token"),
            (json!([]), "chat_template_kwargs"),
        ] {
            assert_eq!(read_variables(value).unwrap_err().param(), Some(param));
        }
    }
}
