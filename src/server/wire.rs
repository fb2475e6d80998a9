//! A request of either generating route on the wire: bytes to [`CompletionRequest`], or a refusal that names the field.
//!
//! The body is read once: a prompt of a million ids goes straight into its list, only small fields and conversations
//! through a tree. A field this server does not know is refused, never ignored, so a client cannot believe that it was
//! obeyed.

use std::cell::RefCell;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::error::Category;

use super::chat_fields::ChatFields;
use super::messages::Conversation;
use super::sampling_fields::{SamplingFields, top_count};
use crate::error::Rejection;
use crate::limits::{PROMPTS_PER_REQUEST_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};

/// The routes that generate. They differ in how the prompt is given and in the form of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    #[default]
    Completions,
    Chat,
}

/// A parsed and checked request; what depends on the model is checked later, by [`super::admission`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompletionRequest {
    pub route: Route,
    pub model: Option<String>,
    /// One or more; one conversation on the chat route.
    pub prompts: Vec<Prompt>,
    /// Absent: the route's default, cut to what the context holds. 0: the prompt is echoed and nothing generated.
    pub max_tokens: Option<u64>,
    pub stream: bool,
    pub include_usage: bool,
    pub stop: Vec<String>,
    /// The stop string that matched stays in the text.
    pub include_stop_str_in_output: bool,
    pub ignore_eos: bool,
    pub return_token_ids: bool,
    /// The text of the prompt stands before the answer's, and its tokens' log-probabilities before the answer's.
    pub echo: bool,
    /// Most likely tokens to report beside each token of the answer, and the token itself.
    pub logprobs: Option<u32>,
    /// The same of the prompt's tokens, in a list of their own.
    pub prompt_logprobs: Option<u32>,
    pub sampling: SamplingFields,
    /// For the log only.
    pub user: Option<String>,
    pub metadata: Option<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// Ids as sent; 64 bits wide, so that one out of range can be named.
    Ids(Vec<u64>),
    Chat(Conversation),
}

/// Parses and checks a body sent to `route`.
pub fn parse(body: &[u8], route: Route) -> Result<CompletionRequest, Rejection> {
    let context = Context { route, ..Context::default() };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let parsed = Body(&context).deserialize(&mut deserializer).and_then(|body| deserializer.end().map(|()| body));
    let request = parsed.map_err(|e| match (context.rejection.take(), e.classify()) {
        (Some(rejection), _) => rejection,
        (None, Category::Data) if context.field.borrow().is_empty() => Rejection::NotAnObject(e.to_string()),
        (None, Category::Data) => Rejection::WrongType { param: context.field.take(), message: e.to_string() },
        // Valid JSON that no float holds: of a field, like any other value it cannot have.
        (None, Category::Syntax) if e.to_string().starts_with("number out of range") => {
            Rejection::WrongType { param: context.field.take(), message: e.to_string() }
        }
        (None, _) => Rejection::MalformedJson(e.to_string()),
    })?;
    check_stop(&request.stop)?;
    Ok(request)
}

fn check_stop(stop: &[String]) -> Result<(), Rejection> {
    if stop.len() > STOP_STRINGS_MAX {
        return Err(Rejection::TooManyStops { count: stop.len(), limit: STOP_STRINGS_MAX });
    }
    for (index, s) in stop.iter().enumerate() {
        if s.is_empty() {
            return Err(Rejection::EmptyStop { index });
        }
        if s.len() > STOP_STRING_BYTES_MAX {
            return Err(Rejection::StopTooLong { index, bytes: s.len(), limit_bytes: STOP_STRING_BYTES_MAX });
        }
    }
    Ok(())
}

/// What a serde error cannot carry: the field being read, and a refusal with its numbers.
#[derive(Default)]
struct Context {
    route: Route,
    field: RefCell<String>,
    rejection: RefCell<Option<Rejection>>,
}

impl Context {
    fn refuse<E: de::Error>(&self, rejection: Rejection) -> E {
        let error = E::custom(&rejection);
        *self.rejection.borrow_mut() = Some(rejection);
        error
    }
}

struct Body<'a>(&'a Context);

impl<'de> DeserializeSeed<'de> for Body<'_> {
    type Value = CompletionRequest;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<CompletionRequest, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_> {
    type Value = CompletionRequest;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CompletionRequest, A::Error> {
        let mut request = CompletionRequest { route: self.0.route, ..CompletionRequest::default() };
        let mut chat = ChatFields::default();
        let mut seen: Vec<String> = Vec::new();
        let mut stream_options = None;
        while let Some(key) = map.next_key::<String>()? {
            if seen.contains(&key) {
                return Err(self.0.refuse(Rejection::DuplicateField(key)));
            }
            self.0.field.replace(key.clone());
            let is_chat = request.route == Route::Chat;
            match key.as_str() {
                "model" => request.model = map.next_value()?,
                name if is_chat && ChatFields::has(name) => {
                    let value = map.next_value_seed(Tree { context: self.0, path: Path::Field(name) })?;
                    chat.read(name, value).map_err(|rejection| self.0.refuse(rejection))?;
                }
                "prompt" => request.prompts = map.next_value_seed(Prompts(self.0))?,
                "max_tokens" => request.max_tokens = map.next_value()?,
                "stream" => request.stream = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "stream_options" => stream_options = map.next_value::<Option<StreamOptions>>()?,
                "stop" => request.stop = map.next_value::<Option<Stop>>()?.map(|s| s.0).unwrap_or_default(),
                "include_stop_str_in_output" => {
                    request.include_stop_str_in_output = map.next_value::<Option<bool>>()?.unwrap_or(false)
                }
                "echo" => request.echo = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "ignore_eos" => request.ignore_eos = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "return_token_ids" => request.return_token_ids = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "logprobs" => {
                    let logprobs = top_count("logprobs", map.next_value()?);
                    request.logprobs = logprobs.map_err(|rejection| self.0.refuse(rejection))?;
                }
                "prompt_logprobs" => {
                    let logprobs = top_count("prompt_logprobs", map.next_value()?);
                    request.prompt_logprobs = logprobs.map_err(|rejection| self.0.refuse(rejection))?;
                }
                "user" => request.user = map.next_value()?,
                "metadata" => {
                    request.metadata =
                        match map.next_value_seed(Tree { context: self.0, path: Path::Field("metadata") })? {
                            Value::Null => None,
                            metadata @ Value::Object(_) => Some(metadata),
                            _ => return Err(de::Error::custom("expected an object")),
                        }
                }
                name if SamplingFields::NAMES.contains(&name) => {
                    let value = map.next_value_seed(Tree { context: self.0, path: Path::Field(name) })?;
                    let sampling = &mut request.sampling;
                    sampling.read(name, value).map_err(|rejection| self.0.refuse(rejection))?;
                }
                _ => {
                    // The value is read first, so that a body that is not JSON is called that.
                    map.next_value::<IgnoredAny>()?;
                    return Err(self.0.refuse(match key.starts_with("dry_") {
                        true => Rejection::Dry(key),
                        false => Rejection::UnsupportedField(key),
                    }));
                }
            }
            seen.push(key);
        }
        match request.route {
            Route::Chat => chat.finish(&mut request).map_err(|rejection| self.0.refuse(rejection))?,
            Route::Completions if seen.iter().any(|key| key == "prompt") => {}
            Route::Completions => return Err(self.0.refuse(Rejection::MissingField("prompt"))),
        }
        if request.max_tokens == Some(0) && !request.echo {
            return Err(self.0.refuse(Rejection::MaxTokensZero));
        }
        if let Some(options) = stream_options {
            if !request.stream {
                return Err(self.0.refuse(Rejection::StreamOptionsWithoutStream));
            }
            request.include_usage = options.include_usage.unwrap_or(false);
        }
        Ok(request)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// A string or a list of strings.
struct Stop(Vec<String>);

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StopVisitor;
        impl<'de> Visitor<'de> for StopVisitor {
            type Value = Stop;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<Stop, E> {
                Ok(Stop(vec![s.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Stop, A::Error> {
                let mut stop = Vec::new();
                while let Some(s) = seq.next_element::<String>()? {
                    stop.push(s);
                }
                Ok(Stop(stop))
            }
        }
        deserializer.deserialize_any(StopVisitor)
    }
}

/// Any value, as a tree: of a key that stands twice in one object the last would win in silence, so it is refused.
struct Tree<'a> {
    context: &'a Context,
    path: Path<'a>,
}

/// Where in a body a value stands.
#[derive(Clone, Copy)]
enum Path<'a> {
    Field(&'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Path::Field(name) => f.write_str(name),
            Path::Key(parent, key) => write!(f, "{parent}.{key}"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) =
            seq.next_element_seed(Tree { context: self.context, path: Path::Index(&self.path, list.len()) })?
        {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = serde_json::Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = Path::Key(&self.path, &key);
            if object.contains_key(&key) {
                return Err(self.context.refuse(Rejection::DuplicateField(path.to_string())));
            }
            let value = map.next_value_seed(Tree { context: self.context, path })?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// Text, ids, or a list of either.
struct Prompts<'a>(&'a Context);

/// An element of the outer list.
enum Item {
    Id(u64),
    Prompt(Prompt),
}

impl<'de> DeserializeSeed<'de> for Prompts<'_> {
    type Value = Vec<Prompt>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Prompt>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Prompts<'_> {
    type Value = Vec<Prompt>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string, a list of token ids, or a list of either")
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<Vec<Prompt>, E> {
        Ok(vec![Prompt::Text(s.to_owned())])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Prompt>, A::Error> {
        let context = self.0;
        let (mut ids, mut prompts) = (Vec::new(), Vec::new());
        while let Some(item) = seq.next_element_seed(ItemSeed { context, prompt_index: prompts.len() })? {
            match item {
                Item::Id(id) => ids.push(id),
                Item::Prompt(prompt) => prompts.push(prompt),
            }
            if !ids.is_empty() && !prompts.is_empty() {
                return Err(de::Error::custom("token ids and prompts are mixed in one list"));
            }
            if prompts.len() > PROMPTS_PER_REQUEST_MAX {
                let mut count = prompts.len();
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                return Err(context.refuse(Rejection::TooManyPrompts { count, limit: PROMPTS_PER_REQUEST_MAX }));
            }
        }
        match (ids.is_empty(), prompts.is_empty()) {
            (true, true) => Err(context.refuse(Rejection::NoPrompts)),
            (false, _) => Ok(vec![Prompt::Ids(ids)]),
            _ => Ok(prompts),
        }
    }
}

struct ItemSeed<'a> {
    context: &'a Context,
    prompt_index: usize,
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Item, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a token id (a whole number, at least 0), a string, or a list of token ids")
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Item, E> {
        Ok(Item::Id(id))
    }

    fn visit_str<E: de::Error>(self, s: &str) -> Result<Item, E> {
        Ok(Item::Prompt(Prompt::Text(s.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = seq.next_element::<u64>()? {
            ids.push(id);
        }
        if ids.is_empty() {
            return Err(self.context.refuse(Rejection::EmptyPrompt { prompt_index: self.prompt_index }));
        }
        Ok(Item::Prompt(Prompt::Ids(ids)))
    }
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
