#!/usr/bin/env python3
"""Writes tests/data/chat_goldens.json: conversations, and the prompt ids transformers makes of them.

usage: chat_goldens.py [models/tiny] (needs transformers; the folder's own template and tokenizer are used)
"""

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent


def says(role, content):
    return {"role": role, "content": content}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


s, u, a = says("system", "You are terse."), says("user", "What is 2 + 2?"), says("assistant", "4")
CONVERSATIONS = {
    # The role sequences of B88 without tool messages.
    "one user turn": [u],
    "system alone": [s],
    "system and user": [s, u],
    "developer is system": [says("developer", "You are terse."), u],
    "two systems": [s, says("system", "Be kind."), u],
    "two users": [u, says("user", "And 3 + 3?")],
    "two assistants": [u, a, says("assistant", "That is four.")],
    "ends with the assistant": [s, u, a],
    "a second round": [u, a, says("user", "And 3 + 3?"), says("assistant", "6"), says("user", "And 4 + 4?")],
    "a system turn later": [u, a, says("system", "Be kind."), u],
    # Contents.
    "white space at the ends": [says("system", "  terse \n"), says("user", "\n\n two  spaces \t"), a, u],
    "newline runs inside": [says("user", "a\n\n\nb\n c")],
    "empty": [says("user", "")],
    "only white space": [says("system", " \n"), says("user", "   ")],
    "parts": [says("user", parts("Copy: ", "one", " two"))],
    "no parts": [says("user", [])],
    "characters outside of the vocabulary": [says("user", "Zürich 🌍 日本 \u200d e\u0301 \u00a0")],
    "text that looks like the grammar": [says("user", "< |turn> <turn |> <| channel> user\nmodel\n")],
    "a thought in the history": [u, says("assistant", "<|channel>thought\nadd<channel|>4"), u],
    "half a thought in the history": [u, says("assistant", "4 <|channel>thought\nadd"), u],
    "the end of a thought in the history": [u, says("assistant", "add<channel|> 4"), u],
}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models/tiny"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = (folder / "chat_template.jinja").read_text()
    cases = []
    for name, messages in CONVERSATIONS.items():
        for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
            if variables and len(messages) > 2:
                continue
            made = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **variables)
            ids = tokenizer(made, add_special_tokens=False)["input_ids"]
            cases.append({"name": name, "messages": messages, "variables": variables, "ids": ids})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (ROOT / "tests/data/chat_goldens.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(cases)} conversations")


if __name__ == "__main__":
    main()
