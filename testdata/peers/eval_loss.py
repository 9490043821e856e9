"""The loss on held-out rows (eval.loss), and sentence-transformers' eval_loss of the same rows in the same batches, the last of which is not full: of
models as they are, before the first step, and of what contraflow has trained from them. Likewise what its evaluators of pairs, triplets and candidates say, and
what eval.sts, eval.pair_classification, eval.triplets and eval.candidates do; and on NanoBEIR, here a small dataset in its layout, what eval.nanobeir, eval and
rerank do.

    python testdata/peers/eval_loss.py CONTRAFLOW [--seed N] [LOSS ...]

Prints tables. Exits with 1 if a loss is off by more than 1e-5 of it, or a figure of an evaluator by more than 1e-5. Needs sentence-transformers (6.2 was used) and datasets.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import torch
import transformers
from nanobeir import TASKS, Nano
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.cross_encoder import evaluation as CE
from sentence_transformers.cross_encoder import losses as C
from sentence_transformers.sentence_transformer import evaluation as E
from sentence_transformers.sentence_transformer import losses as L

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
datasets.disable_progress_bars()
parser = argparse.ArgumentParser()
parser.add_argument("contraflow")
parser.add_argument("only", nargs="*")
parser.add_argument("--seed", type=int, default=5)
args = parser.parse_args()
work = Path(tempfile.mkdtemp())
golden = Path(__file__).resolve().parents[1] / "golden"
tiny, cross = golden / "bert" / "minilm-tiny", golden / "rerank" / "cross"
random.seed(args.seed)
ROWS, BATCH = 31, 13
words = "cat dog bird fish tree river road house city stone bread water fire wind rain snow sun".split()


def text():
    return " ".join(random.choice(words) for _ in range(random.randint(1, 9)))


def rows(name):
    out = [
        {"q": text(), "p": text(), "n": text(), "grade": round(random.random(), 3), "binary": i * 7 % 5 % 2, "class": i % 4}
        for i in range(ROWS)
    ]  # fmt: skip
    for i, r in enumerate(out):
        r["good"] = [r["p"], r["n"]][: 1 + i % 2]
        r["others"] = [t for t in (text() for _ in range(2 + i % 4)) if t not in r["good"]]  # whose scores are equal here, but for rounding there
        r["ranked"] = r["others"][:2] + [r["p"]] * (i % 3 > 0) + r["others"][2:]
    (work / name).write_text("".join(json.dumps(r) + "\n" for r in out))
    return out


train, dev = rows("train.jsonl"), rows("dev.jsonl")
PAIR = "query: q, positive: p"
MNRL = "name: mnrl, mask_duplicates: false"
PROMPTS = ', prompts: {query: "find: ", document: "text: "}'

# name: the recipe's loss, its columns, the peer's loss of a model, its columns, the label's first, and prompts
CASES = {
    "mnrl": (MNRL, PAIR + ", negatives: n", L.MultipleNegativesRankingLoss, ["q", "p", "n"], None),
    "mnrl, prompts": (MNRL, PAIR + PROMPTS, L.MultipleNegativesRankingLoss, ["q", "p"], {"q": "find: ", "p": "text: "}),
    "cached": (MNRL, PAIR, lambda m: L.CachedMultipleNegativesRankingLoss(m, mini_batch_size=4), ["q", "p"], None),
    "symmetric": (MNRL + ", directions: [query_to_doc, doc_to_query], partition_mode: per_direction", PAIR, L.MultipleNegativesSymmetricRankingLoss, ["q", "p"], None),
    "matryoshka": (
        MNRL + ", matryoshka: {dims: [32, 8], weights: [1, 0.5]}", PAIR,
        lambda m: L.MatryoshkaLoss(m, L.MultipleNegativesRankingLoss(m), [32, 8], [1, 0.5]), ["q", "p"], None),
    "gist": (f"name: gist, mask_duplicates: false, guide: {tiny}", PAIR, lambda m: L.GISTEmbedLoss(m, SentenceTransformer(str(tiny), device="cpu")), ["q", "p"], None),
    "cosent": ("name: cosent", PAIR + ", label: grade", L.CoSENTLoss, ["q", "p", "grade"], None),
    "cosine_similarity": ("name: cosine_similarity", PAIR + ", label: grade", L.CosineSimilarityLoss, ["q", "p", "grade"], None),
    "triplet": ("name: triplet", PAIR + ", negatives: n", L.TripletLoss, ["q", "p", "n"], None),
    "batch_hard_triplet": ("name: batch_hard_triplet", "query: q, label: class", L.BatchHardTripletLoss, ["q", "class"], None),
    "bce": ("name: bce", PAIR + ", label: binary", C.BinaryCrossEntropyLoss, ["q", "p", "binary"], None),
}  # fmt: skip


def in_order(dataset, batch_size, drop_last, **more):
    return DefaultBatchSampler(torch.utils.data.SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)


def theirs(folder, loss, columns, prompts):
    data = datasets.Dataset.from_list([{("label" if c in ("grade", "binary", "class") else c): r[c] for c in columns} for r in dev])
    kind, trainer, arguments = SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    if loss.__module__.startswith(C.__name__):
        kind, trainer, arguments = CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
        data = data.cast_column("label", datasets.Value("float32"))
    model = kind(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    if kind is SentenceTransformer and prompts is None:
        prompts = {c: model.prompts["query" if c == "q" else "document"] for c in columns if c in ("q", "p", "n")}
    settings = {"prompts": prompts} if prompts else {}
    how = arguments(output_dir=str(work / "out"), per_device_eval_batch_size=BATCH, batch_sampler=in_order, report_to=[], use_cpu=True, disable_tqdm=True, **settings)
    t = trainer(model=model, args=how, eval_dataset=data, loss=loss(model))
    t.remove_callback(transformers.PrinterCallback)
    return t.evaluate()["eval_loss"]


def ours(model, kind, loss, columns, mesh):
    shutil.rmtree(work / "run", ignore_errors=True)
    (work / "recipe.yaml").write_text(f"""
model: {{path: {model}{kind}}}
data: {{train: [{{path: {work / "train.jsonl"}, {columns}}}]}}
batch: {{global_size: {BATCH}, no_duplicates: false}}
loss: {{{loss}}}
optimizer: {{lr: 1e-3}}
train: {{max_steps: 4}}
eval: {{at_start: true, loss: {{path: {work / "dev.jsonl"}, {columns}}}}}
mesh: {{{mesh}}}
save: {{dir: {work / "run"}}}
""")
    subprocess.run([args.contraflow, "train", "-c", work / "recipe.yaml", "--quiet"], check=True)
    lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    return [e["loss"] for e in lines if e.get("metric") == "loss"]


print("loss | sentence-transformers: before, after | relative errors | on 2 ranks")
bad = []
for name, (loss, columns, peer, texts, prompts) in CASES.items():
    if args.only and name not in args.only:
        continue
    model, kind = (cross, ", kind: reranker") if name == "bce" else (tiny, "")
    before, errors = theirs(model, peer, texts, prompts), []
    for mesh in ("replicate: 1", "replicate: 2"):
        first, last = ours(model, kind, loss, columns, mesh)
        after = theirs(work / "run" / "model", peer, texts, prompts)
        errors.append([abs(first - before) / before, abs(last - after) / after])
    print(f"{name} | {before:.6f} {after:.6f} | {errors[0][0]:.0e} {errors[0][1]:.0e} | {errors[1][0]:.0e} {errors[1][1]:.0e}", flush=True)
    if not max(max(e) for e in errors) < 1e-5:
        bad.append(name)

def evaluators(folder, kind):
    """Theirs, by the names that ours have: the evaluator of pairs reads texts as they are, where ours puts the queries' prompt before them."""
    a, b, grades, labels = [r["q"] for r in dev], [r["p"] for r in dev], [r["grade"] for r in dev], [r["binary"] for r in dev]
    if kind:
        model = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity(), model_kwargs={"dtype": torch.float32})
        pairs = list(zip(a, b))
        scored, classified = CE.CrossEncoderCorrelationEvaluator(pairs, grades)(model), CE.CrossEncoderClassificationEvaluator(pairs, labels)(model)
        classified, triplets = {k.replace("average_precision", "ap"): v for k, v in classified.items()}, {}
        samples = [{"query": r["q"], "positive": r["good"], "documents": r["ranked"]} for r in dev]
        ranked = CE.CrossEncoderRerankingEvaluator(samples, always_rerank_positives=False)(model)
    else:
        model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        triplets = E.TripletEvaluator(a, b, [r["n"] for r in dev])(model)
        ranked = E.RerankingEvaluator([{"query": r["q"], "positive": r["good"], "negative": r["others"]} for r in dev])(model)
        a, b = ([model.prompts["query"] + x for x in texts] for texts in (a, b))
        scored, classified = E.EmbeddingSimilarityEvaluator(a, b, grades)(model), E.BinaryClassificationEvaluator(a, b, labels)(model)
    plain = [{k.replace("cosine_", "").replace("_cosine", ""): v for k, v in x.items()} for x in (scored, classified, triplets, ranked)]
    return dict(zip(("sts", "classes", "triplets", "candidates"), plain))


def compare(model, kind, loss):
    shutil.rmtree(work / "run", ignore_errors=True)
    (work / "recipe.yaml").write_text(f"""
model: {{path: {model}{kind}}}
data: {{train: [{{path: {work / "train.jsonl"}, {PAIR}, negatives: n}}]}}
batch: {{global_size: {BATCH}, no_duplicates: false}}
loss: {{{loss}}}
optimizer: {{lr: 1e-3}}
train: {{max_steps: 4}}
eval:
  at_start: true
  sts: {{name: sts, path: {work / "dev.jsonl"}, a: q, b: p, score: grade}}
  pair_classification: {{name: classes, path: {work / "dev.jsonl"}, a: q, b: p, label: binary}}
  triplets: {{name: triplets, path: {work / "dev.jsonl"}, query: q, positive: p, negative: n}}
  candidates: {{name: candidates, path: {work / "dev.jsonl"}, query: q, positive: good, {"documents: ranked, found: true" if kind else "negative: others"}}}
save: {{dir: {work / "run"}}}
""")
    subprocess.run([args.contraflow, "train", "-c", work / "recipe.yaml", "--quiet"], check=True)
    lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    compared = 0
    for which, line in (("before", [e for e in lines if "metric" in e][0]), ("after", [e for e in lines if "metric" in e][-1])):
        want = evaluators(model if which == "before" else work / "run" / "model", kind)
        for task in line["tasks"]:
            for name, value in task["eval"].items():
                v = want[task["name"]].get(name)
                if v is not None:
                    compared += 1
                    print(f"{'reranker' if kind else 'embedder'} {which} | {task['name']} {name} | {v:.6f} | {abs(v - value):.0e}", flush=True)
                    if not abs(v - value) < 1e-5:
                        bad.append(f"{which} {task['name']} {name}")
    if compared != (30 if kind else 28):
        bad.append(f"{compared} figures")


def nanobeir():
    nano = Nano(args.contraflow, work, words, args.seed)
    where = {"dataset_names": TASKS, "dataset_id": str(nano.folder)}
    prompt = {"query_prompts": "ask: ", "corpus_prompts": ""}
    embedder = lambda folder, **more: E.NanoBEIREvaluator(**where, **more, precision_recall_at_k=[100])(SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}))
    nano.eval("embedder", tiny, embedder(tiny), "cosine")
    identity = torch.nn.Identity()
    reranker = lambda folder, **more: CE.CrossEncoderNanoBEIREvaluator(**where, **more)(CrossEncoder(str(folder), device="cpu", activation_fn=identity, model_kwargs={"dtype": torch.float32}))
    nano.rerank("reranker", cross, reranker(cross), 100)
    nano.rerank("reranker, of what was found", cross, reranker(cross, rerank_k=30, always_rerank_positives=False), 30, "--found")
    for model, kind, loss, evaluate, mean, of in (
        (tiny, "", MNRL, lambda folder: embedder(folder, **prompt), "NanoBEIR_mean_cosine", "_cosine"),
        (cross, ", kind: reranker", "name: cross_entropy", reranker, "NanoBEIR_R100_mean", "_R100"),
    ):
        shutil.rmtree(work / "run", ignore_errors=True)
        more = "" if kind else ', prompts: {query: "ask: "}'
        (work / "recipe.yaml").write_text(f"""
model: {{path: {model}{kind}}}
data: {{train: [{{path: {work / "train.jsonl"}, {PAIR}, negatives: n}}]}}
batch: {{global_size: {BATCH}, no_duplicates: false}}
loss: {{{loss}}}
optimizer: {{lr: 1e-3}}
train: {{max_steps: 4}}
eval: {{at_start: true, nanobeir: {{tasks: [{", ".join(TASKS)}]{more}}}}}
save: {{dir: {work / "run"}}}
""")
        nano.run("train", "-c", work / "recipe.yaml", "--quiet")
        lines = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines() if '"metric"' in line]
        for which, line, folder in (("before", lines[0], model), ("after", lines[-1], work / "run" / "model")):
            figures = {t["name"]: t["eval"] for t in line["tasks"]} | {"mean": line["eval"] | {"ndcg@10": line["value"]}}
            nano.compare(f"a recipe's {'reranker' if kind else 'embedder'} {which}", figures, evaluate(folder), mean, of)


if not args.only:
    nanobeir()
    print("evaluators | figure | sentence-transformers | error")
    compare(tiny, "", MNRL)
    compare(cross, ", kind: reranker", "name: cross_entropy")
shutil.rmtree(work)
if bad:
    sys.exit(f"off by more than 1e-5: {bad}")
