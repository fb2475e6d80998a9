"""Logits of `gemma4-serve score` against Hugging Face's on held-out samples: python against_hf.py FOLDER --server BIN.

The golden gate's rules: the mean distance to Hugging Face in f32 is at most 1.5 times that of its own bf16 eager run;
the largest logit is the same token wherever the two largest of the f32 run differ by more than 1; large logits are not
biased. Ids go through the served path for prompts, a sample after another, each from its own BOS.
"""

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Gemma4ForConditionalGeneration

import chat
import data
import english
import model
import tokenizer as tok


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder", type=Path)
    a.add_argument("--server", type=Path, required=True, help="the gemma4-serve binary")
    a.add_argument("--families", nargs="+", default=data.EVALUATED)
    a.add_argument("--wordnet", type=Path, default="/usr/share/wordnet")
    args = a.parse_args()
    torch.set_num_threads(1)
    chat.use_form_of(model.load(args.folder)[0])
    source, tokenizer = data.Source(english.sentences(args.wordnet)), tok.load(args.folder)
    rng = random.Random("against hf")
    samples = [source.sample(rng, family, out=True) for family in args.families]
    ids = [tokenizer.encode(s.prompt + s.output, add_special_tokens=False).ids for s in samples]
    theirs = {}
    for dtype in (torch.float32, torch.bfloat16):
        hf = Gemma4ForConditionalGeneration.from_pretrained(args.folder, dtype=dtype, attn_implementation="eager")
        with torch.no_grad():
            theirs[dtype] = [hf(input_ids=torch.tensor([i])).logits[0].float() for i in ids]
    ours = [score(args.server, args.folder, i) for i in ids]

    f32, bf16, we = (torch.cat(x) for x in (theirs[torch.float32], theirs[torch.bfloat16], ours))
    apart, hf_apart = (we - f32).abs().mean().item(), (bf16 - f32).abs().mean().item()
    top = f32.topk(2, -1).values
    clear = top[:, 0] - top[:, 1] > 1
    differ = int((we.argmax(-1) != f32.argmax(-1))[clear].sum())
    large = f32.abs() > 12
    bias = ((we - f32) * f32.sign())[large].mean().item() if large.any() else 0.0
    print(f"{len(f32)} positions of {len(samples)} samples")
    print(f"mean distance to f32: ours {apart:.4f}, of Hugging Face's bf16 {hf_apart:.4f}")
    print(f"the largest logit differs at {differ} of {int(clear.sum())} positions with a gap above 1; bias {bias:+.3f}")
    holds = apart <= 1.5 * hf_apart and differ == 0 and abs(bias) <= 0.2
    print("agrees" if holds else "DOES NOT AGREE")
    raise SystemExit(not holds)


def score(server, folder, ids):
    with tempfile.TemporaryDirectory() as place:
        Path(place, "ids.json").write_text(json.dumps(ids))
        out = Path(place, "logits.safetensors")
        subprocess.run([server, "score", "--model", folder, "--device", "soft", "--ids", Path(place, "ids.json"),
                        "--out", out], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        return load_file(out)["logits"]


if __name__ == "__main__":
    main()
