use proptest::prelude::*;

use super::*;

fn text(s: &str) -> Prompt {
    Prompt::Text(s.into())
}

fn prompts(json: &str) -> Vec<Prompt> {
    parse(format!(r#"{{"prompt":{json}}}"#).as_bytes(), Route::Completions).unwrap().prompts
}

fn refusal(json: &str) -> Rejection {
    parse(json.as_bytes(), Route::Completions).unwrap_err()
}

#[test]
fn a_prompt_is_text_or_ids_or_a_list_of_either() {
    assert_eq!(prompts(r#""hi""#), [text("hi")]);
    assert_eq!(prompts(r#""""#), [text("")]); // B46
    assert_eq!(prompts(r#"[""]"#), [text("")]);
    assert_eq!(prompts("[1,2]"), [Prompt::Ids(vec![1, 2])]);
    assert_eq!(prompts(r#"["a","b"]"#), [text("a"), text("b")]);
    assert_eq!(prompts("[[1],[2,3]]"), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    assert_eq!(prompts(r#"["a",[2]]"#), [text("a"), Prompt::Ids(vec![2])]);
}

#[test]
fn empty_lists_are_refused() {
    // B46
    assert_eq!(refusal(r#"{"prompt":[]}"#), Rejection::NoPrompts);
    assert_eq!(refusal(r#"{"prompt":[[]]}"#), Rejection::EmptyPrompt { prompt_index: 0 });
    assert_eq!(refusal(r#"{"prompt":[[1],[]]}"#), Rejection::EmptyPrompt { prompt_index: 1 });
    assert_eq!(refusal("{}"), Rejection::MissingField("prompt"));
}

#[test]
fn wrong_types_name_their_field() {
    for (json, param) in [
        (r#"{"prompt":null}"#, "prompt"),
        (r#"{"prompt":1}"#, "prompt"),
        (r#"{"prompt":[1,"a"]}"#, "prompt"),
        (r#"{"prompt":[-1]}"#, "prompt"),
        (r#"{"prompt":[1.0]}"#, "prompt"),
        (r#"{"prompt":[true]}"#, "prompt"),
        (r#"{"prompt":[[1,"x"]]}"#, "prompt"),
        (r#"{"prompt":[[[1]]]}"#, "prompt"),
        (r#"{"prompt":"a","max_tokens":"5"}"#, "max_tokens"),
        (r#"{"prompt":"a","max_tokens":1.5}"#, "max_tokens"),
        (r#"{"prompt":"a","max_tokens":-1}"#, "max_tokens"),
        (r#"{"prompt":"a","max_tokens":1e3}"#, "max_tokens"),
        (r#"{"prompt":"a","max_tokens":0}"#, "max_tokens"),
        (r#"{"prompt":"a","stream":1}"#, "stream"),
        (r#"{"prompt":"a","stop":5}"#, "stop"),
        (r#"{"prompt":"a","stop":[5]}"#, "stop"),
        (r#"{"prompt":"a","stop":""}"#, "stop"),
        (r#"{"prompt":"a","stop":["1","2","3","4","5"]}"#, "stop"),
        (r#"{"prompt":"a","temperature":"hot"}"#, "temperature"),
        (r#"{"prompt":"a","temperature":2.7}"#, "temperature"),
        (r#"{"prompt":"a","top_k":"many"}"#, "top_k"),
        (r#"{"prompt":"a","n":0}"#, "n"),
        (r#"{"prompt":"a","best_of":2}"#, "best_of"),
        (r#"{"prompt":"a","ignore_eos":"yes"}"#, "ignore_eos"),
        (r#"{"prompt":"a","return_token_ids":0}"#, "return_token_ids"),
        (r#"{"prompt":"a","model":7}"#, "model"),
        (r#"{"prompt":"a","user":7}"#, "user"),
        (r#"{"prompt":"a","metadata":7}"#, "metadata"),
        (r#"{"prompt":"a","stream_options":{"include_usage":true}}"#, "stream_options"),
        (r#"{"prompt":"a","stream":true,"stream_options":{"x":true}}"#, "stream_options"),
        (r#"{"prompt":"a","prompt":"b"}"#, "prompt"),
    ] {
        let rejection = refusal(json);
        assert_eq!((rejection.param(), rejection.status().as_u16()), (Some(param), 400), "{json}: {rejection}");
    }
}

#[test]
fn every_other_field_is_refused_by_name() {
    // B41, B43, B45: what this server cannot do it says, however the value looks.
    for field in ["suffix", "messages", "Prompt", ""] {
        let json = format!(r#"{{"prompt":"a","{field}":{{"999999999":-100}}}}"#);
        assert_eq!(refusal(&json), Rejection::UnsupportedField(field.into()));
    }
    assert_eq!(refusal(r#"{"prompt":"a","dry_base":1.75}"#), Rejection::Dry("dry_base".into()));
}

#[test]
fn null_and_zero_mean_the_default() {
    let json = r#"{"prompt":"a","model":null,"max_tokens":null,"stream":null,"stream_options":null,"stop":null,
                   "ignore_eos":null,"temperature":null,"top_p":null,"top_k":null,"seed":null,"n":null,
                   "best_of":null,"return_token_ids":null,"user":null,"metadata":null}"#;
    let request = parse(json.as_bytes(), Route::Completions).unwrap();
    assert_eq!(request, CompletionRequest { prompts: vec![text("a")], ..Default::default() });
    for zero in ["0", "0.0", "-0.0", "0e5"] {
        let request =
            parse(format!(r#"{{"prompt":"a","temperature":{zero}}}"#).as_bytes(), Route::Completions).unwrap();
        assert_eq!(request.sampling.temperature, Some(0.0));
    }
}

#[test]
fn b50_logprobs_are_a_count_of_at_most_twenty() {
    let read = |value: &str| parse(format!(r#"{{"prompt":"a","logprobs":{value}}}"#).as_bytes(), Route::Completions);
    for (value, count) in [("null", None), ("0", Some(0)), ("5", Some(5)), ("20", Some(20))] {
        assert_eq!(read(value).unwrap().logprobs, count);
    }
    for value in ["21", "-1", "true", "1.5", "\"2\""] {
        let rejection = read(value).unwrap_err();
        assert_eq!((rejection.param(), rejection.status().as_u16()), (Some("logprobs"), 400), "{value}: {rejection}");
    }
}

#[test]
fn what_is_not_json_is_called_that() {
    for body in ["", "{", "nul", r#"{"prompt":"a"} x"#, r#"{"prompt":"\ud800"}"#, r#"{"x":[1,}"#] {
        assert!(matches!(refusal(body), Rejection::MalformedJson(_)), "{body}: {:?}", refusal(body));
    }
    assert!(matches!(parse(b"{\"prompt\":\"\xff\"}", Route::Completions).unwrap_err().status().as_u16(), 400));
    let deep = format!(r#"{{"prompt":"a","metadata":{{"x":{}}}}}"#, "[".repeat(100_000));
    assert!(matches!(refusal(&deep), Rejection::MalformedJson(_)));
}

#[test]
fn more_prompts_than_the_limit_are_refused_with_the_numbers() {
    let json = serde_json::json!({"prompt": vec!["x"; PROMPTS_PER_REQUEST_MAX + 1]}).to_string();
    assert!(matches!(refusal(&json), Rejection::TooManyPrompts { limit: PROMPTS_PER_REQUEST_MAX, .. }));
}

fn chat(json: &str) -> Result<CompletionRequest, Rejection> {
    parse(json.as_bytes(), Route::Chat)
}

const HI: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

#[test]
fn a_chat_request_is_one_conversation() {
    let request = chat(&format!(
        r#"{{{HI},"max_completion_tokens":7,"max_tokens":7,"tools":null,"response_format":{{"type":"text"}},
            "chat_template_kwargs":{{"x":1}},"temperature":0.5,"stream":true}}"#
    ))
    .unwrap();
    let [Prompt::Chat(conversation)] = &request.prompts[..] else { panic!("{:?}", request.prompts) };
    assert_eq!((conversation.messages.len(), &conversation.variables["x"]), (1, &serde_json::json!(1)));
    assert_eq!((request.max_tokens, request.sampling.temperature, request.stream), (Some(7), Some(0.5), true));
    assert_eq!(chat(&format!(r#"{{{HI},"max_completion_tokens":9}}"#)).unwrap().max_tokens, Some(9));
    // B50
    for (fields, count) in [
        (r#""logprobs":true"#, Some(0)),
        (r#""logprobs":true,"top_logprobs":null"#, Some(0)),
        (r#""logprobs":true,"top_logprobs":20"#, Some(20)),
        (r#""logprobs":false"#, None),
        (r#""logprobs":null,"top_logprobs":null"#, None),
    ] {
        assert_eq!(chat(&format!("{{{HI},{fields}}}")).unwrap().logprobs, count, "{fields}");
    }
}

#[test]
fn fields_of_the_chat_route_are_served_or_refused_by_name() {
    // B45, B46
    for (fields, param) in [
        (r#""tools":[]"#, "tools"),
        (r#""tool_choice":"auto""#, "tool_choice"),
        (r#""response_format":{"type":"json_object"}"#, "response_format"),
        (r#""prompt":"a""#, "prompt"),
        (r#""echo":true"#, "echo"),
        (r#""max_tokens":0"#, "max_tokens"),
        (r#""max_completion_tokens":0"#, "max_completion_tokens"),
        (r#""prompt_logprobs":1"#, "prompt_logprobs"),
        (r#""logprobs":2"#, "logprobs"),
        (r#""top_logprobs":2"#, "top_logprobs"),
        (r#""logprobs":false,"top_logprobs":0"#, "top_logprobs"),
        (r#""logprobs":true,"top_logprobs":21"#, "top_logprobs"),
        (r#""max_completion_tokens":"7""#, "max_completion_tokens"),
        (r#""max_tokens":6,"max_completion_tokens":7"#, "max_completion_tokens"),
        (r#""chat_template_kwargs":{"enable_thinking":true}"#, "chat_template_kwargs.enable_thinking"),
        (r#""messages":[]"#, "messages"),
    ] {
        let rejection = chat(&format!("{{{HI},{fields}}}")).unwrap_err();
        assert_eq!((rejection.param(), rejection.status().as_u16()), (Some(param), 400), "{fields}: {rejection}");
    }
    assert_eq!(chat(r#"{"messages":[]}"#), Err(Rejection::NoMessages));
    assert_eq!(chat(r#"{"max_tokens":5}"#), Err(Rejection::MissingField("messages")));
    assert_eq!(refusal(&format!(r#"{{"prompt":"a",{HI}}}"#)), Rejection::UnsupportedField("messages".into()));
    assert_eq!(refusal(r#"{"prompt":"a","tools":[]}"#), Rejection::UnsupportedField("tools".into()));
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_are_the_clients_fault(body in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(rejection) = parse(&body, Route::Completions) {
            prop_assert!(rejection.status().is_client_error());
        }
    }

    #[test]
    fn a_mutated_request_never_panics(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut body = br#"{"model":"m","prompt":[[1,2],"a"],"max_tokens":3,"stop":["x"],"temperature":0,"#.to_vec();
        body.extend_from_slice(br#""metadata":{"k":[1]}}"#);
        let i = at.index(body.len());
        body[i] = byte;
        body.truncate(1 + cut.index(body.len()));
        if let Err(rejection) = parse(&body, Route::Completions) {
            prop_assert!(rejection.status().is_client_error());
        }
    }
}
