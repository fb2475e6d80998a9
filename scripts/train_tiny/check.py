"""Checks of the training: python check.py [--wordnet DIR]. 

Each is a fact; after it has held, a mistake is planted and the check must see it."""

import argparse
import dataclasses
import random
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jinja2.sandbox
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders

import chat
import data
import drafter
import english
import evaluate
import model
import tokenizer as tok
import train

TOOL = {"type": "function", "function": {
    "name": "lookup", "description": "Lookup docs",
    "parameters": {"type": "object", "required": ["query"], "properties": {
        "query": {"type": "string", "description": "Search query"}, "limit": {"type": "integer"}}}}}  # fmt: skip
CALLED = [
    {"role": "user", "content": "Look up AX"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "lookup", "arguments": {"query": "AX", "limit": 2}}}]},
]
ANSWERED = CALLED + [{"role": "tool", "content": "AX Engine"}]
DECLARED = (
    '<bos><|turn>system\n<|tool>declaration:lookup{description:<|"|>Lookup docs<|"|>,parameters:{properties:'
    '{limit:{type:<|"|>INTEGER<|"|>},query:{description:<|"|>Search query<|"|>,type:<|"|>STRING<|"|>}},'
    'required:[<|"|>query<|"|>],type:<|"|>OBJECT<|"|>}}<tool|><turn|>\n<|turn>user\nLook up AX<turn|>\n<|turn>model\n'
)
CALL = '<|tool_call>call:lookup{limit:2,query:<|"|>AX<|"|>}<tool_call|>'
RESPONSE = '<|tool_response>response:lookup{value:<|"|>AX Engine<|"|>}<tool_response|>'
EMPTY = "<|turn>model\n<|channel>thought\n<channel|>"


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


# (messages, tools, thinking, text): the published examples first, then what the grammar's rules say of the rest.
GRAMMAR = [
    ([user("What is 2 + 2?")], [], False, "<bos><|turn>user\nWhat is 2 + 2?<turn|>\n" + EMPTY),
    ([{"role": "system", "content": "You are terse."}, user("Explain gravity.")], [], False,
     "<bos><|turn>system\nYou are terse.<turn|>\n<|turn>user\nExplain gravity.<turn|>\n" + EMPTY),
    ([user("Hello")], [], True,
     "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHello<turn|>\n<|turn>model\n"),
    (ANSWERED, [TOOL], False, DECLARED + CALL + RESPONSE),
    (ANSWERED + [assistant("AX Engine is a local runtime.")], [TOOL], False,
     DECLARED + CALL + RESPONSE + "AX Engine is a local runtime.<turn|>\n" + EMPTY),
    (CALLED, [TOOL], False, DECLARED + CALL + "<|tool_response>"),
    (ANSWERED, [TOOL], True,
     DECLARED.replace("system\n", "system\n<|think|>\n") + CALL + RESPONSE + "<|channel>thought\n"),
    ([{"role": "developer", "content": " Be brief. "}, user(" Hi "), assistant(" Hello. "), user("Bye")], [], True,
     "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n"
     "<|turn>user\nBye<turn|>\n<|turn>model\n"),
    ([user("Hi"), assistant("<|channel>thought\nA greeting.\n<channel|>Hello.", reasoning="A greeting."), user("Bye")],
     [], False, "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello.<turn|>\n<|turn>user\nBye<turn|>\n" + EMPTY),
    ([CALLED[0], dict(CALLED[1], reasoning="I need lookup."), ANSWERED[2]], [TOOL], False,
     DECLARED + "<|channel>thought\nI need lookup.\n<channel|>" + CALL + RESPONSE),
]  # fmt: skip


def template():
    # As transformers sets it up.
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(why):
        raise jinja2.TemplateError(why)

    env.globals["raise_exception"] = refuse
    compiled = env.from_string(chat.template())

    def render(messages, tools, thinking):
        return compiled.render(messages=messages, tools=tools, enable_thinking=thinking, add_generation_prompt=True)

    return render


def grammar_is_rendered_to_the_letter(source, tokenizer):
    render = template()
    for messages, tools, thinking, text in GRAMMAR:
        for name, found in (
            ("chat.py", chat.render(messages, tools, thinking)),
            ("template", render(messages, tools, thinking)),
        ):
            assert found == text, f"{name}:\n{found!r}\nexpected\n{text!r}"


def the_form_of_e2b_opens_no_channel(source, tokenizer):
    chat.use_form_of(model.KINDS["tiny-ple"])
    try:
        render = template()
        for messages, tools, thinking, text in GRAMMAR:
            expected = text.removesuffix("<|channel>thought\n<channel|>")
            for found in (chat.render(messages, tools, thinking), render(messages, tools, thinking)):
                assert found == expected, f"{found!r}\nexpected\n{expected!r}"
        assert "E2B" in chat.template()
    finally:
        chat.use_form_of(model.KINDS["tiny"])


def values_of_every_type_are_rendered_alike(source, tokenizer):
    arguments = {"b": True, "a": [1, 2.5, -3], "z": None, "n": {"y": "x", "k": [{"q": False}]}, "s": "two words",
                 "C": [], "e": {}}  # fmt: skip
    text = ('<|tool_call>call:f{a:[1,2.5,-3],b:true,C:[],e:{},n:{k:[{q:false}],y:<|"|>x<|"|>},s:<|"|>two words<|"|>,'
            'z:null}<tool_call|>')  # fmt: skip
    assert chat.call("f", arguments) == text, chat.call("f", arguments)
    messages = [user("x"), {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]
    assert text in template()(messages, [], False), template()(messages, [], False)


def the_template_renders_every_training_prompt(source, tokenizer):
    render, rng = template(), random.Random(5)
    plain = source.sample
    for i in range(600):
        seen = []
        kept, chat_segments = chat.segments, lambda *a: (seen.append(a), kept(*a))[1]
        chat.segments = chat_segments
        family = data.EVALUATED[i % len(data.EVALUATED)]
        sample = plain(rng, family, thinking=bool(i % 2))
        chat.segments = kept
        assert render(*seen[-1]) == sample.prompt, (render(*seen[-1]), sample.prompt)


def text_comes_back_from_the_tokenizer(source, tokenizer):
    for text in ["the cat", "  two  spaces ", "a\nb\n\nc\n\n\n\n\n\n\n\n\n\nd", "naïve café 你好 мир", "👍🏽 ❤️ 🇫🇷", "\t",
                 "\x00\x7f", "{\"a\": [1, 2]}", "<not|special>", "▁", "<|turn>user\nhi<turn|>\n", ""]:  # fmt: skip
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        back = tokenizer.decode(ids, skip_special_tokens=False)
        # U+2581 stands for the space; the real tokenizer reads it as one too.
        assert back == text.replace("▁", " "), (text, back)
        assert ids == tokenizer.encode(text).ids, "a BOS was added"


def control_ids_are_those_of_the_real_vocabulary(source, tokenizer):
    ids = tokenizer.get_vocab()
    for i, text in tok.CONTROL.items():
        assert ids[text] == i, (text, ids[text])
        assert tokenizer.encode(f"a{text}b").ids[1] == i
    assert tokenizer.encode("\n").ids == [107]
    assert tokenizer.encode("a\n\nb").ids[1:2] == [108]
    assert all(tokenizer.id_to_token(i) == f"<unused{i}>" for i in range(107) if i not in tok.CONTROL)
    assert sorted(ids.values()) == list(range(model.Shape.vocab))
    assert len(tokenizer.encode("12345").ids) == 5, "digits are single tokens"
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("ж").ids] == ["<0xD0>", "<0xB6>"]
    word = [t for t in ids if "▁" in t[1:] or ("\n" in t and t.strip("\n"))]
    assert not word, f"tokens that cross a word: {word[:5]}"


def a_part_at_a_time_gives_the_ids_of_the_whole(source, tokenizer):
    rng = random.Random(6)
    for i in range(400):
        sample = source.sample(rng, list(data.FAMILIES)[i % len(data.FAMILIES)])
        ids, weights = data.encode(tokenizer, rng, sample)
        assert ids == tokenizer.encode(sample.prompt + sample.output, add_special_tokens=False).ids, sample
        assert len(weights) == len(ids) and (weights[-1] == 1 or sample.family == "english")


def batches_follow_from_seed_and_step(source, tokenizer):
    one, two = (data.batch(source, tokenizer, 1, 7, 0.5, 1024) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    for other in (data.batch(source, tokenizer, 1, 8, 0.5, 1024), data.batch(source, tokenizer, 2, 7, 0.5, 1024)):
        assert not torch.equal(one[0], other[0])


def nothing_held_out_is_trained_on(source, tokenizer):
    asked = {}
    for family in data.EVALUATED:
        samples = evaluate.held_out_samples(source, family, 60)
        assert len(samples) >= 20, f"{family}: only {len(samples)} different held-out prompts"
        for s in samples:
            assert data.held_out(s.key), s.key
            asked[last_turn(s)] = s
    rng = random.Random(8)
    for i in range(20000):
        family = data.EVALUATED[i % len(data.EVALUATED)]
        sample = source.sample(rng, family, level=rng.random())
        assert not any(map(data.held_out, [sample.key] + sample.before)), sample
        for turn in turns(sample):
            assert turn not in asked, f"{turn} is asked in {family} and held out in {asked[turn].family}"


def turns(sample):
    """Every user turn. Where another turn holds the operands, it is part of the question."""
    if sample.family == "far_fact":
        return [sample.prompt]
    system = sample.prompt.split("<turn|>")[0] if sample.family == "persona" else ""
    return [system + t for t in re.findall(r"<\|turn>user\n(.*?)<turn\|>", sample.prompt)]


def last_turn(sample):
    return turns(sample)[-1]


def answers_are_right(source, tokenizer):
    """The generators' own arithmetic, asked of an independent reading of the question."""
    rng, seen = random.Random(9), 0
    for _ in range(2000):
        sample = source.sample(rng, rng.choice(["arithmetic", "think_sum"]), turns=0)
        found = re.search(r"(\d+) (\+|-|\*|plus|minus|times) (\d+)", sample.prompt)
        a, op, b = found.groups()
        right = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[
            {"plus": "+", "minus": "-", "times": "*"}.get(op, op)]  # fmt: skip
        assert sample.output.split("<channel|>")[-1] == f"{right}<turn|>", sample
        for terms, total in re.findall(r"(\d+(?: [+-] \d+)+) = (\d+)", sample.output):
            assert sum(int(t) for t in re.sub(r"([+-]) ", r"\1", terms).split()) == int(total), sample
            seen += 1
    assert seen > 500


def the_towers_are_those_of_transformers(source, tokenizer):
    """Logits and gradients against Gemma4ForConditionalGeneration, and packed documents against each alone."""
    for shape in model.KINDS.values():
        # Scales that bf16 holds: transformers in f32 does not round them.
        tower_is_that_of_transformers(dataclasses.replace(shape, vocab=512, hidden=64, ple=min(shape.ple, 16)))


def tower_is_that_of_transformers(shape):
    from transformers import Gemma4ForConditionalGeneration

    params = model.init(shape, 3)
    g = torch.Generator().manual_seed(4)
    for p in params.values():  # norms and scalars off their start, so that each of them shows
        if p.ndim == 1:
            p.mul_(1 + 0.3 * torch.randn(p.shape, generator=g))
    with tempfile.TemporaryDirectory() as folder:
        model.export(shape, params, folder)
        theirs = Gemma4ForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager")  # fmt: skip
        again, params = model.load(folder)
    assert again == shape
    ids = torch.randint(1, shape.vocab, (2, 192), generator=g)  # not the pad: its row has no gradient there
    params = {n: p.requires_grad_() for n, p in params.items()}
    one = torch.ones(2, 192, dtype=torch.long)

    def ours(documents):
        return model.head(params, model.states(shape, params, ids, model.masks(shape, documents)))

    expected, found = theirs(input_ids=ids).logits, ours(one)
    assert (expected - found).abs().max() < 1e-4, (expected - found).abs().max()
    for logits in (expected, found):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = dict(theirs.named_parameters())
    for n, p in params.items():
        if n.endswith("layer_scalar"):  # a buffer there
            continue
        g2 = gradients[model.PREFIX + n].grad
        assert (p.grad - g2).abs().max() < 1e-4 * g2.abs().max(), n
    split = one.clone()
    split[:, 100:] = 2
    with torch.no_grad():
        alone, packed = theirs(input_ids=ids[:, 100:]).logits, ours(split)[:, 100:]
    assert (alone - packed).abs().max() < 1e-4, (alone - packed).abs().max()


def the_drafter_is_that_of_transformers(source, tokenizer):
    """Three drafts of a round from several positions, beyond the window too, beside Gemma4AssistantForCausalLM."""
    from transformers import Gemma4AssistantForCausalLM, Gemma4ForConditionalGeneration

    target = dataclasses.replace(model.Shape(), vocab=512, hidden=64)
    s, g = drafter.shape_of(target), torch.Generator().manual_seed(5)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model.export(target, model.init(target, 3), folder / "target")
        drafter.export(s, drafter.init(s, target.hidden, 4), target.hidden, folder / "drafter")
        kinds = {"target": Gemma4ForConditionalGeneration, "drafter": Gemma4AssistantForCausalLM}
        theirs = [kind.from_pretrained(folder / name, dtype=torch.float32, attn_implementation="eager").eval()
                  for name, kind in kinds.items()]  # fmt: skip
        params, target_params = drafter.load(folder / "drafter"), model.load(folder / "target")[1]
    ids = torch.randint(1, target.vocab, (1, 192), generator=g)
    one = torch.ones(1, 192, dtype=torch.long)
    seen = drafter.read(target, target_params, ids, one)
    with torch.no_grad():
        ours = list(drafter.drafts(s, params, target, target_params, ids, one, seen, 3))
    for p in (0, 3, 63, 64, 65, 128, 180):
        expected = drafter.round_of(*theirs, ids, drafter.seen_by(theirs[0], ids), p, ids[0, p + 1 : p + 4])
        for k in range(3):
            off = (expected[k] - ours[k][0, p]).abs().max()
            assert off < 1e-4, (p, k, off)


def the_checkpoint_fits(source, tokenizer):
    for kind, shape in model.KINDS.items():
        count = sum(torch.Size(s).numel() for s in model.parameter_shapes(shape).values())
        with tempfile.TemporaryDirectory() as folder:
            tok.save(tokenizer, folder)
            rest = sum(f.stat().st_size for f in Path(folder).iterdir())
        assert 2 * count + rest < 7.9e6, f"{kind}: {2 * count + rest} bytes"


def muon_makes_its_update_nearly_orthogonal(source, tokenizer):
    g = torch.randn(96, 32, generator=torch.Generator().manual_seed(1))
    s = torch.linalg.svdvals(train.orthogonal(g))
    assert 0.6 < s.min() and s.max() < 1.3, s


def told_to(module, name, mistake):
    """A planted mistake: `module.name` is `mistake(what it was)` while the check runs."""

    def plant(tokenizer):
        before = getattr(module, name)
        setattr(module, name, mistake(before))
        return tokenizer, lambda: setattr(module, name, before)

    return plant


def other_tokenizer(change):
    """A planted mistake in the tokenizer itself."""

    def plant(tokenizer):
        changed = Tokenizer.from_str(tokenizer.to_str())
        change(changed)
        return changed, lambda: None

    return plant


def one_off(family):
    def wrong(rng, level):
        item = family(rng, level)
        item.answer = str(int(item.answer) + 1)
        return item

    return wrong


# Every check, and a mistake that it must see.
CHECKS = {
    grammar_is_rendered_to_the_letter: told_to(chat, "NO_THOUGHT", lambda t: t.replace("\n", "")),
    the_form_of_e2b_opens_no_channel: told_to(chat, "use_form_of", lambda f: lambda shape: None),
    values_of_every_type_are_rendered_alike: told_to(chat, "QUOTE", lambda q: '"'),
    the_template_renders_every_training_prompt: told_to(chat, "declaration", lambda f: lambda t: f(t) + "\n"),
    text_comes_back_from_the_tokenizer: other_tokenizer(lambda t: setattr(t, "decoder", decoders.Fuse())),
    control_ids_are_those_of_the_real_vocabulary: told_to(tok, "CONTROL", lambda c: c | {99: "<|think|>"}),
    a_part_at_a_time_gives_the_ids_of_the_whole: told_to(data, "encode", lambda f: lambda t, r, s: ([2], [1.0])),
    batches_follow_from_seed_and_step: told_to(data, "random", lambda m: SimpleNamespace(Random=lambda s: m.Random(1))),
    nothing_held_out_is_trained_on: told_to(
        data.Source, "item", lambda f: lambda self, rng, family, level, out, filler=None:
        f(self, rng, family, level, out or rng.random() < 0.1, filler)),
    answers_are_right: told_to(data, "FAMILIES", lambda f: f | {"arithmetic": one_off(f["arithmetic"])}),
    the_checkpoint_fits: told_to(model, "parameter_shapes", lambda f: lambda s: f(s) | {"more": (2000, 1100)}),
    muon_makes_its_update_nearly_orthogonal: told_to(train, "orthogonal", lambda f: lambda g: g / g.norm()),
    the_towers_are_those_of_transformers: told_to(
        model, "rms", lambda f: lambda x, w=None: f(x, None if w is None else 1 + w)),
    the_drafter_is_that_of_transformers: told_to(
        model, "masks", lambda f: lambda s, document, ahead=0: f(s, document)),
}  # fmt: skip


def goes_red(check, source, tokenizer):
    planted, undo = CHECKS[check](tokenizer)
    try:
        check(source, planted)
    except AssertionError:
        return True
    finally:
        undo()
    return False


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--wordnet", default="/usr/share/wordnet", help="data files of wordnet-base")
    a.add_argument("names", nargs="*", help="only checks whose names contain one of these")
    args = a.parse_args()
    torch.set_num_threads(1)
    source = data.Source(english.sentences(args.wordnet))
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train.the_tokenizer(Path(folder), source)
    failed = 0
    for check in CHECKS:
        if args.names and not any(n in check.__name__ for n in args.names):
            continue
        try:
            check(source, tokenizer)
            assert goes_red(check, source, tokenizer), "the planted mistake is not seen"
            print("ok  ", check.__name__, flush=True)
        except AssertionError as why:
            failed += 1
            print("FAIL", check.__name__, "\n    ", why, flush=True)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
