"""Trains the embedded checkpoint from scratch on the CPU: python train.py --state DIR --out DIR [--steps N].

--state keeps the tokenizer and a resumable state, written every 50 steps and on SIGTERM or SIGINT (the same command
goes on where it stopped); --out receives the published form when the last step is done. Everything follows from
--seed: data, initial weights, order. With another number of threads the last bits of sums differ, and so does the run.

--measure N runs N steps, prints what one costs and how many fit into 85 minutes, and changes nothing.
"""

import argparse
import re
import shutil
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import chat
import data
import english
import evaluate
import model
import tokenizer as tok

MUON_RATE, ADAM_RATE, MOMENTUM, DECAY = 0.02, 0.002, 0.95, 0.02
WARMUP, FLAT_UNTIL = 0.01, 0.4  # shares of all steps; from FLAT_UNTIL the rate falls linearly to 0
GROWN = 0.4  # from this share of the steps the tasks have their full length
BALANCE = 0.01  # weight of the experts' balance
SAVE_EVERY, EVALUATE_EVERY, REPORT_EVERY = 50, 500, 10


def orthogonal(g, rounds=5):
    """Newton-Schulz towards the nearest semi-orthogonal matrix (Muon, Jordan 2024: the quintic's coefficients)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    # Of a stack of matrices, each.
    x = g / (torch.linalg.matrix_norm(g, keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(rounds):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Optimizer:
    """Muon for the matrices of the layers, Adam for embeddings, routers and every vector."""

    def __init__(self, params):
        self.params = params
        self.matrices = [n for n, p in params.items() if p.ndim >= 2 and "embed" not in n and "router" not in n]
        self.rest = [n for n in params if n not in set(self.matrices)]
        self.first = {n: torch.zeros_like(p) for n, p in params.items()}
        self.second = {n: torch.zeros_like(params[n]) for n in self.rest}
        self.count = 0

    @torch.no_grad()
    def step(self, rate):
        self.count += 1
        for n in self.matrices:
            p, m = self.params[n], self.first[n]
            m.lerp_(p.grad, 1 - MOMENTUM)
            update = orthogonal(p.grad.lerp(m, MOMENTUM))
            p.mul_(1 - rate * MUON_RATE * DECAY)
            p.add_(update, alpha=-rate * MUON_RATE * max(1, p.shape[-2] / p.shape[-1]) ** 0.5)
        b1, b2 = 0.9, 0.98
        for n in self.rest:
            p, m, v = self.params[n], self.first[n], self.second[n]
            m.lerp_(p.grad, 1 - b1)
            v.lerp_(p.grad.square(), 1 - b2)
            scale = (v / (1 - b2**self.count)).sqrt_().add_(1e-8)
            p.addcdiv_(m / (1 - b1**self.count), scale, value=-rate * ADAM_RATE)
        for p in self.params.values():
            p.grad = None

    def state(self):
        return {"first": self.first, "second": self.second, "count": self.count}

    def restore(self, state):
        self.first, self.second, self.count = state["first"], state["second"], state["count"]


def rate_at(step, steps):
    done = (step + 1) / steps
    return min(1.0, done / WARMUP, (1 - step / steps) / (1 - FLAT_UNTIL))


def level_at(step, steps):
    return min(1.0, step / (GROWN * steps))


def loss_of(shape, params, batch):
    """(loss to minimise, mean loss of what the model is to write)."""
    ids, documents, targets, weights = batch
    m = model.masks(shape, documents)
    n = model.states(shape, params, ids, m)
    used = weights > 0
    each = F.cross_entropy(model.head(params, n[used]), targets[used], reduction="none")
    w = weights[used]
    written = w == 1
    loss = (each * w).sum() / w.sum()
    if "balance" in m:
        loss = loss + BALANCE * sum(m["balance"]) / len(m["balance"])
    return loss, each[written].mean().item()


def the_tokenizer(folder, source, other=None):
    """That of `folder`, or else that of the checkpoint `other`, or else one learnt from what the tasks say."""
    if other and not (folder / "tokenizer.json").exists():
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(other / name, folder / name)
    if not (folder / "tokenizer.json").exists():
        control = re.compile("|".join(map(re.escape, tok.CONTROL.values())))
        texts = [p for text in data.corpus(source) for p in control.split(text)]
        tok.save(tok.build(texts, model.Shape().vocab), folder)
    return tok.load(folder)


def measure(args, shape, source, tokenizer):
    params = {n: p.requires_grad_() for n, p in model.init(shape, args.seed).items()}
    optimizer = Optimizer(params)
    print(f"{sum(p.numel() for p in params.values())} parameters, {torch.get_num_threads()} threads")
    took = {False: [], True: []}
    for i in range(-1, args.measure):
        long = i % 3 == 2
        wall, cpu = time.monotonic(), time.process_time()
        batch = data.batch(source, tokenizer, args.seed, 2 if long else i % 3, 1.0, args.step_tokens)
        loss_of(shape, params, batch)[0].backward()
        optimizer.step(1.0)
        wall, cpu = time.monotonic() - wall, time.process_time() - cpu
        if i >= 0:
            took[long].append(wall)
            text = f"{(batch[1] > 0).sum().item()} tokens, {wall:.2f} s wall, {cpu:.2f} s of CPU"
            print(f"step {i}: {'long' if long else 'short'} rows, {text}", flush=True)
    means = [sum(v) / len(v) for v in took.values() if v]
    mean = (2 * means[0] + means[-1]) / 3
    print(f"{1 / mean:.3f} steps a second, {args.step_tokens / mean:.0f} tokens a second with padding")
    print(f"85 minutes are {int(85 * 60 / mean)} steps")


def save_state(path, step, params, optimizer):
    fresh = path.with_suffix(".new")
    torch.save({"step": step, "params": params, "optimizer": optimizer.state()}, fresh)
    fresh.replace(path)  # a stop while writing leaves the state before


def main():
    args = arguments()
    args.state.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    source = data.Source(english.sentences(args.wordnet))
    tokenizer = the_tokenizer(args.state, source, args.tokenizer)
    shape = model.KINDS[args.kind]
    chat.use_form_of(shape)
    if args.measure:
        return measure(args, shape, source, tokenizer)

    params, begin = model.init(shape, args.seed), 0
    optimizer = Optimizer(params)
    saved = args.state / "state.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        begin, params = state["step"], state["params"]
        optimizer = Optimizer(params)
        optimizer.restore(state["optimizer"])
        print(f"goes on at step {begin}")
    for p in params.values():
        p.requires_grad_()

    stop = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(True))
    until = args.steps if args.stop_after is None else min(args.steps, args.stop_after)
    start, seen, recent = time.monotonic(), 0, []
    for step in range(begin, until):
        level = level_at(step, args.steps)
        batch = data.batch(source, tokenizer, args.seed, step, level, args.step_tokens)
        loss, written = loss_of(shape, params, batch)
        loss.backward()
        optimizer.step(rate_at(step, args.steps))
        seen += int((batch[1] > 0).sum())
        recent.append(written)
        done = step + 1
        if done % REPORT_EVERY == 0:
            took = time.monotonic() - start
            left = took / (done - begin) * (args.steps - done) / 60
            text = f"step {done}/{args.steps} loss {sum(recent) / len(recent):.3f} level {level:.2f}"
            print(f"{text} {seen / took:.0f} tokens/s, {left:.0f} min left", flush=True)
            recent = []
        if done % SAVE_EVERY == 0 or done == until or stop:
            save_state(saved, done, params, optimizer)
        if stop:
            print(f"stopped after step {done}; the same command goes on")
            return
        if done % EVALUATE_EVERY == 0:
            print(evaluate.table(evaluate.scores(shape, params, source, tokenizer, 16)), flush=True)

    model.export(shape, params, args.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(args.state / name, args.out / name)
    (args.out / "chat_template.jinja").write_text(chat.template())
    if not args.evaluate:
        return
    shape, rounded = model.load(args.out)
    print("as exported, rounded to bf16:")
    print(evaluate.table(evaluate.scores(shape, rounded, source, tokenizer, args.evaluate)))


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--state", type=Path, required=True, help="folder of the resumable state, outside the tree")
    a.add_argument("--out", type=Path, help="folder the checkpoint is written to")
    a.add_argument("--kind", choices=model.KINDS, default="tiny")
    a.add_argument("--wordnet", type=Path, default="/usr/share/wordnet", help="data files of wordnet-base")
    a.add_argument("--tokenizer", type=Path, help="a checkpoint whose tokenizer is taken in place of a new one")
    a.add_argument("--steps", type=int, default=4200)
    a.add_argument("--stop-after", type=int, help="end, and export, after this step of the schedule")
    a.add_argument("--step-tokens", type=int, default=4096)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--evaluate", type=int, default=100, help="held-out samples of a family at the end")
    a.add_argument("--measure", type=int, metavar="N", help="time N steps and stop")
    args = a.parse_args()
    if not args.measure and not args.out:
        a.error("--out is needed")
    return args


if __name__ == "__main__":
    main()
