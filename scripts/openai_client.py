"""Checks a running server with the official `openai` client. usage: openai_client.py BASE_URL"""

import sys

import openai

passed = failed = 0


def fact(holds, text):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    print("ok  " if holds else "FAIL", text, flush=True)


def refusal(kind, call):
    """The error of a call that must be refused with this class."""
    try:
        call()
    except kind as error:
        return error
    except openai.OpenAIError as error:
        return error if isinstance(error, kind) else None
    return None


def chat(client, model):
    """The chat route of the embedded model, which answers."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ask = {"model": model, "messages": messages, "temperature": 0}
    whole = client.chat.completions.create(**ask)
    message, usage = whole.choices[0].message, whole.usage
    fact(whole.object == "chat.completion" and message.role == "assistant", "a chat is a chat.completion")
    fact("Paris" in message.content, f"it has the right answer: {message.content!r}")
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    fact(text == message.content, "its stream has the same text")
    fact(chunks[0].choices[0].delta.role == "assistant", "the first chunk names the role")
    fact(chunks[-1].usage == usage and not chunks[-1].choices, "its last chunk is the same usage")
    ask["messages"] += [message, {"role": "user", "content": "Repeat: river"}]
    again = client.chat.completions.create(**ask).choices[0].message.content
    fact("river" in again, f"an answer given back as history is taken: {again!r}")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    error = refusal(openai.BadRequestError, lambda: client.chat.completions.create(**ask, tools=[tool]))
    fact(error is not None and error.param == "tools", f"tools are a BadRequestError that names them: {error}")


def main(base_url):
    client = openai.OpenAI(base_url=base_url, api_key="none", timeout=60, max_retries=0)
    models = client.models.list().data
    fact(len(models) == 1, f"models.list names one model: {[m.id for m in models]}")
    model = models[0].id
    ask = {"model": model, "prompt": "The weather", "max_tokens": 24, "temperature": 0}

    whole = client.completions.create(**ask)
    choice, usage = whole.choices[0], whole.usage
    fact(whole.object == "text_completion" and whole.model == model, "a completion is a text_completion of the model")
    fact(choice.text != "" and choice.finish_reason in ("stop", "length"), f"it has text and a finish reason: {choice}")
    fact(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"its usage adds up: {usage}")

    chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].text for c in chunks if c.choices)
    fact(text == choice.text, "the stream has the same text")
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    fact(reasons[-1] == choice.finish_reason and not any(reasons[:-1]), "it has one finish reason, at the end")
    fact(chunks[-1].usage == usage and not chunks[-1].choices, "its last chunk is the same usage")
    fact(len({c.id for c in chunks}) == 1, "its chunks share one id")
    fact(len(chunks) > 3, f"it came in pieces: {len(chunks)} chunks")

    stop = choice.text[2:4]
    cut = client.completions.create(**ask, stop=[stop]).choices[0]
    expected = choice.text[: choice.text.index(stop)]
    fact((cut.text, cut.finish_reason) == (expected, "stop"), f"a stop string ends the text before it: {stop!r}")

    both = client.completions.create(**{**ask, "prompt": ["The weather", [2, 300, 17]]}).choices
    fact([c.index for c in both] == [0, 1] and both[0].text == choice.text, "two prompts have two choices in order")

    long = {**ask, "max_tokens": 900}
    with client.completions.create(**long, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    again = client.completions.create(**ask).choices[0]
    fact(again.text == choice.text, "after a stream was left early the next request has its text")

    extra = client.completions.create(**ask, extra_body={"return_token_ids": True}).choices[0]
    fact(len(extra.token_ids) == usage.completion_tokens, "token ids come with return_token_ids")

    error = refusal(openai.BadRequestError, lambda: client.completions.create(**{**ask, "temperature": 2.7}))
    fact(error is not None and error.param == "temperature", f"a temperature above 2 is a BadRequestError: {error}")
    error = refusal(openai.NotFoundError, lambda: client.completions.create(**{**ask, "model": "other"}))
    fact(error is not None and error.code == "model_not_found", f"another model is a NotFoundError: {error}")

    chat(client, model)

    print(f"openai {openai.__version__}: {passed} passed, {failed} failed")
    return failed == 0 and passed > 0


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
