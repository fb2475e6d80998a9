"""The chat grammar of Gemma 4 as text: what chat_template.jinja renders, written a second time.

The trainer needs it because it renders hundreds of thousands of conversations and must know which part the model
wrote; check.py holds it equal to the template, and both equal to the grammar's published examples. Messages and tools
are those of the OpenAI chat API, except that a call's arguments are an object.
"""

import re
from pathlib import Path

QUOTE = '<|"|>'
# Closes the thought of an answer without one. The large models' form; that of E2B and E4B has nothing there.
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
NO_THOUGHT = EMPTY_THOUGHT


def use_form_of(shape):
    """Sets the form for a model's kind, for everything rendered from here on."""
    global NO_THOUGHT
    NO_THOUGHT = "" if shape.ple else EMPTY_THOUGHT


def template():
    """The template's text, in the form set."""
    text = Path(__file__).with_name("chat_template.jinja").read_text()
    if NO_THOUGHT:
        return text
    text, count = re.subn(r" ~ \('' if thinking else '<\|channel>thought\\n<channel\|>'\)", "", text)
    assert count == 1, "the template's generation prompt is not where it was"
    return text.replace(LARGE_FORM, SMALL_FORM)


LARGE_FORM = """in the form of its large models: with thinking off, the generation prompt closes an
    empty thought channel. Takes"""
SMALL_FORM = """in the form of E2B and E4B: with thinking off, the generation prompt opens no channel.
    Takes"""


def value(v):
    """A value inside a call, a response or a declaration: strings between <|"|>, keys bare and sorted."""
    if isinstance(v, bool):
        return "true" if v else "false"
    if v is None:
        return "null"
    if isinstance(v, str):
        return QUOTE + v + QUOTE
    if isinstance(v, dict):
        return "{" + ",".join(f"{k}:{value(v[k])}" for k in sorted(v, key=str.lower)) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(map(value, v)) + "]"
    return str(v)


def schema(s):
    """The inside of one JSON schema: description, enum or items, nullable, properties, required, and type last."""
    parts = []
    if s.get("description"):
        parts.append("description:" + value(s["description"]))
    if s.get("enum"):
        parts.append("enum:" + value(s["enum"]))
    if s.get("items"):
        parts.append("items:{" + schema(s["items"]) + "}")
    if s.get("nullable"):
        parts.append("nullable:true")
    if s.get("properties"):
        properties = s["properties"]
        inner = ",".join(k + ":{" + schema(properties[k]) + "}" for k in sorted(properties, key=str.lower))
        parts.append("properties:{" + inner + "}")
    if s.get("required"):
        parts.append("required:" + value(s["required"]))
    parts.append("type:" + value(s.get("type", "object").upper()))
    return ",".join(parts)


def declaration(tool):
    f = tool["function"]
    parts = ["description:" + value(f.get("description", ""))]
    if f.get("parameters"):
        parts.append("parameters:{" + schema(f["parameters"]) + "}")
    if f.get("response"):
        parts.append("response:{" + schema(f["response"]) + "}")
    return "<|tool>declaration:" + f["name"] + "{" + ",".join(parts) + "}<tool|>"


def call(name, arguments):
    return f"<|tool_call>call:{name}{value(arguments or {})}<tool_call|>"


def response(name, result):
    result = result if isinstance(result, dict) else {"value": result}
    return f"<|tool_response>response:{name}{value(result)}<tool_response|>"


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def calls(name, arguments):
    """The message of an assistant that calls one tool."""
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def thought(text):
    return f"<|channel>thought\n{text}\n<channel|>"


def strip_thought(text):
    """Content without anything between <|channel> and <channel|>."""
    return "".join(part.split("<|channel>")[0] for part in text.split("<channel|>")).strip()


def segments(messages, tools=(), thinking=False, generation_prompt=True):
    """The prompt as [(text, written by the model)]; joined, it is what the template renders."""
    out = [("<bos>", False)]
    messages = list(messages)
    first_is_system = bool(messages) and messages[0]["role"] in ("system", "developer")
    if thinking or tools or first_is_system:
        text = "<|turn>system\n" + ("<|think|>\n" if thinking else "")
        if first_is_system:
            text += messages.pop(0)["content"].strip()
        out.append((text + "".join(map(declaration, tools)) + "<turn|>\n", False))
    last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    # Consecutive assistant and tool messages share one model turn; `names` are the calls that wait for a response.
    in_turn, names = False, []
    for i, m in enumerate(messages):
        if m["role"] in ("assistant", "tool"):
            if not in_turn:
                out.append(("<|turn>model\n", False))
                in_turn = True
            if m["role"] == "tool":
                out.append((response(names.pop(0) if names else m.get("name", "unknown"), m["content"]), False))
            else:
                text = thought(m["reasoning"]) if m.get("reasoning") and i > last_user else ""
                for c in m.get("tool_calls", ()):
                    text += call(c["function"]["name"], c["function"]["arguments"])
                    names.append(c["function"]["name"])
                out.append((text + strip_thought(m.get("content") or ""), True))
                waits = names and (i + 1 == len(messages) or messages[i + 1]["role"] != "tool")
                if waits:
                    out.append(("<|tool_response>", True))
                ends = i + 1 == len(messages) or messages[i + 1]["role"] not in ("assistant", "tool")
                if ends and not names:
                    out.append(("<turn|>", True))
                    out.append(("\n", False))
                    in_turn = False
        else:
            in_turn, names = False, []
            role = "system" if m["role"] == "developer" else m["role"]
            out.append((f"<|turn>{role}\n{m['content'].strip()}<turn|>\n", False))
    if generation_prompt and not names:
        after_response = in_turn and messages[-1]["role"] == "tool"
        if after_response:
            if thinking:
                out.append(("<|channel>thought\n", False))
        else:
            out.append(("<|turn>model\n" + ("" if thinking else NO_THOUGHT), False))
    return out


def render(messages, tools=(), thinking=False, generation_prompt=True):
    return "".join(text for text, _ in segments(messages, tools, thinking, generation_prompt))
