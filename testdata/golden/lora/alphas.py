"""Makes alphas.json: with what PEFT multiplies the factors of bert-qv's modules where adapter_config.json has an alpha_pattern.

Needs torch 2.9, transformers 5.23, peft 0.21. Run: python testdata/golden/lora/alphas.py (seconds; writes only here)
"""

import sys
from pathlib import Path

import peft
import transformers
from transformers import AutoModel

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))
from goldens import dumps  # noqa: E402

transformers.utils.logging.set_verbosity_error()
PATTERNS = [
    {"query": 5, "layer.0.attention.self.query": 9},
    {"layer.0.attention.self.query": 9, "query": 5},
    {r"^encoder\.layer\.[12]\..*value$": 3},
    {"quer": 7, "uery": 6, ".*uery": 2.5},
    {"query|value": 2.5},
    {"encoder": 1, "layer.0": 2, "": 4},
]


def main():
    cases = []
    for pattern in PATTERNS:
        for rslora in (False, True):
            config = peft.LoraConfig.from_pretrained(HERE / "bert-qv")
            config.alpha_pattern, config.use_rslora = pattern, rslora
            model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(HERE.parent / "bert" / "minilm-tiny"), HERE / "bert-qv", config=config)
            scales = {n.removeprefix("base_model.model."): m.scaling["default"] for n, m in model.named_modules() if hasattr(m, "lora_A")}
            cases.append({"alpha_pattern": pattern, "use_rslora": rslora, "scales": scales})
    out = {"peft": peft.__version__, "cases": cases}
    (HERE / "alphas.json").write_text(dumps(out) + "\n")


main()
