"""Makes bf16.json: how far torch's bf16 autocast is from the float64 goldens beside it. The measure is the project's: per
tensor, the largest difference over the larger of the tensor's largest value and 1e-4 of the model's largest gradient entry.

Rows go through the model one at a time, so that nothing is padded. Needs torch 2.9, transformers 5.
Run: python testdata/golden/bert/bf16.py (seconds; writes only here)
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
transformers.utils.logging.set_verbosity_error()
MODELS = ["minilm-tiny", "gelu-new", "odd-sizes"]


def measure(got, want, largest):
    got, want = got.double(), want.double()
    return float((got - want).abs().max() / max(want.abs().max().item(), 1e-4 * largest))


def main():
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "models": {}}
    for name in MODELS:
        golden = load_file(HERE / f"{name}.safetensors")
        outputs = sorted({k.split("/")[0] for k in golden if "/grad/" in k})
        output = "mean_normalized" if "mean_normalized" in outputs else "mean" if "mean" in outputs else outputs[0]
        pool, normalized = output.replace("_normalized", ""), output.endswith("_normalized")
        model = transformers.BertModel.from_pretrained(HERE / name, add_pooling_layer=False, attn_implementation="eager").eval()
        embeddings, at = [], 0
        r = golden["r"].float()
        loss = 0.0
        for i, n in enumerate(golden["lengths"].tolist()):
            ids = golden["ids"][at : at + n].long()[None]
            at += n
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = model(input_ids=ids).last_hidden_state[0]
            hidden = hidden.float()
            e = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pool]
            e = F.normalize(e, dim=0) if normalized else e
            embeddings.append(e)
            loss = loss + (e * r[i]).sum()
        loss.backward()
        grads = {k.split("/grad/")[1]: v for k, v in golden.items() if k.startswith(output + "/grad/")}
        largest = max(v.abs().max().item() for v in grads.values())
        params = dict(model.named_parameters())
        out["models"][name] = {
            "output": output,
            "embedding": measure(torch.stack(embeddings), golden[f"{output}/embedding"], 0),
            "gradients": {k: measure(params[k].grad, v, largest) for k, v in sorted(grads.items())},
        }
        errors = sorted(out["models"][name]["gradients"].values())
        print(name, output, f"embedding {out['models'][name]['embedding']:.2e}, gradients: median {errors[len(errors) // 2]:.2e}, largest {errors[-1]:.2e}", file=sys.stderr)
    (HERE / "bf16.json").write_text(json.dumps(out, indent=1) + "\n")


main()
