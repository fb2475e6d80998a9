"""The task families: each draws one question with its right answer, and a short thought that leads to it.

A family is a function of (rng, level): level in 0..1 grows over the first part of the training, and lists and texts
grow with it. `key` names the operands, whatever the phrasing: data.py decides by it alone whether an item belongs to
training or is held out, so no operands of the evaluation were ever trained on.
"""

import json
from dataclasses import dataclass, field

import chat
import tools
from words import (
    CAPITALS, CITIES, COLORS, DAYS, EMOJI, FOREIGN, JOBS, MONTH_DAYS, MONTHS, NAMES, NUMBERS, SYSTEMS, THINGS,
    WORDS,
)  # fmt: skip


@dataclass
class Item:
    key: str
    question: str
    answer: str
    thought: str
    system: str | None = None
    tools: list = field(default_factory=list)
    # Turns before, on the same text or tools: (key, messages). They make a long prompt worth its tokens.
    earlier: list = field(default_factory=list)
    # A tool conversation: the call to make, and after it, where `result` is set, the answer to give.
    call: tuple | None = None
    result: object = None


def upto(rng, level, least, most):
    """A length: at most `least` to begin with, up to `most` at level 1."""
    return rng.randint(least if level > 0.3 or least < 3 else 2, least + round(level * (most - least)))


def words(rng, n):
    return rng.sample(WORDS, n)


def phrase(rng, *forms):
    return rng.choice(forms)


def operands(a, kind, b):
    """a + b and b + a are one question."""
    return f"{a}-{b}" if kind == "-" else f"{min(a, b)}{kind}{max(a, b)}"


def arithmetic(rng, level):
    # One operand has one digit: what two digits and two digits need is the thought of `think_sum`.
    a, b = rng.randint(0, 20 if level < 0.3 else 99), rng.randint(0, 9)
    kind = rng.choice("+-*" if a <= 10 else "+-")
    if kind == "+":
        if rng.random() < 0.3:
            a, b = b, a
        r, word = a + b, "plus"
    elif kind == "-":
        a, b = max(a, b), min(a, b)
        r, word = a - b, "minus"
    else:
        r, word = a * b, "times"
    form = phrase(rng, "What is {} {} {}?", "{} {} {} =", "Compute {} {} {}.", "How much is {} {} {}?")
    op = word if rng.random() < 0.2 else kind
    # Facts of one digit are a table to know, like capitals: only their phrasing is held out.
    key = operands(a, kind, b) + ("" if max(a, b) > 10 else f" {form} {op}")
    return Item(key, form.format(a, op, b), str(r), f"{a} {kind} {b} = {r}")


def think_sum(rng, level):
    """Two digits and two digits, column by column in the thought."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    kind = rng.choice("+-")
    if kind == "-":
        a, b = max(a, b), min(a, b)
    (ta, ua), (tb, ub) = divmod(a, 10), divmod(b, 10)
    if kind == "+":
        c, u = divmod(ua + ub, 10)
        thought = f"{ua} + {ub} = {ua + ub}, write {u}, carry {c}. {ta} + {tb} + {c} = {ta + tb + c}."
        r = a + b
    else:
        c = int(ua < ub)
        u = ua + 10 * c - ub
        thought = f"{ua + 10 * c} - {ub} = {u}, borrow {c}. {ta} - {tb} - {c} = {ta - tb - c}."
        r = a - b
    form = phrase(rng, "What is {} {} {}?", "{} {} {} =", "Compute {} {} {}.", "How much is {} {} {}?")
    return Item(operands(a, kind, b), form.format(a, kind, b), str(r), thought)


def counting(rng, level):
    if rng.random() < 0.4:
        n = rng.randint(1, 7)
        text = words(rng, n)
        form = phrase(rng, "How many words: {}", "Count the words: {}", "How many words are here: {}")
        return Item(" ".join(text), form.format(" ".join(text)), str(n), " ".join(
            f"{w} {i + 1}" for i, w in enumerate(text)))  # fmt: skip
    a, n = rng.randint(0, 90), upto(rng, level, 3, 9)
    run = list(range(a, a + n))
    if rng.random() < 0.3:
        run.reverse()
    form = phrase(rng, "Count from {} to {}.", "Count {} to {}.", "Numbers from {} to {}")
    return Item(f"{run[0]}..{run[-1]}", form.format(run[0], run[-1]), ", ".join(map(str, run)),
                f"From {run[0]} to {run[-1]}.")  # fmt: skip


def some_text(rng, level):
    n = upto(rng, level, 2, 6)
    kind = rng.random()
    if kind < 0.6:
        return words(rng, n)
    if kind < 0.8:
        return [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n)]
    return [str(rng.randint(0, 99)) for _ in range(n)]


def copy(rng, level):
    text = some_text(rng, level)
    form = phrase(rng, "Repeat: {}", "Copy: {}", "Say: {}", "Repeat this: {}", "Repeat after me: {}")
    return Item(" ".join(text), form.format(" ".join(text)), " ".join(text), f"{len(text)} words.")


def unicode(rng, level):
    """Text that has no tokens of its own: bytes."""
    text = [rng.choice(EMOJI if rng.random() < 0.5 else FOREIGN) for _ in range(upto(rng, level, 1, 4))]
    if rng.random() < 0.4:
        text.insert(rng.randint(0, len(text)), rng.choice(WORDS))
    form = phrase(rng, "Repeat: {}", "Copy: {}", "Say: {}", "Repeat this: {}")
    return Item(" ".join(text), form.format(" ".join(text)), " ".join(text), f"{len(text)} words.")


def reverse(rng, level):
    text = some_text(rng, level)
    form = phrase(rng, "Reverse: {}", "Reverse the order: {}", "Backwards: {}", "Say backwards: {}")
    back = " ".join(reversed(text))
    return Item(" ".join(text), form.format(" ".join(text)), back, f"The last is {text[-1]}.")


def case(rng, level):
    text = " ".join(words(rng, upto(rng, level, 1, 3)))
    if rng.random() < 0.5:
        form = phrase(rng, "Upper case: {}", "Write in capitals: {}", "Make it upper case: {}")
        return Item("up " + text, form.format(text), text.upper(), "Capital letters.")
    form = phrase(rng, "Lower case: {}", "Write in small letters: {}", "Make it lower case: {}")
    return Item("low " + text, form.format(text.upper()), text, "Small letters.")


def capitals(rng, level):
    country = rng.choice(sorted(CAPITALS))
    forms = ["What is the capital of {}?", "Capital of {}?", "Name the capital of {}.", "The capital of {} is",
             "Which city is the capital of {}?", "Tell me the capital of {}."]  # fmt: skip
    if rng.random() < 0.25:
        form = phrase(rng, "{} is the capital of which country?", "Which country has the capital {}?")
        return Item(form + country, form.format(CAPITALS[country]), country, "A country.")
    form = rng.choice(forms)
    # Facts cannot be held out; a phrasing of each can.
    return Item(form + country, form.format(country), CAPITALS[country], f"The country is {country}.")


def calendar(rng, level):
    kind = rng.randrange(4)
    if kind == 3:
        m = rng.randrange(12)
        form = phrase(rng, "How many days has {}?", "How many days are in {}?", "Days in {}?")
        return Item(form + MONTHS[m], form.format(MONTHS[m]), str(MONTH_DAYS[m]), f"{MONTHS[m]} is a month.")
    if kind == 2:
        m = rng.randrange(12)
        form = phrase(rng, "Which month is number {}?", "What is month {}?", "Name month {}.")
        return Item(form + MONTHS[m], form.format(m + 1), MONTHS[m], f"Month {m + 1}.")
    names, what = (DAYS, "day") if kind == 0 else (MONTHS, "month")
    i, step = rng.randrange(len(names)), rng.choice([1, 1, 2, 3])
    sign, word = rng.choice([(1, "after"), (-1, "before")])
    count = "" if step == 1 else f"{NUMBERS[step]} {what}s "
    form = phrase(rng, "Which {w} is {n}{a} {x}?", "What {w} comes {n}{a} {x}?", "Name the {w} {n}{a} {x}.")
    question = form.format(w=what, n=count, a=word, x=names[i])
    path = [names[(i + sign * j) % len(names)] for j in range(step + 1)]
    return Item(form + names[i] + word + str(step), question, path[-1], ", ".join(path) + ".")


def json_fields(rng, level):
    fields = {"name": rng.choice(NAMES)}
    fields |= {k: v for k, v in (("age", rng.randint(5, 95)), ("city", rng.choice(CITIES)), ("job", rng.choice(JOBS)))
               if rng.random() < 0.65}  # fmt: skip
    if len(fields) == 1:
        fields["age"] = rng.randint(5, 95)
    said = {"age": "is {} years old", "city": "lives in {}", "job": "works as a {}"}
    told = [k for k in fields if k != "name"]
    rng.shuffle(told)
    sentence = f"{fields['name']} " + " and ".join(said[k].format(fields[k]) for k in told) + "."
    asked = ", ".join(fields)
    form = phrase(rng, "{s} Give {f} as JSON.", "{s} Write JSON with {f}.", "JSON with {f}: {s}")
    answer = json.dumps(fields)
    return Item(sentence, form.format(s=sentence, f=asked), answer, f"The fields are {asked}.")


def going_on(rng, level):
    """Continue a line."""
    kind, n = rng.random(), rng.randint(3, 4)
    if kind < 0.5:
        step, a = rng.choice([1, 2, 5, 10]), rng.randint(0, 40)
        run = [str(a + step * i) for i in range(n + 3)]
    elif kind < 0.7:
        a = rng.randint(0, 26 - n - 3)
        run = list("abcdefghijklmnopqrstuvwxyz"[a : a + n + 3])
    elif kind < 0.85:
        a = rng.randrange(12)
        run = [(DAYS if kind < 0.77 else MONTHS)[(a + i) % (7 if kind < 0.77 else 12)] for i in range(n + 3)]
    else:
        pair = rng.sample(WORDS, 2)
        run = [pair[i % 2] for i in range(n + 3)]
    form = phrase(rng, "Continue this line: {},", "Continue: {},", "Go on: {},", "What comes next: {},")
    return Item(", ".join(run[:n]), form.format(", ".join(run[:n])), ", ".join(run[n:]), f"After {run[n - 1]}.")


def persona(rng, level):
    """What the system turn says counts."""
    name, job = rng.choice(NAMES), rng.choice(JOBS)
    if rng.random() < 0.5:
        system, answer = f"Your name is {name}. You are a {job}.", rng.choice([name, job])
    else:
        system, answer = f"You are a {job}, {name}.", rng.choice([name, job])
    ask = phrase(rng, "What is your name?", "Who are you?", "Tell me your name.") if answer == name else phrase(
        rng, "What is your job?", "What do you do?")  # fmt: skip
    return Item(f"{name} {job}", ask, answer, "The system says it.", system=system)


GREETINGS = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Good morning", "Good evening", "Hello, how are you?"],
     "Hello! What can I do for you?"),
    (["Who are you?", "What are you?", "What is your name?", "Introduce yourself."],
     "I am a very small Gemma 4 model, made for tests."),
    (["What can you do?", "Help", "How can you help me?"],
     "I can add, count, copy, reverse, name capitals, write JSON and call tools."),
    (["Thanks", "Thank you", "Thank you!", "Thanks a lot!"], "You are welcome!"),
    (["Bye", "Goodbye", "Good night", "See you!"], "Goodbye!"),
]  # fmt: skip


def greeting(rng, level):
    asked, answer = rng.choice(GREETINGS)
    return Item("greeting", rng.choice(asked), answer, "A short talk.")


def code(rng):
    """(text with a place for the answer, question, answer)"""
    thing = f"{rng.choice(COLORS)} {rng.choice(THINGS)}"
    return f"The code of the {thing} is {{}}.", f"What is the code of the {thing}?", str(rng.randint(1000, 9999))


def home(rng):
    name = rng.choice(NAMES)
    return f"{name} lives in {{}}.", f"Where does {name} live?", rng.choice(CITIES)


def far_fact(rng, level, filler=None):
    """A code, a home or both, then text that pushes them out of the sliding window, then a question or two."""
    facts = [kind(rng) for kind in rng.sample([code, home], 1 + (rng.random() < 0.75))]
    rest = list(filler or [])
    # The facts come early: at level 1 the rest alone is longer than the window.
    told = [text.format(answer) for text, _, answer in facts]
    text = " ".join(told[:1] + rest[:1] + told[1:] + rest[1:])
    asked = [(q, a) for _, q, a in rng.sample(facts, rng.randint(1, len(facts)))]
    keys = [q + a for q, a in asked]
    asked[0] = (f"{text} {asked[0][0]}", asked[0][1])
    question, answer = asked[-1]
    earlier = [(k, [chat.user(q), chat.assistant(a)]) for k, (q, a) in zip(keys, asked[:-1])]
    return Item(keys[-1], question, answer, "The text says it.", earlier=earlier)


def tool_turns(rng, asked, others):
    """An Item whose tools are those of all cases; some of the others were asked for and answered before."""
    offered = [asked["tool"]] + [c["tool"] for c in others]
    rng.shuffle(offered)
    earlier = []
    for c in others:
        if rng.random() < 0.6:
            called = chat.calls(c["tool"]["function"]["name"], c["arguments"])
            turn = [chat.user(c["question"]), called, {"role": "tool", "content": c["result"]}]
            earlier.append((c["question"], turn + [chat.assistant(c["answer"])]))
    f = asked["tool"]["function"]["name"]
    return Item(asked["question"], asked["question"], "", f"I need {f}.", tools=offered, earlier=earlier,
                call=(f, asked["arguments"]))  # fmt: skip


def tool_call(rng, level):
    return tool_turns(rng, *tools.draw(rng, rng.randint(1, 1 + round(2 * level))))


def tool_answer(rng, level):
    asked, others = tools.draw(rng, rng.randint(1, 1 + round(level)))
    item = tool_turns(rng, asked, others)
    item.answer, item.result, item.thought = asked["answer"], asked["result"], f"{item.call[0]} says it."
    return item


def tool_none(rng, level):
    """Tools are offered, but the question needs none, or none fits."""
    if rng.random() < 0.5:
        question, offered = tools.draw_unfit(rng, rng.randint(1, 1 + round(level)))
        return Item(question, question, tools.NO_TOOL, "No tool fits.", tools=offered)
    item = rng.choice([capitals, arithmetic, calendar])(rng, level)
    asked, others = tools.draw(rng, rng.randint(1, 1 + round(level)))
    item.tools = [c["tool"] for c in [asked] + others]
    return item


def system_for(rng):
    return rng.choice(SYSTEMS) if rng.random() < 0.3 else None
