//! What a client sees of `POST /v1/completions`, streamed and gathered, on a scripted engine.

use std::time::Duration;

use crate::support::{BOS, Command, EOS, Server, Setup, ids, tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A server whose engine answers every request with these tokens.
async fn scripted(tokens: Vec<u32>) -> Server {
    Setup::default().start(move |_| tokens.clone()).await
}

/// Reassembles a stream into the gathered object's form, checking every chunk on the way.
async fn streamed(server: &Server, mut body: Value) -> Value {
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut stream = server.client.open(body).await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let events = stream.rest().await;
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(events.iter().filter(|e| *e == "[DONE]").count(), 1);
    let chunks: Vec<Value> = events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    let mut whole = chunks[0].clone();
    whole["choices"] = json!([]);
    let mut choices: std::collections::BTreeMap<u64, Value> = Default::default();
    for chunk in &chunks[..chunks.len() - 1] {
        assert_eq!(chunk.get("usage"), Some(&Value::Null), "every chunk but the last has usage null (B37)");
        assert_eq!(chunk["id"], whole["id"]);
        let delta = &chunk["choices"][0];
        let choice = choices.entry(delta["index"].as_u64().unwrap()).or_insert_with(|| {
            let mut first = delta.clone();
            (first["text"], first["finish_reason"]) = (json!(""), Value::Null);
            if first.get("token_ids").is_some() {
                first["token_ids"] = json!([]);
            }
            if let Some(lists) = first["logprobs"].as_object_mut() {
                lists.values_mut().for_each(|list| *list = json!([]));
            }
            first
        });
        assert_eq!(choice["finish_reason"], Value::Null, "nothing comes after the end of a choice");
        choice["text"] = json!(format!("{}{}", choice["text"].as_str().unwrap(), delta["text"].as_str().unwrap()));
        if let Some(more) = delta.get("token_ids") {
            choice["token_ids"].as_array_mut().unwrap().extend(more.as_array().unwrap().clone());
        }
        if let Some(lists) = choice["logprobs"].as_object_mut() {
            let more = |name: &str| delta["logprobs"][name].as_array().expect("a list").clone();
            lists.iter_mut().for_each(|(name, list)| list.as_array_mut().unwrap().extend(more(name)));
        }
        choice["finish_reason"] = delta["finish_reason"].clone();
    }
    let last = &chunks[chunks.len() - 1];
    assert_eq!(last["choices"], json!([]), "the usage chunk has no choices (B37)");
    whole["usage"] = last["usage"].clone();
    whole["choices"] = choices.into_values().collect();
    whole
}

/// Both forms of the answer, which must be the same object but for id and time.
async fn both(server: &Server, body: Value) -> Value {
    let gathered = server.client.complete(body.clone()).await;
    assert_eq!(gathered.status, 200, "{}", gathered.text());
    let mut gathered = gathered.json();
    let mut streamed = streamed(server, body).await;
    for key in ["id", "created"] {
        (gathered[key], streamed[key]) = (Value::Null, Value::Null);
    }
    assert_eq!(streamed, gathered, "parity");
    gathered
}

#[tokio::test]
async fn an_answer_has_openais_form() {
    let server = scripted(ids("and the")).await;
    let reply = both(&server, json!({"prompt": "is", "max_tokens": 100})).await;
    let expected = json!({
        "id": null, "object": "text_completion", "created": null, "model": "m",
        "choices": [{"index": 0, "text": "and the", "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    });
    assert_eq!(reply, expected);
    server.until_quiet().await;
}

#[tokio::test]
async fn every_eos_of_the_list_stops_and_leaves_no_text() {
    // B27
    for eos in [106, 50, 1] {
        let server = scripted([ids("Yes"), vec![eos], ids("junk")].concat()).await;
        let reply = both(&server, json!({"prompt": "x", "max_tokens": 20, "return_token_ids": true})).await;
        let choice = &reply["choices"][0];
        assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("Yes"), Some("stop")));
        assert_eq!(choice["token_ids"], json!([ids("Yes"), vec![eos]].concat()), "the stop token is included");
        assert_eq!(reply["usage"]["completion_tokens"], 4);
    }
}

#[tokio::test]
async fn ignore_eos_goes_on_to_max_tokens() {
    let server = scripted(vec![EOS]).await;
    let reply = both(&server, json!({"prompt": "x", "max_tokens": 7, "ignore_eos": true})).await;
    assert_eq!(reply["choices"][0], json!({"index": 0, "text": "", "logprobs": null, "finish_reason": "length"}));
    assert_eq!(reply["usage"]["completion_tokens"], 7);
}

#[tokio::test]
async fn max_tokens_is_exact_and_sixteen_by_default() {
    // B45 (max_tokens 1 gives one token)
    let server = scripted(ids(&"a".repeat(100))).await;
    for (body, n) in [(json!({"prompt": "x"}), 16), (json!({"prompt": "x", "max_tokens": 1}), 1)] {
        let reply = both(&server, body).await;
        assert_eq!(reply["usage"]["completion_tokens"], n);
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!(reply["choices"][0]["text"], "a".repeat(n));
    }
}

#[tokio::test]
async fn stop_strings_match_over_tokens_and_do_not_leak() {
    // B29, B30, B34
    let stop = |text: &str, stop: Value| (text.to_owned(), stop);
    for ((text, stop), expected, reason) in [
        (stop("alpha beta gamma delta", json!(["beta gamma"])), "alpha ", "stop"),
        (stop("ok\nUser: hi", json!("\nUser:")), "ok", "stop"),
        (stop("ok\nUsers", json!(["\nUser:"])), "ok\nUsers", "stop"),
        (stop("ok\nUser", json!(["\nUser:"])), "ok\nUser", "stop"),
        (stop("a🌍b", json!(["🌍b"])), "a", "stop"),
        (stop("abc", json!(["bc", "abc"])), "", "stop"),
        (stop("abc", json!([])), "abc", "stop"),
    ] {
        let server = scripted(ids(&text)).await;
        let reply = both(&server, json!({"prompt": "x", "max_tokens": 100, "stop": stop})).await;
        assert_eq!(reply["choices"][0]["text"], expected, "{text:?} {stop}");
        assert_eq!(reply["choices"][0]["finish_reason"], reason);
        server.until_quiet().await;
    }
}

#[tokio::test]
async fn a_stop_token_leaves_no_text_unless_it_is_asked_for() {
    let last = ids("z")[0];
    let tokens = [ids("alpha beta"), vec![last]].concat();
    let server = scripted([tokens.clone(), ids("gamma")].concat()).await;
    for (include, text) in [(false, server_text(&tokens[..tokens.len() - 1])), (true, "alpha betaz".to_owned())] {
        let body = json!({
            "prompt": "x", "max_tokens": 100, "stop_token_ids": [last], "include_stop_str_in_output": include,
            "return_token_ids": true,
        });
        let reply = both(&server, body).await;
        let choice = &reply["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("stop")));
        assert_eq!(choice["token_ids"], json!(tokens), "the token itself is listed");
    }
    server.until_quiet().await;
}

fn server_text(ids: &[u32]) -> String {
    tokenizer().decode(ids)
}

#[tokio::test]
async fn a_stop_string_matches_where_it_ends_behind_min_tokens() {
    let tokens = ids("alpha beta gamma");
    let server = scripted([tokens.clone(), vec![EOS]].concat()).await;
    for n in 0..=tokens.len() {
        let text = server_text(&tokens[..n]);
        for stop in ["pha b", "lph", "gam"] {
            // The definition: the first end of the string behind the text of the first n tokens.
            let end = (text.len() + 1..=16).find(|&end| "alpha beta gamma"[..end].ends_with(stop));
            let expected = end.map_or("alpha beta gamma", |end| &"alpha beta gamma"[..end - stop.len()]);
            let body = json!({"prompt": "x", "max_tokens": 100, "stop": [stop], "min_tokens": n});
            let reply = both(&server, body).await;
            assert_eq!(reply["choices"][0]["text"], expected, "{stop:?}, min_tokens {n}");
        }
    }
    server.until_quiet().await;
}

#[tokio::test]
async fn silence_is_time_without_bytes_whatever_the_engine_makes() {
    // Tokens without text, faster than the limit: the client still hears something.
    let server = Setup::flags(&["--stream-keep-alive", "0.2"]).start(|_| vec![105]).await;
    server.engine.send(Command::Pace(Duration::from_millis(5)));
    let body = json!({"prompt": "x", "max_tokens": 90_000, "ignore_eos": true, "stream": true});
    let mut stream = server.client.open(body).await;
    for _ in 0..3 {
        assert_eq!(stream.event().await.as_deref(), Some(": keep-alive"));
    }
    drop(stream);
    server.until_quiet().await;
}

#[tokio::test]
async fn a_stop_string_halts_generation_and_usage_ends_at_the_match() {
    // B29: the engine is told; B37: usage is the same however many tokens it made meanwhile.
    let server = scripted(ids(&"abcd".repeat(5000))).await;
    server.engine.send(Command::TokensPerStep(7));
    server.engine.send(Command::Pace(std::time::Duration::from_millis(1)));
    let reply =
        both(&server, json!({"prompt": "x", "max_tokens": 20_000, "stop": "cd", "return_token_ids": true})).await;
    assert_eq!(reply["choices"][0]["text"], "ab");
    assert_eq!(reply["usage"]["completion_tokens"], 4);
    assert_eq!(reply["choices"][0]["token_ids"], json!(ids("abcd")));
    server.until_quiet().await;
    assert!(server.engine.steps() < 1000, "generation was halted: 2858 steps make all tokens");
}

#[tokio::test]
async fn a_prefix_is_held_no_longer_than_it_must_be() {
    // B31: with `ABCDEFGHIJ` as stop, each token of another text is out before the next one is made.
    let server = scripted(ids("xyABz")).await;
    server.engine.send(Command::Step(0));
    let request = json!({"prompt": "x", "stream": true, "stop": ["ABCDEFGHIJ"]});
    let client = server.client;
    let opened = tokio::spawn(async move { client.open(request).await });
    server.engine.send(Command::Step(1));
    let mut stream = opened.await.unwrap();
    let mut texts = vec![stream.chunk().await.unwrap()["choices"][0]["text"].clone()];
    server.engine.send(Command::Step(1));
    texts.push(stream.chunk().await.unwrap()["choices"][0]["text"].clone());
    server.engine.send(Command::Step(3));
    texts.push(stream.chunk().await.unwrap()["choices"][0]["text"].clone());
    assert_eq!(texts, ["x", "y", "ABz"]);
}

#[tokio::test]
async fn an_emoji_over_four_tokens_is_one_delta() {
    // B35
    let server = scripted(ids("a🌍b")).await;
    let mut stream = server.client.open(json!({"prompt": "x", "stream": true})).await;
    let mut texts = Vec::new();
    while let Some(chunk) = stream.chunk().await {
        assert!(chunk.get("usage").is_none(), "no usage unless asked for (B37)");
        texts.push(chunk["choices"][0]["text"].as_str().unwrap().to_owned());
    }
    assert!(texts.iter().any(|t| t.contains('🌍')), "{texts:?}");
    assert_eq!(texts.concat(), "a🌍b");
    // Cut off inside the character, the answer ends with one replacement.
    let reply = both(&server, json!({"prompt": "x", "max_tokens": 3})).await;
    assert_eq!(reply["choices"][0]["text"], "a\u{FFFD}");
}

#[tokio::test]
async fn special_tokens_leave_no_text() {
    let tokens = [ids("a"), vec![105, 100], ids("b"), vec![101]].concat();
    let server = scripted(tokens.clone()).await;
    let reply = both(&server, json!({"prompt": "x", "return_token_ids": true})).await;
    assert_eq!(reply["choices"][0]["text"], "ab");
    assert_eq!(reply["choices"][0]["token_ids"], json!([tokens, vec![EOS]].concat()));
}

#[tokio::test]
async fn a_text_prompt_gets_one_bos_and_an_id_prompt_none() {
    // B87, B46
    let server = scripted(vec![]).await;
    for (prompt, expected) in [
        (json!("Paris is"), [vec![BOS], ids("Paris is")].concat()),
        (json!("<bos>Paris is"), [vec![BOS], ids("Paris is")].concat()),
        (json!([433, 434]), vec![433, 434]),
        (json!([2, 433]), vec![2, 433]),
        (json!(""), vec![BOS]),
        (json!([""]), vec![BOS]),
    ] {
        let body = json!({"prompt": prompt, "max_tokens": 1, "return_token_ids": true});
        let reply = server.client.complete(body).await.json();
        assert_eq!(server.engine.seen().last().unwrap().prompt, expected, "{prompt}");
        assert_eq!(reply["choices"][0]["prompt_token_ids"], json!(expected));
        assert_eq!(reply["usage"]["prompt_tokens"], expected.len());
    }
}

#[tokio::test]
async fn several_prompts_are_several_choices_with_one_sum() {
    let server = Setup::default()
        .start(|ticket| {
            // The answer repeats the prompt as often as it is long, so lengths differ.
            let prompt = ticket.request.prompt[1..].to_vec();
            prompt.repeat(prompt.len())
        })
        .await;
    let body = json!({"prompt": ["a", "bb", "ccc", [2, 435]], "max_tokens": 9, "return_token_ids": true});
    let reply = both(&server, body).await;
    let texts: Vec<_> = reply["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["a", "bbbb", "ccccccccc", "e"]);
    let reasons: Vec<_> = reply["choices"].as_array().unwrap().iter().map(|c| &c["finish_reason"]).collect();
    assert_eq!(reasons, ["stop", "stop", "length", "stop"]);
    assert_eq!(reply["usage"], json!({"prompt_tokens": 11, "completion_tokens": 18, "total_tokens": 29}));
}

#[tokio::test]
async fn b52_logprobs_come_in_four_lists_of_equal_length_whose_offsets_match_the_text() {
    let tokens = [ids("the 🌍 and"), vec![105], ids("b")].concat();
    let server = scripted(tokens.clone()).await;
    for (count, per_step) in [(0, 1), (2, 1), (20, 3)] {
        server.engine.send(Command::TokensPerStep(per_step));
        let body = json!({"prompt": "x", "max_tokens": 100, "logprobs": count, "return_token_ids": true, "n": 2});
        let reply = both(&server, body).await;
        for choice in reply["choices"].as_array().unwrap() {
            let lists = choice["logprobs"].as_object().unwrap();
            let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
            let all = [tokens.clone(), vec![EOS]].concat();
            assert_eq!((choice["token_ids"].clone(), lists.len()), (json!(all), 4));
            assert!(lists.values().all(|list| list.as_array().unwrap().len() == all.len()), "{lists:?}");
            for (i, &token) in all.iter().enumerate() {
                let name = lists["tokens"][i].as_str().unwrap();
                let offset = lists["text_offset"][i].as_u64().unwrap() as usize;
                if !name.starts_with("bytes:") && !tokenizer().is_special(token) {
                    assert!(text[offset..].iter().collect::<String>().starts_with(name), "{name} at {offset}");
                }
                let top = lists["top_logprobs"][i].as_object().unwrap();
                assert_eq!(top[name], lists["token_logprobs"][i]);
                assert!(top.len() <= count + 1 && top.len() >= count.max(1), "{top:?}");
            }
            // The four bytes of one character begin where it stands.
            assert_eq!(lists["text_offset"].as_array().unwrap()[..6], [0, 3, 4, 4, 4, 4].map(|at| json!(at)));
        }
    }
    // A request that does not ask gets null, and no number is given out for it.
    let reply = both(&server, json!({"prompt": "x", "max_tokens": 3, "logprobs": null})).await;
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn b52_logprobs_of_tokens_that_a_stop_string_cut_off_are_the_same_streamed_and_gathered() {
    let server = scripted(ids("ab the end")).await;
    for stop in ["the e", "d", "zz"] {
        let body = json!({"prompt": "x", "max_tokens": 50, "logprobs": 1, "stop": stop, "return_token_ids": true});
        let reply = both(&server, body).await;
        let choice = &reply["choices"][0];
        let tokens = choice["token_ids"].as_array().unwrap().len();
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), tokens, "{stop}");
    }
}

#[tokio::test]
async fn b34_a_kept_stop_string_is_kept_streamed_and_gathered_by_every_choice() {
    let server = scripted(ids("alpha beta gamma delta")).await;
    for (include, text) in [(json!(true), "alpha beta"), (json!(false), "alpha "), (Value::Null, "alpha ")] {
        for (n, per_step) in [(1, 1), (2, 1), (2, 3)] {
            server.engine.send(Command::TokensPerStep(per_step));
            let body = json!({
                "prompt": "x", "max_tokens": 100, "stop": ["beta"], "include_stop_str_in_output": include, "n": n,
            });
            let reply = both(&server, body).await;
            let choices = reply["choices"].as_array().unwrap();
            assert_eq!(choices.len(), n);
            assert!(choices.iter().all(|c| c["text"] == text && c["finish_reason"] == "stop"), "{include}: {reply}");
        }
    }
}

#[tokio::test]
async fn b45_an_echoed_prompt_alone_makes_no_token() {
    let server = scripted(ids("never seen")).await;
    let body = json!({"prompt": "the 🌍", "max_tokens": 0, "echo": true, "logprobs": 1});
    let reply = both(&server, body).await;
    let (choice, tokens) = (&reply["choices"][0], 1 + ids("the 🌍").len());
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("the 🌍"), Some("length")));
    assert_eq!(reply["usage"], json!({"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}));
    let lists = choice["logprobs"].as_object().unwrap();
    assert!(lists.values().all(|list| list.as_array().unwrap().len() == tokens), "{lists:?}");
    // BOS, before which nothing stands, and which is no text.
    assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    assert_eq!(lists["text_offset"].as_array().unwrap()[..4], [0, 0, 3, 4].map(|at| json!(at)));
    assert!(lists["top_logprobs"].as_array().unwrap()[1..].iter().all(|top| top.as_object().unwrap().len() <= 2));
    // Without echo there is nothing to answer; a prompt beyond the context is refused as ever.
    let reply = server.client.complete(json!({"prompt": "x", "max_tokens": 0})).await;
    assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("max_tokens")));
    server.until_quiet().await;
}

#[tokio::test]
async fn an_echoed_prompt_stands_before_the_answer_and_its_tokens_before_the_answers() {
    let server = scripted(ids("and b")).await;
    for (prompt, text) in [(json!("the"), "theand b"), (json!([462, 110 + 0xf0, 105]), "the\u{FFFD}and b")] {
        let body = json!({"prompt": prompt, "echo": true, "logprobs": 2, "n": 2, "prompt_logprobs": 3});
        let reply = both(&server, body.clone()).await;
        for choice in reply["choices"].as_array().unwrap() {
            let (lists, own) = (&choice["logprobs"], choice["prompt_logprobs"].as_array().unwrap());
            let chars: Vec<char> = text.chars().collect();
            // A character cut off at the prompt's end is replaced there: the answer's bytes do not complete it.
            assert_eq!(choice["text"], text, "{prompt}");
            let names = lists["tokens"].as_array().unwrap();
            assert_eq!(names.len(), own.len() + ids("and b").len() + 1);
            for (name, offset) in names.iter().zip(lists["text_offset"].as_array().unwrap()) {
                let (name, offset) = (name.as_str().unwrap(), offset.as_u64().unwrap() as usize);
                if !name.starts_with("bytes:") && !name.starts_with('<') {
                    assert!(chars[offset..].iter().collect::<String>().starts_with(name), "{name} at {offset}");
                }
            }
            assert_eq!(own[0], Value::Null);
            assert!(own[1..].iter().all(|entry| (3..=4).contains(&entry.as_object().unwrap().len())), "{own:?}");
        }
        // The prompt's own list without an echo.
        let reply = both(&server, json!({"prompt": prompt, "prompt_logprobs": 0})).await;
        let choice = &reply["choices"][0];
        assert_eq!((choice["text"].as_str(), &choice["logprobs"]), (Some("and b"), &Value::Null));
        let own = choice["prompt_logprobs"].as_array().unwrap();
        assert!(own[1..].iter().all(|entry| entry.as_object().unwrap().len() == 1), "{own:?}");
    }
    // A stop string is looked for in the answer alone.
    let reply = both(&server, json!({"prompt": "the", "echo": true, "stop": "the"})).await;
    assert_eq!(reply["choices"][0]["text"], "theand b");
}

#[tokio::test]
async fn choices_are_streamed_interleaved() {
    let server = Setup::default().start(|_| ids(&"a".repeat(50))).await;
    server.engine.send(Command::Pace(std::time::Duration::from_millis(2)));
    let body = json!({"prompt": ["x", "y", "z"], "max_tokens": 50, "stream": true});
    let mut stream = server.client.open(body).await;
    let mut order = Vec::new();
    while let Some(chunk) = stream.chunk().await {
        order.push(chunk["choices"][0]["index"].as_u64().unwrap());
    }
    let first_end = order.iter().rposition(|&i| i == order[0]).unwrap();
    assert!(order[..first_end].iter().any(|&i| i != order[0]), "{order:?}");
}

#[tokio::test]
async fn each_chunk_carries_its_own_ids_and_the_first_the_prompts() {
    let server = scripted(ids("a🌍")).await;
    let mut stream = server.client.open(json!({"prompt": "x", "stream": true, "return_token_ids": true})).await;
    let (mut all, mut prompts) = (Vec::new(), 0);
    while let Some(chunk) = stream.chunk().await {
        let choice = &chunk["choices"][0];
        prompts += usize::from(choice.get("prompt_token_ids").is_some());
        assert_eq!(choice.get("prompt_token_ids").is_some(), all.is_empty());
        all.extend(choice["token_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32));
    }
    assert_eq!((all, prompts), ([ids("a🌍"), vec![EOS]].concat(), 1));
}

#[tokio::test]
async fn the_named_model_must_be_the_served_one() {
    let server = scripted(ids("a")).await;
    assert_eq!(server.client.complete(json!({"model": "m", "prompt": "x"})).await.status, 200);
    let reply = server.client.complete(json!({"model": "gpt", "prompt": "x"})).await;
    assert_eq!((reply.status, reply.error_code().as_str()), (404, "model_not_found"));
    assert_eq!(reply.json()["error"]["param"], "model");
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("`m`"), "the served model is listed");
}

#[tokio::test]
async fn user_and_metadata_are_accepted() {
    let server = scripted(ids("a")).await;
    let body = json!({"prompt": "x", "user": "u\n\u{1b}[31m", "metadata": {"k": "v".repeat(5000)}, "temperature": 0});
    assert_eq!(server.client.complete(body).await.status, 200);
}

#[tokio::test]
async fn a_long_prompt_is_tokenised_off_the_reactor_with_the_same_result() {
    let server = scripted(ids("a")).await;
    let text = "the and is ".repeat(2000);
    let reply = server.client.complete(json!({"prompt": text, "max_tokens": 1})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(server.engine.seen()[0].prompt, [vec![BOS], ids(&text)].concat());
}

/// Answers by the prompt itself, so that one server serves all cases of a property.
fn echo_server() -> (tokio::runtime::Runtime, Server) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Setup::default().start(|ticket| ticket.request.prompt.clone()));
    (runtime, server)
}

#[test]
fn any_tokens_and_stops_stream_to_the_gathered_answer() {
    // Invariant 1 of the cases: parity, and equality with the definition over the unsplit text.
    let (runtime, server) = echo_server();
    let tokenizer = tokenizer();
    let stops = prop::collection::vec("[ab🌍 ]{1,3}", 0..3);
    let tokens = prop::collection::vec(prop_oneof![431u32..434, 110u32..366, 460u32..476, 98u32..106], 1..40);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    runner
        .run(&(tokens, stops, 1usize..5), |(tokens, stops, per_step)| {
            server.engine.send(Command::TokensPerStep(per_step));
            let body = json!({"prompt": tokens, "max_tokens": 60, "stop": stops, "return_token_ids": true});
            let reply = runtime.block_on(both(&server, body));
            let text = tokenizer.decode(&tokens);
            let end = (0..=text.len()).find_map(|end| {
                let head = &text.as_bytes()[..end];
                stops.iter().filter(|s| head.ends_with(s.as_bytes())).map(|s| end - s.len()).min()
            });
            prop_assert_eq!(reply["choices"][0]["text"].as_str(), Some(&text[..end.unwrap_or(text.len())]));
            Ok(())
        })
        .unwrap();
}
