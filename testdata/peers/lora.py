"""Checks LoRA adapters both ways against PEFT and sentence-transformers, on small models and on MiniLM:

1. an adapter that PEFT saved, alone or by sentence-transformers, embeds texts in contraflow as it does there, and so does what
   `contraflow merge` makes of it, in sentence-transformers without PEFT;
2. an adapter that contraflow trained loads in sentence-transformers, and in PEFT over the base model, and embeds as in contraflow; merged
   as well;
3. training that goes on with PEFT's adapter has the losses that it has in PEFT, and ends with an adapter that embeds as PEFT's.

    python testdata/peers/lora.py CONTRAFLOW [MINILM]

MINILM is the folder of all-MiniLM-L6-v2. Prints a table. Exits with 1 if a cosine is 0.99999 or less, a loss is off by more than 1e-5 of it, or an adapter does
nothing.
Needs sentence-transformers (6.2 was used), transformers 5.23, peft 0.21, pyarrow.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import AutoModel

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
warnings.filterwarnings("ignore")

contraflow, minilm = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
work = Path(tempfile.mkdtemp())
steps = json.loads((GOLDEN / "steps" / "texts.json").read_text())["steps"]
rows = [row for step in steps for row in step]
texts = [t for row in rows[:60] for t in row]


def decoder():
    """lora/qwen3-tiny with a tokenizer, as sentence-transformers saves it."""
    folder = work / "qwen3"
    shutil.copytree(GOLDEN / "lora" / "qwen3-tiny", folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(GOLDEN / "bert" / "minilm-tiny" / name, folder)
    saved = work / "qwen3-st"
    st = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(24, "lasttoken"), Normalize()], device="cpu")
    st.max_seq_length = 48
    st.save_pretrained(str(saved), create_model_card=False)
    return saved


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")


def ours(folder):
    source, out = work / "texts.parquet", work / "embeddings.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    run(contraflow, "embed", "--model", folder, "--input", source, "--output", out)
    return np.array(pq.read_table(out)["embedding"].to_pylist())


def open_st(folder):
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})


def encode(st):
    return st.encode(texts, prompt="", batch_size=64, convert_to_numpy=True)


def over_base(base, adapter, **more):
    """PEFT's model in sentence-transformers' pooling."""
    st = open_st(base)
    st[0].model = PeftModel.from_pretrained(AutoModel.from_pretrained(base, dtype=torch.float32), str(adapter), **more).base_model.model
    return st


def train(model, out, rows, **more):
    pq.write_table(pa.table({"query": [r[0] for r in rows], "positive": [r[1] for r in rows]}), work / "train.parquet")
    recipe = {
        "model": model, "data": {"train": [{"path": str(work / "train.parquet"), "query": "query", "positive": "positive", "prompts": {}}]},
        "batch": {"global_size": 32, "no_duplicates": False}, "optimizer": {"lr": 3e-2, "schedule": "constant", "warmup_ratio": 0},
        "train": {"max_steps": 5}, "save": {"dir": str(out)},
    } | more  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    return [x["loss"] for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in x]


def goes_on(name, base, adapter, lora, rows):
    """AdamW on all of these rows at once, without dropout, here and in PEFT."""
    st = over_base(base, adapter, is_trainable=True).eval()
    before = encode(st)
    loss, theirs = losses.MultipleNegativesRankingLoss(st), []
    optimizer = torch.optim.AdamW([p for p in st.parameters() if p.requires_grad], lr=1e-3, weight_decay=0)
    for _ in range(4):
        value = loss([st.preprocess([r[k] for r in rows]) for k in (0, 1)], None)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        theirs.append(value.item())
    out = fresh("on")
    values = train(
        {"path": str(adapter), "lora": lora, "dropout": 0}, out, rows, batch={"global_size": len(rows), "no_duplicates": False, "sub_batch": {"rows": 50}},
        loss={"name": "mnrl", "mask_duplicates": False}, train={"max_steps": 4, "epochs": 4, "precision": "f32"},
        optimizer={"lr": 1e-3, "weight_decay": 0, "schedule": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
    )  # fmt: skip
    off = max(abs(a / b - 1) for a, b in zip(values, theirs, strict=True))
    if not off < 1e-5:
        sys.exit(f"{name}, going on: losses {values}, PEFT's {theirs}")
    moved(f"{name}, going on", encode(st), before)
    return off, smallest(f"{name}, going on", ours(out / "model"), encode(st))


def smallest(name, a, b):
    cos = ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min()
    if not cos > 0.99999:
        sys.exit(f"{name}: a cosine is {cos}")
    return cos


def same_rounded(name, folder, want, dtype):
    """Loads as it is, in the type that it was written in, and has the bits of what torch rounds."""
    rounded, got = want.to(dtype).state_dict(), SentenceTransformer(str(folder), device="cpu").state_dict()
    if rounded.keys() != got.keys() or not all(got[k].dtype == v.dtype and torch.equal(got[k], v) for k, v in rounded.items()):
        sys.exit(f"{name}: not what torch rounds to {dtype}")


def moved(name, a, b):
    if np.abs(a - b).max() < 1e-3:
        sys.exit(f"{name}: the adapter does nothing: a comparison would say nothing")


def fresh(name):
    shutil.rmtree(work / name, ignore_errors=True)
    return work / name


def randomize(model):
    torch.manual_seed(1)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn_like(p) / p.shape[1] ** 0.5 * 0.4)


CASES = [
    ("BERT, query and value", GOLDEN / "bert" / "minilm-tiny", dict(r=4, lora_alpha=8, target_modules=["query", "value"])),
    ("BERT, all-linear, rsLoRA", GOLDEN / "bert" / "minilm-tiny", dict(r=3, lora_alpha=6, target_modules="all-linear", use_rslora=True)),
    ("BERT, norms saved", GOLDEN / "bert" / "minilm-tiny", dict(r=2, lora_alpha=4, target_modules=["intermediate.dense"], modules_to_save=["LayerNorm"])),
    ("Qwen3, q_proj and o_proj", decoder(), dict(r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"])),
    ("Qwen3, the last o_proj", "qwen3-st", dict(r=4, lora_alpha=8, target_modules=["layers.1.self_attn.o_proj"])),
    ("Qwen3, all-linear", "qwen3-st", dict(r=4, lora_alpha=8, target_modules="all-linear")),
]  # fmt: skip
if minilm:
    CASES.append(("all-MiniLM-L6-v2, all-linear", minilm, dict(r=8, lora_alpha=16, target_modules="all-linear")))

print("model, targets | PEFT's folder | sentence-transformers' | theirs merged here | ours in sentence-transformers | in PEFT | merged | going on: losses, embeddings")
for name, base, config in CASES:
    base = work / base if base == "qwen3-st" else base
    bare = ours(base)
    # Theirs here.
    peft_model = get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), LoraConfig(**config))
    randomize(peft_model)
    theirs = fresh("peft")
    peft_model.save_pretrained(theirs)
    want = encode(over_base(base, theirs))
    got = ours(theirs)
    moved(name, got, bare)
    figures = [smallest(f"{name}, PEFT's adapter here", got, want)]

    st = open_st(base)
    st.add_adapter(LoraConfig(**config))
    randomize(st)
    saved = fresh("st")
    st.save_pretrained(str(saved), create_model_card=False)
    figures.append(smallest(f"{name}, sentence-transformers' adapter here", ours(saved), encode(st)))
    merged = fresh("merged")
    run(contraflow, "merge", "--model", base, "--adapter", theirs, "--out", merged)
    figures.append(smallest(f"{name}, PEFT's adapter merged", encode(open_st(merged)), want))

    # Ours there.
    lora = {"rank": config["r"], "alpha": config["lora_alpha"], "rslora": config.get("use_rslora", False), "targets": config["target_modules"]}
    if "modules_to_save" in config:
        lora["modules_to_save"] = config["modules_to_save"]
    trained = fresh("trained")
    train({"path": str(base), "lora": lora}, trained, rows)
    got = ours(trained / "model")
    moved(f"{name}, trained here", got, bare)
    figures.append(smallest(f"{name}, ours in sentence-transformers", encode(open_st(trained / "model")), got))
    figures.append(smallest(f"{name}, ours in PEFT", encode(over_base(base, trained / "model")), got))
    merged = fresh("merged")
    run(contraflow, "merge", "--adapter", trained / "model", "--out", merged)
    figures.append(smallest(f"{name}, ours merged", encode(open_st(merged)), got))
    for precision, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        halves = fresh("halves")
        run(contraflow, "merge", "--adapter", trained / "model", "--out", halves, "--precision", precision)
        same_rounded(f"{name}, merged in {precision}", halves, open_st(merged), dtype)
    off, cosine = goes_on(name, base, theirs, lora, rows[:96] if base == minilm else rows)
    print(f"{name} | " + " | ".join(f"{f:.8f}" for f in figures) + f" | {off:.0e} {cosine:.8f}", flush=True)
shutil.rmtree(work)
