"""Training throughput of a cross-encoder against sentence-transformers' CrossEncoder, on the same rows and the same two threads, in f32, taking
turns: groups of 8 documents (1 relevant), at most 256 tokens, from MiniLM-L6-v2's weights. Not part of CI: it takes some minutes.

    python testdata/peers/reranker_bench.py CONTRAFLOW MINILM ROWS.parquet [TURNS]

ROWS has columns query, positive, negatives (contraflow quickstart --reranker leaves one; its comment and body are taken too). Prints groups per
second of each turn, and the ratio of the best ones.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as L

torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
contraflow, minilm, source = sys.argv[1:4]
turns = int(sys.argv[4]) if len(sys.argv) > 4 else 3
GROUPS, BATCH = 8, 4
work = Path(tempfile.mkdtemp())
read = pq.read_table(source).to_pylist()
rows = []
for i, r in enumerate(read):
    negatives = list(r["negatives"]) + [x.get("positive", x.get("body")) for x in read[i + 1 : i + 8]]
    rows.append((r.get("query", r.get("comment")), r.get("positive", r.get("body")), negatives[:7]))
    if len(rows) == GROUPS + BATCH:
        break
pq.write_table(pa.table({"query": [r[0] for r in rows], "positive": [r[1] for r in rows], "negatives": [r[2] for r in rows],
                         "scores": [[1.0] + [0.0] * 7] * len(rows)}), work / "train.parquet")  # fmt: skip


def ours():
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    recipe = {
        "model": {"path": minilm, "kind": "reranker", "max_length": 256},
        "data": {"train": [{"path": str(work / "train.parquet"), "query": "query", "positive": "positive", "negatives": ["negatives"], "negatives_per_query": "all", "scores": "scores"}], "shuffle": False},
        "batch": {"global_size": BATCH}, "loss": {"name": "list_net"}, "train": {"precision": "f32"}, "eval": {"every": 0}, "save": {"dir": str(out)},
    }  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    subprocess.run([contraflow, "train", "-c", str(work / "recipe.yaml"), "--quiet"], check=True, capture_output=True)
    steps = [x for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in x][1:]
    return sum(x["pairs"] for x in steps) / sum(x["pairs"] / x["pairs_per_s"] for x in steps)


def theirs():
    encoder = CrossEncoder(minilm, device="cpu", num_labels=1, max_length=256).train()
    loss, optimizer, began = L.ListNetLoss(encoder), torch.optim.AdamW(encoder.parameters(), lr=2e-5), 0.0
    for i in range(0, len(rows), BATCH):
        if i == BATCH:
            began = time.perf_counter()
        part = rows[i : i + BATCH]
        value = loss([[r[0] for r in part], [[r[1], *r[2]] for r in part]], [torch.tensor([1.0] + [0.0] * 7) for _ in part])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
    return GROUPS / (time.perf_counter() - began)


best = [0.0, 0.0]
for turn in range(turns):
    speeds = ours(), theirs()
    best = [max(a, b) for a, b in zip(best, speeds)]
    print(f"turn {turn + 1}: contraflow {speeds[0]:.2f} groups/s, CrossEncoder {speeds[1]:.2f}", flush=True)
print(f"best: {best[0]:.2f} and {best[1]:.2f}: {best[0] / best[1]:.1f} times")
shutil.rmtree(work)
