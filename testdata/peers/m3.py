"""Checks model.kind m3 both ways against FlagEmbedding, with a random XLM-RoBERTa of BGE-M3's form and a Unigram tokenizer:

1. as FlagEmbedding saves it, and with its weights in pytorch_model.bin as BAAI/bge-m3 has them, the model gives the same three parts in
   contraflow as in BGEM3FlagModel;
2. the first losses of a training run of contraflow, by SGD, are FlagEmbedding's of the same texts: with and without self-distillation,
   and of both forms of distillation from a teacher; the second is behind a step along the gradient;
3. trained in contraflow from an encoder without heads, it loads in BGEM3FlagModel and gives the same three parts as there;
4. pairs with scores or labels, triplets and candidates have the figures, by each part and by all, of compute_score: one pair at a time, as padding has a part in its MaxSim.

    python testdata/peers/m3.py CONTRAFLOW

Exits with 1 if parts differ by 1e-4 of the largest or more, or figures by more than 1e-5. Needs FlagEmbedding (1.4.2 was used), transformers 5.23, pyarrow, and what
tokenize/families.py needs.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tokenize"))

import families as tokenizers_of
import hardtext
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import scipy.stats
import sklearn.metrics
import torch
import transformers
from FlagEmbedding import BGEM3FlagModel
from FlagEmbedding.finetune.embedder.encoder_only.m3 import EncoderOnlyEmbedderM3Model
from FlagEmbedding.finetune.embedder.encoder_only.m3.runner import EncoderOnlyEmbedderM3Runner

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

contraflow = sys.argv[1]
work = Path(tempfile.mkdtemp())
LENGTH = 64


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")
    return reply.stdout


def encoder(folder, dim=None):
    """A random encoder; with heads as FlagEmbedding's trainer saves them if dim is given."""
    tok = transformers.XLMRobertaTokenizerFast(tokenizer_file=str(work / "xlm-roberta" / "tokenizer.json"), model_max_length=LENGTH)
    torch.manual_seed(7)
    config = transformers.XLMRobertaConfig(
        vocab_size=len(tok), hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, max_position_embeddings=130, type_vocab_size=1,
        pad_token_id=tok.pad_token_id, bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id,
    )  # fmt: skip
    base = transformers.XLMRobertaModel(config)
    with torch.no_grad():
        for p in base.parameters():
            p.mul_(6) if p.dim() > 1 else p.add_(torch.randn_like(p) * 0.1)
    base.save_pretrained(folder)
    tok.save_pretrained(folder)
    if dim:
        model = EncoderOnlyEmbedderM3Model(EncoderOnlyEmbedderM3Runner.get_model(str(folder), colbert_dim=dim), tokenizer=tok, normalize_embeddings=True)
        model.save(str(folder))
    return folder


def ours(folder, texts):
    source, out = work / "texts.parquet", work / "parts.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    run(contraflow, "embed", "--model", folder, "--input", source, "--output", out, "--parts", "--max-length", LENGTH)
    return pq.read_table(out).to_pylist()


def theirs(folder, texts, dim):
    model = BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu", colbert_dim=dim)
    return model.encode(texts, batch_size=4, max_length=LENGTH, return_dense=True, return_sparse=True, return_colbert_vecs=True)


def compare(name, folder, texts, dim):
    mine, peer = ours(folder, texts), theirs(folder, texts, dim)
    worst = {}
    for i, row in enumerate(mine):
        lexical = dict(zip(map(str, row["lexical_ids"]), row["lexical_weights"]))
        other = {k: float(v) for k, v in peer["lexical_weights"][i].items()}
        if lexical.keys() != other.keys():
            sys.exit(f"{name}: text {i} has the lexical tokens {sorted(lexical)}, want {sorted(other)}")
        keys = sorted(other)
        for part, got, want in (
            ("dense", row["embedding"], peer["dense_vecs"][i]),
            ("sparse", [lexical[k] for k in keys], [other[k] for k in keys]),
            ("multi-vector", row["token_vectors"], peer["colbert_vecs"][i]),
        ):
            got, want = np.array(got, dtype=np.float64), np.array(want, dtype=np.float64)
            if got.shape != want.shape:
                sys.exit(f"{name}: {part} of text {i} has the shape {got.shape}, want {want.shape}")
            if want.size:
                worst[part] = max(worst.get(part, 0), np.abs(got - want).max() / np.abs(want).max())
    print(f"{name}: " + ", ".join(f"{k} off by {v:.1e}" for k, v in worst.items()))
    if len(worst) < 3 or max(worst.values()) >= 1e-4:
        sys.exit(f"{name}: {worst}")


def measure(folder, texts, dim):
    model = BGEM3FlagModel(str(folder), use_fp16=False, devices="cpu", colbert_dim=dim)
    random = np.random.default_rng(2)
    some = lambda n: [texts[i] for i in random.choice(len(texts), n, replace=False)]
    pairs = [{"a": a, "b": b, "n": n, "s": int(random.integers(6)), "y": bool(i % 3)} for i, (a, b, n) in enumerate(some(3) for _ in range(24))]
    lists = [{"q": texts[i], "p": some(2)} for i in range(4)]
    for row in lists:
        row["n"] = [t for t in some(6) if t not in row["p"]]
    triplets = [(p["a"], p["b"]) for p in pairs] + [(p["a"], p["n"]) for p in pairs]
    candidates = [(row["q"], t) for row in lists for t in row["p"] + row["n"]]
    weights = [1, 0.3, 1]
    all_scores = model.compute_score(triplets + candidates, batch_size=1, max_query_length=LENGTH, max_passage_length=LENGTH, weights_for_different_modes=weights)
    golds = {key: [p[key] for p in pairs] for key in "sy"}
    worst = 0.0
    for part, theirs in {"dense": "dense", "sparse": "sparse", "multi_vector": "colbert", "fused": "colbert+sparse+dense"}.items():
        scores = np.array(all_scores[theirs]) * (sum(weights) if part == "fused" else 1)
        near, far, ranked = scores[: len(pairs)], scores[len(pairs) : len(triplets)], scores[len(triplets) :]
        ndcg, precision = [], []
        for row in lists:
            n = len(row["p"] + row["n"])
            relevant = [t in row["p"] for t in row["p"] + row["n"]]
            ndcg.append(sklearn.metrics.ndcg_score([relevant], [ranked[:n]], k=10))
            precision.append(sklearn.metrics.average_precision_score(relevant, ranked[:n]))
            ranked = ranked[n:]
        for task, rows, columns, want in (
            ("sts", pairs, "a,b,s", {"spearman": scipy.stats.spearmanr(near, golds["s"])[0], "pearson": scipy.stats.pearsonr(near, golds["s"])[0]}),
            ("pair-classification", pairs, "a,b,y", {"ap": sklearn.metrics.average_precision_score(golds["y"], near)}),
            ("triplets", pairs, "a,b,n", {"accuracy": np.mean(near > far)}),
            ("candidates", lists, "q,p,n", {"ndcg@10": np.mean(ndcg), "map": np.mean(precision)}),
        ):
            (work / "task.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
            got = json.loads(run(contraflow, "eval", "--model", folder, "--max-length", LENGTH, f"--{task}", work / "task.jsonl", "--columns", columns, "--part", part, "--json"))
            for key, value in want.items():
                worst = max(worst, abs(got[key] - value))
                if not abs(got[key] - value) <= 1e-5:
                    sys.exit(f"by {part} {task} has {key} {got[key]}, want {value}")
    print(f"figures of pairs, triplets and candidates off by {worst:.1e}")


def objective(folder, dim, texts, temperature, distill, kind, scores, lr):
    """FlagEmbedding's losses of rows (query, positive, negative) before and behind a step of SGD; nothing drops."""
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = EncoderOnlyEmbedderM3Model(
        EncoderOnlyEmbedderM3Runner.get_model(str(folder), colbert_dim=dim), tokenizer=tok, temperature=temperature, normalize_embeddings=True,
        use_self_distill=distill, self_distill_start_step=-1, kd_loss_type=kind or "kl_div",
    )  # fmt: skip
    model.eval()
    model.training = True  # of this module alone: the encoder below drops nothing
    side = lambda some: tok(some, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    documents = [text for _, positive, negative in texts for text in (positive, negative)]
    teacher = [float(v) for row in scores for v in row] if kind else None
    loss = lambda: model(queries=side([q for q, _, _ in texts]), passages=side(documents), teacher_scores=teacher).loss
    first = loss()
    first.backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= lr * p.grad
        return first.item(), loss().item()


lines = [t for t in hardtext.lines(5, 600) if 8 < len(t.strip())]
some = lines[:40] + [" ".join(lines[40:80])]
tokenizers_of.build(work, 2000, 0.5)
saved = encoder(work / "saved", dim=24)
compare("saved by FlagEmbedding, in contraflow", saved, some, 24)
binary = work / "binary"
shutil.copytree(saved, binary, ignore=shutil.ignore_patterns("model.safetensors"))
torch.save(safetensors.torch.load_file(saved / "model.safetensors"), binary / "pytorch_model.bin")
compare("with its weights in pytorch_model.bin", binary, some[:8], 24)
measure(saved, some, 24)

rows = [(lines[100 + i], lines[130 + i], lines[160 + i]) for i in range(16)]
scores = np.random.default_rng(3).normal(0, 2, (16, 2)).astype(np.float32)
columns = {"query": [r[0] for r in rows], "positive": [r[1] for r in rows], "negative": [r[2] for r in rows], "scores": scores.tolist()}
pq.write_table(pa.table(columns), work / "train.parquet")


def train(path, out, steps, optimizer, loss, **model):
    source = {"path": str(work / "train.parquet"), "query": "query", "positive": "positive", "negatives": ["negative"]}
    recipe = {
        "model": {"path": str(path), "kind": "m3", "max_length": LENGTH, "dropout": 0, **model},
        "data": {"train": [{**source, "scores": ["scores"]} if "distillation" in loss else source], "shuffle": False},
        "batch": {"global_size": 16, "no_duplicates": False}, "loss": {"mask_duplicates": False, "temperature": 0.05, **loss},
        "optimizer": optimizer, "train": {"epochs": steps, "precision": "f32"}, "log": {"every": 1}, "save": {"dir": str(out)},
    }  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


fresh = encoder(work / "fresh")
sgd = {"name": "sgd", "lr": 2e-2, "weight_decay": 0, "max_grad_norm": 0, "schedule": "constant", "warmup_ratio": 0}
for i, (distill, kind) in enumerate(((False, ""), (True, ""), (False, "kl_div"), (True, "m3_kd_loss"))):
    loss = {**({"self_distill": True} if distill else {}), **({"distillation": kind} if kind else {})}
    got = [m["loss"] for m in train(saved, work / f"run{i}", 2, sgd, loss)][:2]
    want = objective(saved, 24, rows, 0.05, distill, kind, scores, sgd["lr"])
    print(f"losses, self-distillation {distill}, teacher {kind or 'none'}: {got}, FlagEmbedding's {want}")
    change = want[1] - want[0]
    if abs(got[0] - want[0]) > 1e-5 * want[0] or abs(got[1] - got[0] - change) > 1e-3 * abs(change):
        sys.exit("the losses differ")
    if abs(change) < 1e-3 * want[0]:
        sys.exit("the step changed too little to compare gradients by")
train(fresh, work / "trained", 4, {"lr": 1e-3}, {}, vector_dim=20)
compare("trained in contraflow, in FlagEmbedding", work / "trained" / "model", some, 20)
dense = lambda folder: np.array(json.loads(run(contraflow, "embed", "--model", folder, "--text", some[0])))
if np.abs(dense(work / "trained" / "model") - dense(fresh)).max() < 1e-4:
    sys.exit("training changed nothing: this check would not see a model that is saved as it was loaded")
shutil.rmtree(work)
