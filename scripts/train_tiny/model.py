"""The Gemma 4 text towers, lean enough to train on two CPU cores, and their export in the published form.

Three kinds: dense with K = V on global layers (31B), the same with a mixture of experts beside the MLP (26B-A4B), and
per-layer embeddings with a tail of layers that read the K and V of others (E2B). The mathematics is that of
transformers' Gemma4ForConditionalGeneration in f32: check.py holds the two against each other. What is leaner: no
modules, no cache, no casts, sliding layers look at two blocks of W keys instead of all, the head runs only where there
is a loss, and every expert runs on every token, which at this size costs less than choosing.

Parameters live in one dict under the published names, so the export is a cast and a save. Shapes: T tokens in B rows,
H hidden, D head dim, Q query heads over one key head, V vocabulary.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

SLIDING, GLOBAL = "sliding_attention", "full_attention"
ROPE = {
    SLIDING: {"rope_theta": 10000.0, "rope_type": "default"},
    GLOBAL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
}
HEAD_DIM = {SLIDING: 256, GLOBAL: 512}
PREFIX = "model.language_model."
SOFTCAP = 30.0
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """What is free in the family; the rest is as published."""

    vocab: int = 2048
    hidden: int = 128
    intermediate: int = 384
    # Global layers in the middle and at the end: what the first one fetches from afar, later layers can still use.
    layers: tuple = (SLIDING, SLIDING, GLOBAL, SLIDING, SLIDING, GLOBAL)
    heads: int = 2
    window: int = 64
    positions: int = 4096
    # V of a global layer is its K.
    k_eq_v: bool = True
    # Layers at the end that have no K and V of their own; their MLP is twice as wide.
    shared: int = 0
    # Width of a layer's own embedding; 0: none.
    ple: int = 0
    # Of a mixture of experts beside the MLP: how many, how many a token goes to, and their width. 0: none.
    experts: int = 0
    chosen: int = 0
    expert_width: int = 0

    def donor(self, i):
        """The layer whose K and V layer i attends to: itself, or the last of its kind that has them.

        Where no layer has any (a drafter), the kind: its K and V are another model's.
        """
        first = len(self.layers) - self.shared
        own = range(first)
        return i if i < first else max((j for j in own if self.layers[j] == self.layers[i]), default=self.layers[i])

    def width(self, i):
        return self.intermediate * (2 if self.donor(i) in range(i) else 1)

    @property
    def embed_scale(self):
        # Rounded to bf16 before it multiplies, as in a served bf16 checkpoint.
        return float(torch.tensor(math.sqrt(self.hidden)).bfloat16())


# What can be trained, by the name of the folder below models/.
KINDS = {
    "tiny": Shape(),
    "tiny-moe": Shape(intermediate=192, experts=16, chosen=4, expert_width=32),
    "tiny-ple": Shape(intermediate=256, layers=(SLIDING, SLIDING, GLOBAL, SLIDING, GLOBAL, SLIDING, SLIDING, GLOBAL),
                      k_eq_v=False, shared=3, ple=32),
}  # fmt: skip


def parameter_shapes(s):
    """Name (without PREFIX) -> shape, in the published order of a layer."""
    shapes = {"embed_tokens.weight": (s.vocab, s.hidden)}
    if s.ple:
        shapes["embed_tokens_per_layer.weight"] = (s.vocab, len(s.layers) * s.ple)
        shapes["per_layer_model_projection.weight"] = (len(s.layers) * s.ple, s.hidden)
        shapes["per_layer_projection_norm.weight"] = (s.ple,)
    for i, kind in enumerate(s.layers):
        p, d = f"layers.{i}.", HEAD_DIM[kind]
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            shapes[f"{p}{norm}_layernorm.weight"] = (s.hidden,)
        shapes[f"{p}layer_scalar"] = (1,)
        shapes[f"{p}self_attn.q_proj.weight"] = (s.heads * d, s.hidden)
        if s.donor(i) == i:
            shapes[f"{p}self_attn.k_proj.weight"] = (d, s.hidden)
            if kind == SLIDING or not s.k_eq_v:
                shapes[f"{p}self_attn.v_proj.weight"] = (d, s.hidden)
        shapes[f"{p}self_attn.o_proj.weight"] = (s.hidden, s.heads * d)
        shapes[f"{p}self_attn.q_norm.weight"] = (d,)
        if s.donor(i) == i:
            shapes[f"{p}self_attn.k_norm.weight"] = (d,)
        shapes[f"{p}mlp.gate_proj.weight"] = (s.width(i), s.hidden)
        shapes[f"{p}mlp.up_proj.weight"] = (s.width(i), s.hidden)
        shapes[f"{p}mlp.down_proj.weight"] = (s.hidden, s.width(i))
        if s.experts:
            shapes[f"{p}router.proj.weight"] = (s.experts, s.hidden)
            shapes[f"{p}router.scale"] = (s.hidden,)
            shapes[f"{p}router.per_expert_scale"] = (s.experts,)
            shapes[f"{p}experts.gate_up_proj"] = (s.experts, 2 * s.expert_width, s.hidden)
            shapes[f"{p}experts.down_proj"] = (s.experts, s.hidden, s.expert_width)
            for norm in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
                shapes[f"{p}{norm}.weight"] = (s.hidden,)
        if s.ple:
            shapes[f"{p}per_layer_input_gate.weight"] = (s.ple, s.hidden)
            shapes[f"{p}per_layer_projection.weight"] = (s.hidden, s.ple)
            shapes[f"{p}post_per_layer_input_norm.weight"] = (s.hidden,)
    shapes["norm.weight"] = (s.hidden,)
    return shapes


def init(s, seed):
    """Fresh parameters. Every branch starts small beside the stream, and attention starts nearly flat."""
    g = torch.Generator().manual_seed(seed)
    params = {}
    for name, shape in parameter_shapes(s).items():
        if "embed_tokens_per_layer" in name:
            # Scaled by sqrt(its width), as large as the normed projection it is added to.
            p = torch.randn(shape, generator=g) / math.sqrt(s.ple)
        elif "embed_tokens" in name:
            # Scaled by sqrt(H) this is a stream of unit size, and as the head it gives logits of unit size.
            p = torch.randn(shape, generator=g) / math.sqrt(s.hidden)
        elif "self_attn" in name and "_norm.weight" in name:
            # q.k of two unit-size heads deviates by sqrt(D); the attention scale is 1, so the norms bring that to 1.
            p = torch.full(shape, shape[0] ** -0.25)
        elif "post_" in name:
            p = torch.full(shape, 1 / math.sqrt(2 * len(s.layers)))
        elif len(shape) == 1:
            p = torch.ones(shape)
        else:
            p = torch.randn(shape, generator=g) / math.sqrt(shape[-1])
        params[name] = p
    return params


class Rms(torch.autograd.Function):
    """y = x / rms(x) * w over the last axis. Written out because autograd's own walks memory twice as often."""

    @staticmethod
    def forward(ctx, x, w):
        r = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_() / x.shape[-1] + EPS).rsqrt_()
        ctx.save_for_backward(x, w, r)
        y = x * r
        return y if w is None else y.mul_(w)

    @staticmethod
    def backward(ctx, g):
        x, w, r = ctx.saved_tensors
        d = x.shape[-1]
        gx = (g * x).reshape(-1, d)
        dw = None if w is None else (r.reshape(1, -1) @ gx).view(d)
        dot = gx.sum(-1) if w is None else gx @ w
        dx = g * r if w is None else (g * w).mul_(r)
        return dx.addcmul_(x, r.pow(3) * dot.reshape(r.shape), value=-1 / d), dw


class Rotate(torch.autograd.Function):
    """RoPE by halves, pairing (i, i + D/2), on x [B, T, heads, D]; pairs from n on do not rotate."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return Rotate.turn(x, cos, sin)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return Rotate.turn(g, cos, -sin), None, None

    @staticmethod
    def turn(x, cos, sin):
        n, half = cos.shape[-1], x.shape[-1] // 2
        a, b = x[..., :n], x[..., half : half + n]
        y = x.clone()
        y[..., :n] = torch.mul(a, cos).addcmul_(b, sin, value=-1)
        y[..., half : half + n] = torch.mul(b, cos).addcmul_(a, sin)
        return y


def rms(x, weight=None):
    return Rms.apply(x, weight)


def attend(q, k, v, mask):
    """q [N, T, Q, D], k and v [N, S, D], mask [N, T, 1, S] is 0 or hugely negative; attention scale 1.

    One key head serves all query heads, so they are rows of one product and nothing is copied.
    """
    n, t, heads, d = q.shape
    scores = torch.bmm(q.reshape(n, t * heads, d), k.transpose(1, 2)).view(n, t, heads, -1)
    p = torch.softmax(scores + mask, -1)
    return torch.bmm(p.view(n, t * heads, -1), v).view(n, t, heads * d)


def blocks(x, w):
    """[B, T, D] -> [B * T/w, 2w, D]: each block of w with the one before it (zeros before the first)."""
    b, t, d = x.shape
    x = F.pad(x, (0, 0, w, 0)).view(b, t // w + 1, w, d)
    return torch.cat([x[:, :-1], x[:, 1:]], 2).view(b * t // w, 2 * w, d)


def rope_tables(kind, length, first=0):
    """cos and sin [T, 1, n] of the n pairs that rotate, of positions from `first` on."""
    d, r = HEAD_DIM[kind], ROPE[kind]
    n = int(r.get("partial_rotary_factor", 1.0) * d / 2)
    inv = r["rope_theta"] ** (-2 * torch.arange(n, dtype=torch.float64) / d)
    angle = torch.arange(first, first + length, dtype=torch.float64)[:, None, None] * inv
    return angle.cos().float(), angle.sin().float()


def masks(s, document, ahead=0):
    """Additive masks of both kinds from document numbers [B, T] (0 is padding), and the RoPE tables of T.

    A token sees its own document only. T must be a multiple of the window W: sliding layers work on blocks of W
    queries against 2W keys, so their cost per token does not grow with T. With `ahead` 1, row t is a query that stands
    at t + 1 and sees keys up to t, of a sliding layer those up to W before it: W + 1 of them.
    """
    b, t = document.shape
    w = s.window
    at = torch.arange(t)
    seen = (document[:, :, None] == document[:, None, :]) & (at[None, :] <= at[:, None])
    keys = F.pad(document, (w, 0), value=-1).unfold(1, 2 * w, w)
    queries = document.view(b, t // w, w)
    q_at, k_at = torch.arange(w)[:, None] + w, torch.arange(2 * w)[None, :]
    near = (queries[..., None] == keys[:, :, None, :]) & (k_at <= q_at) & (k_at > q_at - w - ahead)

    def additive(allowed):
        return torch.where(allowed, 0.0, torch.tensor(-1e9))[:, :, None]

    return {
        GLOBAL: additive(seen),
        SLIDING: additive(near.view(b * t // w, w, 2 * w)),
        "rope": {kind: rope_tables(kind, t, ahead) for kind in (SLIDING, GLOBAL)},
    }


def experts(s, p, r, m):
    """The mixture beside the MLP: r [B, T, H] before any norm -> [B, T, H]."""
    scores = F.linear(rms(r) * p["router.scale"] * s.hidden**-0.5, p["router.proj.weight"])
    probability = torch.softmax(scores, -1)
    top = probability.topk(s.chosen, -1)
    w = top.values / top.values.sum(-1, keepdim=True) * p["router.per_expert_scale"][top.indices]
    weights = torch.zeros_like(probability).scatter(-1, top.indices, w)
    # Switch's balance: least, 1, where every expert is chosen as often and as gladly.
    share = torch.zeros_like(probability).scatter(-1, top.indices, 1.0).mean((0, 1)) / s.chosen
    m.setdefault("balance", []).append(s.experts * (share * probability.mean((0, 1))).sum())
    e = rms(r, p["pre_feedforward_layernorm_2.weight"])
    gate, up = F.linear(e, p["experts.gate_up_proj"].flatten(0, 1)).unflatten(-1, (s.experts, -1)).chunk(2, -1)
    h = F.gelu(gate, approximate="tanh") * up * weights[..., None]
    # Weighted before the down projection, which is linear.
    return F.linear(h.flatten(-2), p["experts.down_proj"].transpose(0, 1).flatten(1))


def layer(s, params, i, x, m):
    kind, prefix = s.layers[i], f"layers.{i}."
    p = {n.removeprefix(prefix): params[n] for n in m["names"][i]}
    b, t, _ = x.shape
    d, (cos, sin) = HEAD_DIM[kind], m["rope"][kind]
    a = rms(x, p["input_layernorm.weight"])
    q = F.linear(a, p["self_attn.q_proj.weight"]).view(b, t, s.heads, d)
    q = Rotate.apply(rms(q, p["self_attn.q_norm.weight"]), cos, sin)
    if s.donor(i) == i:
        k0 = F.linear(a, p["self_attn.k_proj.weight"]).view(b, t, 1, d)
        has_v = "self_attn.v_proj.weight" in p
        v0 = F.linear(a, p["self_attn.v_proj.weight"]).view(b, t, 1, d) if has_v else k0
        k = Rotate.apply(rms(k0, p["self_attn.k_norm.weight"]), cos, sin).view(b, t, d)
        v = rms(v0).view(b, t, d)
        if kind == SLIDING:
            k, v = blocks(k, s.window), blocks(v, s.window)
        m["kv"][i] = k, v
    k, v = m["kv"][s.donor(i)]
    if kind == SLIDING:
        q = q.view(b * t // s.window, s.window, s.heads, d)
    o = attend(q, k, v, m[kind]).view(b, t, s.heads * d)
    x = x + rms(F.linear(o, p["self_attn.o_proj.weight"]), p["post_attention_layernorm.weight"])
    z = rms(x, p["pre_feedforward_layernorm.weight"])
    h = F.gelu(F.linear(z, p["mlp.gate_proj.weight"]), approximate="tanh") * F.linear(z, p["mlp.up_proj.weight"])
    y = F.linear(h, p["mlp.down_proj.weight"])
    if s.experts:
        y = rms(y, p["post_feedforward_layernorm_1.weight"])
        y = y + rms(experts(s, p, x, m), p["post_feedforward_layernorm_2.weight"])
    x = x + rms(y, p["post_feedforward_layernorm.weight"])
    if s.ple:
        g = F.gelu(F.linear(x, p["per_layer_input_gate.weight"]), approximate="tanh") * m["ple"][:, :, i]
        x = x + rms(F.linear(g, p["per_layer_projection.weight"]), p["post_per_layer_input_norm.weight"])
    return x * p["layer_scalar"]


def per_layer_inputs(s, params, ids, x):
    """[B, T, layers, s.ple] from the ids and their scaled embeddings."""
    tok = F.embedding(ids, params["embed_tokens_per_layer.weight"]) * float(torch.tensor(math.sqrt(s.ple)).bfloat16())
    ctx = F.linear(x, params["per_layer_model_projection.weight"]) * s.hidden**-0.5
    shape = (*ids.shape, len(s.layers), s.ple)
    return (rms(ctx.view(shape), params["per_layer_projection_norm.weight"]) + tok.view(shape)) * 0.5**0.5


def names_by_layer(s, params):
    return [[n for n in params if n.startswith(f"layers.{i}.")] for i in range(len(s.layers))]


def states(s, params, ids, m):
    """ids [B, T] -> the state after the final norm [B, T, H]. `m` is that of [`masks`], of this call alone."""
    x = F.embedding(ids, params["embed_tokens.weight"]) * s.embed_scale
    m["kv"] = {}
    m["names"] = names_by_layer(s, params)
    if s.ple:
        m["ple"] = per_layer_inputs(s, params, ids, x)
    for i in range(len(s.layers)):
        x = layer(s, params, i, x, m)
    return rms(x, params["norm.weight"])


def head(params, n):
    """n [.., H] -> soft-capped logits [.., V]."""
    return torch.tanh(F.linear(n, params["embed_tokens.weight"]) / SOFTCAP) * SOFTCAP


def config(s):
    """config.json as published (31B, 26B-A4B or E2B kind)."""
    text = dict(
        attention_bias=False, attention_dropout=0.0, attention_k_eq_v=s.k_eq_v, bos_token_id=2, dtype="bfloat16",
        enable_moe_block=bool(s.experts), eos_token_id=1, final_logit_softcapping=SOFTCAP,
        global_head_dim=HEAD_DIM[GLOBAL], head_dim=HEAD_DIM[SLIDING], hidden_activation="gelu_pytorch_tanh",
        hidden_size=s.hidden, hidden_size_per_layer_input=s.ple, initializer_range=0.02,
        intermediate_size=s.intermediate,
        layer_types=list(s.layers), max_position_embeddings=s.positions, model_type="gemma4_text",
        moe_intermediate_size=s.expert_width or None, num_attention_heads=s.heads, num_experts=s.experts or None,
        num_global_key_value_heads=1 if s.k_eq_v else None, num_hidden_layers=len(s.layers), num_key_value_heads=1,
        num_kv_shared_layers=s.shared, pad_token_id=0, rms_norm_eps=EPS, rope_parameters=ROPE,
        sliding_window=s.window, tie_word_embeddings=True, top_k_experts=s.chosen or None,
        use_bidirectional_attention=None if s.ple else "vision", use_cache=True, use_double_wide_mlp=s.shared > 0,
        vocab_size=s.vocab,
        vocab_size_per_layer_input=s.vocab,
    )  # fmt: skip
    # The real modality ids: they lie outside this vocabulary, so no prompt can hold one.
    modality = dict(
        boi_token_id=255999, boa_token_id=256000, image_token_id=258880, audio_token_id=258881, eoi_token_id=258882,
        eoa_token_index=258883, video_token_id=258884,
    )  # fmt: skip
    return {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
        "text_config": text, "vision_config": None, "audio_config": None, "tie_word_embeddings": True,
        "eos_token_id": [1, 106], **modality, "initializer_range": 0.02,
    }  # fmt: skip


GENERATION = {"bos_token_id": 2, "do_sample": False, "eos_token_id": [1, 106, 50], "pad_token_id": 0}


def export(s, params, folder):
    """Writes config.json, generation_config.json and model.safetensors (bf16) as published."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {PREFIX + n: p.detach().bfloat16().contiguous() for n, p in params.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(s), indent=1) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=1) + "\n")


def load(folder):
    """(Shape, parameters in f32) of an exported folder."""
    folder = Path(folder)
    t = json.loads((folder / "config.json").read_text())["text_config"]
    s = Shape(t["vocab_size"], t["hidden_size"], t["intermediate_size"], tuple(t["layer_types"]),
              t["num_attention_heads"], t["sliding_window"], t["max_position_embeddings"], t["attention_k_eq_v"],
              t["num_kv_shared_layers"], t["hidden_size_per_layer_input"], t["num_experts"] or 0,
              t["top_k_experts"] or 0, t["moe_intermediate_size"] or 0)  # fmt: skip
    return s, {n.removeprefix(PREFIX): p.float() for n, p in load_file(folder / "model.safetensors").items()}
