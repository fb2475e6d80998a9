#!/usr/bin/env python3
"""The decode steps and prompts of `gemma4-serve bench`, on the same synthetic shapes, by Hugging Face transformers.

    scripts/bench_torch.py --synthetic 12b --rows 1,16 --contexts 1024 --json torch.json [--ours bench.json]

The model is transformers' own Gemma4ForCausalLM (random weights made on the device, bf16, sdpa attention) with its
StaticCache. One decode step is forward, argmax, and the position's increment, captured as one CUDA graph and replayed:
mode `graph` captures the eager kernels, mode `compile` what torch.compile makes of them (graph capture by hand is what
mode="reduce-overhead" does; by hand it cannot silently fall back). The host reads no token between steps, which is
kinder than a server can be. As in our bench, the cache is filled instead of computed: every layer's cells hold random
numbers and its length says `context`. Where there is no CUDA, steps run without graphs: a rehearsal, not a measurement.

Needs torch and transformers with models.gemma4; no network. The JSON is rewritten after every configuration.
"""

import argparse
import inspect
import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import transformers
from transformers import StaticCache
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig


@dataclass
class Shape:
    """What differs between the published models; those of src/model/synthetic.rs."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    global_kv_heads: int | None  # None: as in sliding layers, with a V of their own
    intermediate: int
    window: int = 1024
    every: int = 6  # of `every` layers the last is global
    shared: int = 0  # layers at the end that read another's K and V
    per_layer: int = 0  # width of the per-layer embeddings
    experts: tuple = ()  # number, of which a token goes to, width


SHAPES = {
    "e2b": Shape(1536, 35, 8, 1, None, 6144, 512, 5, shared=20, per_layer=256),
    "e4b": Shape(2560, 42, 8, 2, None, 10240, 512, shared=18, per_layer=256),
    "12b": Shape(3840, 48, 16, 8, 1, 15360),
    "26b-a4b": Shape(2816, 30, 16, 8, 2, 2112, experts=(128, 8, 704)),
    "31b": Shape(5376, 60, 32, 16, 4, 21504),
}
VOCAB, HEAD_DIM, GLOBAL_HEAD_DIM = 262144, 256, 512
WARM_UP_STEPS = 3
COPIES = 4


def main():
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    config = model_config(args)
    started = time.perf_counter()
    model = build(config, device)
    report = {
        "program": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "model": {"name": f"gemma-4-{args.synthetic}", "layers": config.num_hidden_layers,
                  "hidden": config.hidden_size, "vocab": config.vocab_size,
                  "weight_bytes": weight_bytes(model, config, 1)},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "settings": {k: v for k, v in vars(args).items()},
        "start_up_seconds": time.perf_counter() - started,
        "copies": copies(args, device), "prompt": [], "decode": [],
    }
    for tokens in args.prompts:
        report["prompt"].append(prompt(model, args, tokens, device))
        write(args, report)
    for mode in args.modes:
        for context in args.contexts:
            for rows in args.rows:
                point = attempt(model, config, args, mode, rows, context, report, device)
                report["decode"].append(point)
                write(args, report)
                if device.type == "cuda":
                    torch.cuda.empty_cache()
    if args.ours:
        beside(report, json.load(open(args.ours)))
    failed = [point for point in report["decode"] if "left_out" in point]
    text = f"{len(report['decode']) - len(failed)} of {len(report['decode'])} configurations of {', '.join(args.modes)}"
    print(f"numbers: {text}, {report['program']}")
    if failed:
        sys.exit(f"{len(failed)} configurations failed")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",") if part]
    parser.add_argument("--synthetic", choices=sorted(SHAPES), default="12b")
    parser.add_argument("--synthetic-layers", type=int, help="the last so many layers of the pattern")
    parser.add_argument("--rows", type=numbers, default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=numbers, default=[1024])
    parser.add_argument("--prompts", type=numbers, default=[512, 2048])
    parser.add_argument("--modes", type=lambda text: text.split(","), default=["graph"], help="graph, compile")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copy-mib", type=int, default=4096)
    parser.add_argument("--json", required=True)
    parser.add_argument("--ours", help="the JSON of gemma4-serve bench, to print beside")
    args = parser.parse_args()
    for mode in args.modes:
        if mode not in ("graph", "compile"):
            parser.error(f"--modes {mode}: expected graph or compile")
    return args


def model_config(args):
    shape = SHAPES[args.synthetic]
    kept = args.synthetic_layers or shape.layers
    # The last of the layers with their own K and V, and the last of the tail, in the published proportion.
    shared = min(kept * shape.shared // shape.layers, max(kept - 2, 0))
    own, first = shape.layers - shape.shared, kept - shared
    kinds = ["full_attention" if (i + 1) % shape.every == 0 else "sliding_attention" for i in range(shape.layers)]
    kinds = kinds[own - first:own] + kinds[shape.layers - shared:]
    count, top, width = shape.experts or (None, None, None)
    config = Gemma4TextConfig(
        hidden_size=shape.hidden, num_hidden_layers=kept, layer_types=kinds, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, num_global_key_value_heads=shape.global_kv_heads, head_dim=HEAD_DIM,
        global_head_dim=GLOBAL_HEAD_DIM, intermediate_size=shape.intermediate, sliding_window=shape.window,
        vocab_size=VOCAB, attention_k_eq_v=shape.global_kv_heads is not None,
        hidden_size_per_layer_input=shape.per_layer, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=shared,
        use_double_wide_mlp=args.synthetic == "e2b", enable_moe_block=bool(shape.experts), num_experts=count,
        top_k_experts=top, moe_intermediate_size=width, final_logit_softcapping=30.0, max_position_embeddings=262144,
        tie_word_embeddings=True,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    )
    config._attn_implementation = "sdpa"
    if shape.experts:
        # One product over all experts: the plain loop over them asks the device where to go, which no capture allows.
        config._experts_implementation = "grouped_mm"
    return config


def build(config, device):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Gemma4ForCausalLM(config)
    torch.set_default_dtype(default)
    model.eval().requires_grad_(False)
    model.tie_weights()
    # The shape is the claim: global layers have one projection for K and V, of their own head dim.
    for index, layer in enumerate(model.model.layers):
        is_global = config.layer_types[index] == "full_attention"
        if index < config.num_hidden_layers - config.num_kv_shared_layers:
            k_is_v = is_global and config.attention_k_eq_v
            assert (layer.self_attn.v_proj is None) == k_is_v, f"layer {index}: K = V"
        assert layer.self_attn.head_dim == (GLOBAL_HEAD_DIM if is_global else HEAD_DIM), f"layer {index}: head dim"
    return model


def weight_bytes(model, config, rows):
    """Bytes of weights a step reads: rows of the per-layer table are looked up; of experts as many are read as rows
    that choose evenly go to."""
    total = 0
    for name, p in model.named_parameters():
        share = 1.0
        if "embed_tokens_per_layer" in name:
            share = 0.0
        elif ".experts." in name:
            share = 1 - (1 - config.top_k_experts / config.num_experts) ** rows
        total += share * p.numel() * p.element_size()
    return round(total)


def kv_shape(config, index):
    """(heads, head dim) of a layer's cache."""
    shape = next(shape for shape in SHAPES.values() if shape.hidden == config.hidden_size)
    if config.layer_types[index] == "full_attention":
        return shape.global_kv_heads or shape.kv_heads, GLOBAL_HEAD_DIM
    return shape.kv_heads, HEAD_DIM


class Clock:
    """Time stamps in a stream of work: CUDA events, or the host's clock where there are none."""

    def __init__(self, device, count):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(count)] if device.type == "cuda" else None
        self.stamps = [0.0] * count

    def mark(self, i):
        if self.events:
            self.events[i].record()
        else:
            self.stamps[i] = time.perf_counter()

    def ms(self, a, b):
        return self.events[a].elapsed_time(self.events[b]) if self.events else (self.stamps[b] - self.stamps[a]) * 1e3


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def copies(args, device):
    count = (args.copy_mib if device.type == "cuda" else 64) << 20
    source = torch.empty(count, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    clock, rounds = Clock(device, 2), []
    for _ in range(args.rounds + 1):
        clock.mark(0)
        for _ in range(COPIES):
            target.copy_(source)
        clock.mark(1)
        wait(device)
        rounds.append(clock.ms(0, 1) / COPIES)
    rounds = rounds[1:]
    return {"bytes": count, "rounds_ms": rounds,
            "bytes_per_second": spread([2 * count / ms * 1e3 for ms in rounds])}


@torch.inference_mode()
def prompt(model, args, tokens, device):
    ids = torch.arange(1, tokens + 1, device=device).mul_(7919).remainder_(VOCAB)[None]
    clock, rounds = Clock(device, 2), []
    for _ in range(args.rounds + 1):
        wait(device)
        started = time.perf_counter()
        clock.mark(0)
        token = model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax()
        clock.mark(1)
        assert 0 <= int(token) < VOCAB
        first_token_seconds = time.perf_counter() - started
        wait(device)
        rounds.append({"first_token_seconds": first_token_seconds, "device_ms": clock.ms(0, 1)})
    rounds = rounds[1:]
    point = {"tokens": tokens, "rounds": rounds,
             "first_token_ms": spread([r["first_token_seconds"] * 1e3 for r in rounds]),
             "tokens_per_second": spread([tokens / r["device_ms"] * 1e3 for r in rounds])}
    print(f"prompt of {tokens} tokens: first token {ranged(point['first_token_ms'])} ms, "
          f"{point['tokens_per_second']['median']:.0f} tokens/s", flush=True)
    return point


class Step:
    """One decode step over static tensors: token and position advance in place, so that a replay is the next step."""

    def __init__(self, model, config, mode, rows, context, length, device):
        self.model, self.config, self.context = model, config, context
        self.cache = StaticCache(config=config, max_cache_len=length)
        for index, layer in enumerate(self.cache.layers):
            heads, dim = kv_shape(config, index)
            states = torch.zeros(rows, heads, 1, dim, dtype=torch.bfloat16, device=device)
            arguments = inspect.signature(layer.lazy_initialization).parameters
            layer.lazy_initialization(*[states] * len(arguments))
            layer.keys.normal_()
            layer.values.normal_()
            is_sliding = config.layer_types[index] == "sliding_attention"
            if mode == "graph" and is_sliding and context >= config.sliding_window:
                layer.update = full_window_update(layer)
        self.token = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.keys = torch.arange(length, device=device)
        self.window = torch.arange(min(config.sliding_window, length), device=device)
        names = inspect.signature(model.forward).parameters
        self.cache_name = "past_key_values" if "past_key_values" in names else "cache"
        self.reset()

    def reset(self):
        self.token.copy_(torch.arange(1, len(self.token) + 1)[:, None] * 7919 % VOCAB)
        self.position.fill_(self.context)
        for layer in self.cache.layers:
            if torch.is_tensor(getattr(layer, "cumulative_length", None)):
                layer.cumulative_length.fill_(self.context)
        self.host_lengths()

    def host_lengths(self):
        """What the cache counts on the host, set back before every call: a captured step has one value of it."""
        for layer in self.cache.layers:
            for name in ("cumulative_length", "cumulative_length_int"):
                if isinstance(getattr(layer, name, None), int):
                    setattr(layer, name, self.context)

    def compute(self):
        # A cell is visible up to the position; a full window is visible whole. Other rows have the same position.
        masks = {"full_attention": (self.keys <= self.position)[:, None, None],
                 "sliding_attention": (self.window <= self.position)[:, None, None]}
        out = self.model(input_ids=self.token, position_ids=self.position, attention_mask=masks, use_cache=True,
                         **{self.cache_name: self.cache})
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def run(self, compute):
        self.host_lengths()
        self.token.copy_(compute())
        self.position.add_(1)


def full_window_update(layer):
    """transformers' update of a full window: the same roll, store and copy back, without the index tensor that it makes
    on the host each time, which no capture allows (torch.compile makes it a constant)."""

    def update(keys, values, *_, **__):
        for cells, new in ((layer.keys, keys), (layer.values, values)):
            rolled = cells.roll(-1, dims=-2)
            rolled[:, :, -1:] = new
            cells.copy_(rolled)
        return layer.keys, layer.values

    return update


def attempt(model, config, args, mode, rows, context, report, device):
    """One configuration; what fails is named, kept in the JSON and makes the exit code 1, and the next one is tried."""
    try:
        return decode(model, config, args, mode, rows, context, report, device)
    except Exception as error:
        print(f"{mode}, context {context}, {rows} rows failed: {error}", flush=True)
        return {"mode": mode, "context": context, "rows": rows, "left_out": f"{type(error).__name__}: {error}"}


@torch.inference_mode()
def decode(model, config, args, mode, rows, context, report, device):
    length = context + WARM_UP_STEPS + args.steps + 1
    started = time.perf_counter()
    step = Step(model, config, mode, rows, context, length, device)
    compute = step.compute
    if mode == "compile":
        torch._dynamo.reset()
        compute = torch.compile(step.compute, dynamic=False)
    for _ in range(2):
        step.run(compute)
    replay = captured(step, compute) if device.type == "cuda" else lambda: step.run(compute)
    ready_seconds = time.perf_counter() - started

    clock, rounds = Clock(device, args.steps + 1), []
    for _ in range(args.rounds):
        step.reset()
        for _ in range(WARM_UP_STEPS):
            replay()
        wait(device)
        begin = time.perf_counter()
        clock.mark(0)
        for i in range(args.steps):
            replay()
            clock.mark(i + 1)
        wait(device)
        wall_seconds = time.perf_counter() - begin
        rounds.append({"wall_seconds": wall_seconds, "step_ms": [clock.ms(i, i + 1) for i in range(args.steps)]})
        assert bool((step.position == context + WARM_UP_STEPS + args.steps).all()), "a replay is one step"
        assert bool(((step.token >= 0) & (step.token < VOCAB)).all())
    keys = context + WARM_UP_STEPS + args.steps // 2 + 1
    kv = [2 * 2 * heads * dim for heads, dim in (kv_shape(config, i) for i in range(config.num_hidden_layers))]
    seen = [keys if kind == "full_attention" else min(keys, config.sliding_window) for kind in config.layer_types]
    # Layers of the tail read what others have written.
    written = kv[:config.num_hidden_layers - config.num_kv_shared_layers]
    counts = {"weights": weight_bytes(model, config, rows), "kv_read": rows * sum(a * b for a, b in zip(kv, seen)),
              "kv_written": rows * sum(written)}
    step_ms = spread([statistics.mean(r["step_ms"]) for r in rounds])
    wall = spread([r["wall_seconds"] * 1e3 / args.steps for r in rounds])
    bandwidth = sum(counts.values()) / step_ms["median"] * 1e3
    point = {"rows": rows, "context": context, "mode": mode, "ready_seconds": ready_seconds, "bytes": counts,
             "rounds": rounds, "step_ms": step_ms, "wall_step_ms": wall,
             "tokens_per_second": rows / wall["median"] * 1e3, "bytes_per_second": bandwidth,
             "share_of_copy": bandwidth / report["copies"]["bytes_per_second"]["median"]}
    print(f"{mode}, context {context}, {rows} rows: {ranged(step_ms)} ms a step, "
          f"{point['tokens_per_second']:.1f} tokens/s, {100 * point['share_of_copy']:.1f} % of the copy's bandwidth "
          f"(ready in {ready_seconds:.0f} s)", flush=True)
    return point


def captured(step, compute):
    """The step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step.run(compute)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(compute)
    return graph.replay


def ranged(s):
    return f"{s['median']:.3f} ({s['min']:.3f} to {s['max']:.3f})"


def write(args, report):
    with open(args.json, "w") as file:
        json.dump(report, file, indent=1)


def beside(report, ours):
    """Our figures and theirs for the configurations both have."""
    for field in ("layers", "hidden", "vocab"):
        if ours["model"][field] != report["model"][field]:
            sys.exit(f"--ours: {field} is {ours['model'][field]} there and {report['model'][field]} here")
    print(f"\n{'':>34} {'gemma4-serve':>14} {'transformers':>14}   ratio")
    for theirs in (p for p in report["decode"] if "left_out" not in p):
        same = [p for p in ours["decode"] if (p["rows"], p["context"]) == (theirs["rows"], theirs["context"])]
        for point in same:
            if point["left_out"] is None:
                a, b = point["step_ms"]["median"], theirs["step_ms"]["median"]
                what = f"{theirs['mode']}, context {theirs['context']}, {theirs['rows']} rows"
                print(f"{what:>34} {a:>11.3f} ms {b:>11.3f} ms   {b / a:.2f}")
    for theirs in report["prompt"]:
        for point in (p for p in ours["prompt"] if p["tokens"] == theirs["tokens"]):
            a, b = point["first_token_ms"]["median"], theirs["first_token_ms"]["median"]
            what = f"first token of {theirs['tokens']}"
            print(f"{what:>34} {a:>11.3f} ms {b:>11.3f} ms   {b / a:.2f}")


if __name__ == "__main__":
    main()
