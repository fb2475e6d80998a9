"""Conversations in the chat grammar, as token ids with loss weights, packed into rows.

Everything is a function of (seed, step): a resumed run sees what an uninterrupted one would have seen. An item whose
key hashes into the held-out eighth is never trained on, in any family, phrasing or turn; evaluation takes only those.
"""

import random
import zlib
from dataclasses import dataclass, field

import torch

import chat
import tasks
from words import WORDS

HELD_OUT_OF = 8
FAMILIES = {
    "arithmetic": tasks.arithmetic, "think_sum": tasks.think_sum, "counting": tasks.counting, "copy": tasks.copy,
    "unicode": tasks.unicode, "reverse": tasks.reverse, "case": tasks.case, "capitals": tasks.capitals,
    "calendar": tasks.calendar, "json": tasks.json_fields, "continue": tasks.going_on, "persona": tasks.persona,
    "greeting": tasks.greeting, "far_fact": tasks.far_fact, "tool_call": tasks.tool_call,
    "tool_answer": tasks.tool_answer, "tool_none": tasks.tool_none, "english": None,
}  # fmt: skip
TOOL_FAMILIES = ("tool_call", "tool_answer", "tool_none")
# Not evaluated: greetings are known by heart, English has no right answer.
EVALUATED = [f for f in FAMILIES if f not in ("greeting", "english")]
# Shares of samples in short and in long rows. Sums over two digits and copying bytes need the most practice.
SHORT_MIX = {
    "arithmetic": 5, "think_sum": 4, "counting": 2, "copy": 2, "unicode": 2, "reverse": 2, "case": 3, "capitals": 2,
    "calendar": 2, "json": 2, "continue": 2, "persona": 1, "greeting": 0.4, "far_fact": 1, "tool_call": 3,
    "tool_answer": 1, "tool_none": 1, "english": 2,
}  # fmt: skip
LONG_MIX = {"far_fact": 3, "tool_call": 5, "tool_answer": 1.5, "tool_none": 2, "copy": 0.5, "json": 1, "unicode": 0.5,
            "reverse": 0.5, "think_sum": 1}  # fmt: skip
SHORT_ROW, LONG_ROW = 128, 384
# Tokens that the model does not write itself teach it little about answering but a good deal about the text: one
# sample in four is trained on them too, at a lower weight.
PROMPT_SHARE, PROMPT_WEIGHT, ENGLISH_WEIGHT = 0.25, 0.3, 0.3


def held_out(key):
    return zlib.crc32(key.encode()) % HELD_OUT_OF == 0


@dataclass
class Sample:
    """`parts` is the text as (text, written by the model); the last part is the output that is asked for.

    `key` is that of the last question, `before` has those of the turns before it.
    """

    family: str
    thinking: bool
    parts: list
    key: str
    before: list = field(default_factory=list)

    @property
    def prompt(self):
        return "".join(text for text, _ in self.parts[:-1])

    @property
    def output(self):
        return self.parts[-1][0]


def messages_of(item):
    """The item's turn up to where the model is to write, and what it is to write after its thought."""
    messages = [chat.user(item.question)]
    if item.call is None:
        return messages, item.answer + "<turn|>"
    if item.result is None:
        return messages, chat.call(*item.call) + "<|tool_response>"
    name, arguments = item.call
    return messages + [chat.calls(name, arguments), {"role": "tool", "content": item.result}], item.answer + "<turn|>"


class Source:
    """Draws samples; `sentences` are plain English lines."""

    def __init__(self, sentences):
        self.english = {out: [s for s in sentences if held_out(s) == out] for out in (False, True)}

    def item(self, rng, family, level, out, filler=None):
        while True:
            if family == "far_fact":
                item = tasks.far_fact(rng, level, self.filler(rng, level, filler))
            else:
                item = FAMILIES[family](rng, level)
            trained_before = not any(held_out(key) for key, _ in item.earlier)
            if family == "greeting" or (held_out(item.key) == out and trained_before):
                return item

    def filler(self, rng, level, words):
        """English of about `words` words; without a number, up to 40 to begin with and up to 180 at level 1."""
        words = rng.randint(0, round(40 + 140 * level)) if words is None else words
        lines = []
        while words > 0:
            lines.append(rng.choice(self.english[False]))
            words -= len(lines[-1].split())
        return lines

    def sample(self, rng, family, level=1.0, out=False, filler=None, thinking=None, turns=None):
        if family == "english":
            lines = [rng.choice(self.english[out]) for _ in range(rng.randint(1, 4))]
            return Sample(family, False, [("<bos>", False), (" ".join(lines), False), ("<eos>", True)], lines[0])
        item = self.item(rng, family, level, out, filler)
        if thinking is None:
            thinking = family == "think_sum" or rng.random() < 0.15
        system = item.system or tasks.system_for(rng)
        messages = [{"role": "system", "content": system}] if system else []
        if turns is None:
            turns = rng.choice([0, 0, 0, 0, 1, 1, 2])
        before = [key for key, _ in item.earlier]
        for _ in range(0 if family == "far_fact" else turns):
            past = self.item(rng, rng.choice(["copy", "capitals", "arithmetic", "calendar", "case"]), level, False)
            messages += [chat.user(past.question), chat.assistant(past.answer)]
            before.append(past.key)
        for _, turn in item.earlier:
            messages += turn
        asked, output = messages_of(item)
        if thinking and item.result is not None:
            # The template opened the channel after the response.
            output = item.thought + "\n<channel|>" + output
        elif thinking:
            output = chat.thought(item.thought) + output
        # With thinking on, history has no thoughts, so only what is asked for is written as the model would write it.
        parts = [(t, w and not thinking) for t, w in chat.segments(messages + asked, item.tools, thinking)]
        return Sample(family, thinking, parts + [(output, True)], item.key, before)


def encode(tokenizer, rng, sample):
    """(ids, weights); a part at a time, which gives the ids of the whole text (check.py)."""
    other = PROMPT_WEIGHT if rng.random() < PROMPT_SHARE else 0.0
    if sample.family == "english":
        other = ENGLISH_WEIGHT
    ids, weights = [], []
    for text, written in sample.parts:
        part = tokenizer.encode(text, add_special_tokens=False).ids
        ids += part
        weights += [1.0 if written else other] * len(part)
    return ids, weights


def is_long(step, level):
    """Every third step has long rows, once the short ones have begun to make sense."""
    return level > 0.25 and step % 3 == 2


def batch(source, tokenizer, seed, step, level, tokens):
    """Rows of one step of about `tokens` tokens: ids, documents (0 is padding), targets and weights, all [B, T]."""
    rng = random.Random(f"{seed}/{step}")
    long = is_long(step, level)
    t, mix = (LONG_ROW, LONG_MIX) if long else (SHORT_ROW, SHORT_MIX)
    rows = [([], []) for _ in range(tokens // t)]
    misses = 0
    while misses < 6:
        family = rng.choices(list(mix), list(mix.values()))[0]
        ids, weights = encode(tokenizer, rng, source.sample(rng, family, level))
        row = next((r for r in rows if sum(map(len, r[0])) + len(ids) <= t), None)
        if row is None:
            misses += len(ids) <= t
            continue
        row[0].append(ids)
        row[1].append(weights)
        # The fullest row that still fits comes first, so that rows close one after another.
        rows.sort(key=lambda r: -sum(map(len, r[0])))
    return pack(rows, t)


def pack(rows, t):
    ids, documents, targets = (torch.zeros(len(rows), t, dtype=torch.long) for _ in range(3))
    weights = torch.zeros(len(rows), t)
    for b, (texts, losses) in enumerate(rows):
        at = 0
        for n, (text, loss) in enumerate(zip(texts, losses)):
            end = at + len(text)
            ids[b, at:end] = torch.tensor(text)
            documents[b, at:end] = n + 1
            targets[b, at : end - 1] = torch.tensor(text[1:])
            weights[b, at : end - 1] = torch.tensor(loss[1:])
            at = end
    return ids, documents, targets, weights


def corpus(source, count=20000):
    """Texts the tokenizer is learnt from, without control tokens. Upper-case words stay out: they are spelled."""
    rng = random.Random("tokenizer")
    families = [f for f in FAMILIES if f not in ("case", "unicode")]
    for i in range(count):
        sample = source.sample(rng, families[i % len(families)], turns=0)
        yield "".join(t for t, _ in sample.parts)
    for word in WORDS:
        for _ in range(50):
            yield " " + word
