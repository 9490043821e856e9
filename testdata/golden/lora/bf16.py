"""Makes bf16.json: how far PEFT under torch's bf16 autocast is from the float64 goldens beside it, by the measure of ../bert/bf16.py. Rows
go through the model one at a time, so that nothing is padded.

Needs torch 2.9, transformers 5.23, peft 0.21. Run: python testdata/golden/lora/bf16.py (seconds; writes only here)
"""

import json
import sys
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from transformers import AutoModel

HERE = Path(__file__).resolve().parent
transformers.utils.logging.set_verbosity_error()
CASES = ["bert-all", "bert-save", "qwen3-all"]


def measure(got, want, largest):
    got, want = got.detach().double(), want.double()
    return float((got - want).abs().max() / max(want.abs().max().item(), 1e-4 * largest))


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")


def main():
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__, "models": {}}
    for name in CASES:
        golden = load_file(HERE / f"{name}.safetensors")
        about = json.loads((HERE / f"{name}.json").read_text())
        base = AutoModel.from_pretrained(HERE.parent / about["base"], dtype=torch.float32, attn_implementation="eager")
        model = peft.PeftModel.from_pretrained(base, HERE / name, is_trainable=True).eval()
        embeddings, at, loss = [], 0, 0.0
        r = golden["r"].float()
        for i, n in enumerate(golden["lengths"].tolist()):
            ids = golden["ids"][at : at + n].long()[None]
            at += n
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = model(input_ids=ids).last_hidden_state[0]
            hidden = hidden.float()
            e = F.normalize({"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[about["pooling"]], dim=0)
            embeddings.append(e)
            loss = loss + (e * r[i]).sum()
        loss.backward()
        want = {k.removeprefix("grad/"): v for k, v in golden.items() if k.startswith("grad/")}
        largest = max(v.abs().max().item() for v in want.values())
        got = {plain(k): p.grad for k, p in model.named_parameters() if p.requires_grad}
        out["models"][name] = {
            "embedding": measure(torch.stack(embeddings), golden["embedding"], 0),
            "gradients": {k: measure(got[k], v, largest) for k, v in sorted(want.items())},
        }
        errors = sorted(out["models"][name]["gradients"].values())
        print(name, f"embedding {out['models'][name]['embedding']:.2e}, gradients: median {errors[len(errors) // 2]:.2e}, largest {errors[-1]:.2e}", file=sys.stderr)
    (HERE / "bf16.json").write_text(json.dumps(out, indent=1) + "\n")


main()
