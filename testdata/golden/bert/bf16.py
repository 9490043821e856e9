"""Makes bf16.json: how far torch's bf16 autocast is from the float64 goldens beside it, as ../bf16.py measures it.

Needs torch 2.9, transformers 5. Run: python testdata/golden/bert/bf16.py (seconds; writes only here)
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from bf16 import errors  # noqa: E402

transformers.utils.logging.set_verbosity_error()
MODELS = ["minilm-tiny", "gelu-new", "odd-sizes"]


def main():
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "models": {}}
    for name in MODELS:
        golden = load_file(HERE / f"{name}.safetensors")
        outputs = sorted({k.split("/")[0] for k in golden if "/grad/" in k})
        output = "mean_normalized" if "mean_normalized" in outputs else "mean" if "mean" in outputs else outputs[0]
        model = transformers.BertModel.from_pretrained(HERE / name, add_pooling_layer=False, attn_implementation="eager").eval()
        want = {k.split("/grad/")[1]: v for k, v in golden.items() if k.startswith(output + "/grad/")}
        out["models"][name] = {"output": output} | errors(
            name, model, golden, output.replace("_normalized", ""), output.endswith("_normalized"), golden[f"{output}/embedding"], want, dict(model.named_parameters())
        )
    (HERE / "bf16.json").write_text(json.dumps(out, indent=1) + "\n")


main()
