"""Makes bf16.json: how far PEFT under torch's bf16 autocast is from the float64 goldens beside it, as ../bf16.py measures it.

Needs torch 2.9, transformers 5.23, peft 0.21. Run: python testdata/golden/lora/bf16.py (seconds; writes only here)
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from bf16 import errors  # noqa: E402

transformers.utils.logging.set_verbosity_error()
CASES = ["bert-all", "bert-save", "qwen3-all"]


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")


def main():
    out = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__, "models": {}}
    for name in CASES:
        golden = load_file(HERE / f"{name}.safetensors")
        about = json.loads((HERE / f"{name}.json").read_text())
        base = AutoModel.from_pretrained(HERE.parent / about["base"], dtype=torch.float32, attn_implementation="eager")
        model = peft.PeftModel.from_pretrained(base, HERE / name, is_trainable=True).eval()
        want = {k.removeprefix("grad/"): v for k, v in golden.items() if k.startswith("grad/")}
        trained = {plain(k): p for k, p in model.named_parameters() if p.requires_grad}
        out["models"][name] = errors(name, model, golden, about["pooling"], True, golden["embedding"], want, trained)
    (HERE / "bf16.json").write_text(json.dumps(out, indent=1) + "\n")


main()
