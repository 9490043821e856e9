"""Takes a LoRA step of a decoder of Qwen3-0.6B's shape, with random weights, on the CPU: a cached batch of 64 pairs of 128 tokens with
activation checkpointing. Prints the memory that contraflow predicts and what the process had resident at most.

    python testdata/peers/lora_large.py CONTRAFLOW [STEPS]

Exits with 1 if the peak is 12 GiB or more, or more than 10 % off the prediction. Takes 3 GB of disk and some minutes. Needs numpy and
pyarrow.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HIDDEN, LAYERS, HEADS, KV, DIM, FFN, VOCAB = 1024, 28, 16, 8, 128, 3072, 151936
PAIRS, TOKENS = 64, 128
contraflow, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
work = Path(tempfile.mkdtemp())
model = work / "model"
model.mkdir()
TOKENIZER = Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny"

shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
for layer in range(LAYERS):
    shapes |= {
        f"layers.{layer}.{name}.weight": shape
        for name, shape in {
            "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,), "self_attn.q_norm": (DIM,), "self_attn.k_norm": (DIM,),
            "self_attn.q_proj": (HEADS * DIM, HIDDEN), "self_attn.k_proj": (KV * DIM, HIDDEN), "self_attn.v_proj": (KV * DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * DIM), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
        }.items()
    }  # fmt: skip
header, at = {"__metadata__": {"format": "pt"}}, 0
for name, shape in shapes.items():
    size = 2 * int(np.prod(shape))
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
    at += size
head = json.dumps(header).encode()
head += b" " * (-len(head) % 8)
rng = np.random.default_rng(1)
with open(model / "model.safetensors", "wb") as f:
    f.write(len(head).to_bytes(8, "little") + head)
    for shape in shapes.values():
        values = np.ones(shape, np.float32) if len(shape) == 1 else rng.standard_normal(shape, np.float32) * 0.02
        f.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())
        del values
(model / "config.json").write_text(json.dumps({
    "architectures": ["Qwen3Model"], "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM, "intermediate_size": FFN, "max_position_embeddings": 32768,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 0,
}))  # fmt: skip
for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
    shutil.copy(TOKENIZER / name, model)
words = [w for w in (TOKENIZER / "vocab.txt").read_text().split() if w.isalpha()]
texts = [" ".join(rng.choice(words, TOKENS + 20)) for _ in range(2 * PAIRS * steps)]  # every one is cut
pq.write_table(pa.table({"query": texts[::2], "positive": texts[1::2]}), work / "train.parquet")
recipe = {
    "model": {"path": str(model), "pooling": "last", "normalize": True, "max_length": TOKENS, "activation_checkpointing": True,
              "lora": {"rank": 16, "alpha": 32, "dropout": 0.05, "targets": "all-linear"}},
    "data": {"train": [{"path": str(work / "train.parquet"), "query": "query", "positive": "positive"}]},
    "batch": {"global_size": PAIRS, "sub_batch": {"rows": 16}, "cache": "always", "no_duplicates": False},
    "train": {"max_steps": steps}, "save": {"dir": str(work / "run")},
}  # fmt: skip
(work / "recipe.yaml").write_text(json.dumps(recipe))
reply = subprocess.run([contraflow, "train", "-c", str(work / "recipe.yaml")], capture_output=True, text=True)
output = reply.stdout + reply.stderr
if reply.returncode:
    sys.exit(output)
print(output)
number, unit = re.search(r"memory  at most ([\d.]+) ([GMK]iB)", output).groups()
predicted = float(number) * {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}[unit]
lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
peak = max(line.get("peak_mem_bytes", 0) for line in lines)
print(f"peak {peak / 2**30:.2f} GiB resident, predicted {predicted / 2**30:.2f} GiB: {100 * (predicted / peak - 1):+.1f} %")
print(f"the adapter takes {(work / 'run' / 'model' / 'adapter_model.safetensors').stat().st_size / 1e6:.1f} MB")
shutil.rmtree(work)
if peak >= 12 * 2**30 or abs(predicted / peak - 1) > 0.1:
    sys.exit("outside of 12 GiB or of 10 %")
