"""One training step of every loss of embedders, on rows with templates, lists, teachers' scores and prompts, in contraflow and with
sentence-transformers: the loss and the norm of all parameters' gradients. Ours is computed plainly, and on 3 ranks with unequal rows and
sub-batches that are embedded twice.

    python testdata/peers/losses.py CONTRAFLOW [--seed N] [LOSS ...]

Prints a table. Exits with 1 if a loss is off by more than 1e-5 of it, or a norm by more than 1e-5. Needs sentence-transformers (6.2 was used).
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

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as L

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
parser = argparse.ArgumentParser()
parser.add_argument("contraflow")
parser.add_argument("only", nargs="*")
parser.add_argument("--seed", type=int, default=3)
args = parser.parse_args()
work = Path(tempfile.mkdtemp())
tiny = Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny"
random.seed(args.seed)
model = SentenceTransformer(str(tiny), device="cpu").eval()  # without dropout
guide = SentenceTransformer(str(tiny), device="cpu")
SIZE, ROWS = model.get_embedding_dimension(), 13
words = "cat dog bird fish tree river road house city stone bread water fire wind rain snow sun".split()


def text():
    return " ".join(random.choice(words) for _ in range(random.randint(1, 9)))


def number():
    return round(random.gauss(0, 1), 3)


rows = [
    {
        "q": text(), "p": text(), "n1": text(), "n2": text(), "list": [text() for _ in range(3)], "title": random.choice(["a fish", "b", None]),
        "binary": i * 7 % 5 % 2, "grade": round(random.random(), 3), "class": i % 4, "margin": number(),
        "scores": [number() for _ in range(4)], "ps": number(), "ns": [number() for _ in range(3)], "teacher": [number() for _ in range(SIZE)],
    }
    for i in range(ROWS)
]  # fmt: skip
rows[5]["p"], rows[7]["q"] = rows[2]["p"], rows[3]["q"]
(work / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def column(key):
    return [r[key] for r in rows]


def values(key):
    return torch.tensor(column(key), dtype=torch.float32)


Q, P, N1, N2 = (column(k) for k in ("q", "p", "n1", "n2"))
LISTS = [[r["list"][k] for r in rows] for k in range(3)]
JOINED = [((r["title"] or "") + " " + r["p"]).strip() for r in rows]
SCORES = torch.tensor([[r["ps"], *r["ns"]] for r in rows])
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
PAIR, LIST = "query: q, positive: p", "negatives: list, negatives_per_query: all"
GIST = f"name: gist, mask_duplicates: false, guide: {tiny}"
MNRL = "name: mnrl, mask_duplicates: false"


class Mean(list):
    """Losses of several datasets' batches, which make one step: their mean."""


# name: the recipe's loss, its columns (of several datasets with | in between), the peer's loss, its columns and labels
CASES = {
    "mnrl": (MNRL, PAIR, L.MultipleNegativesRankingLoss(model), [Q, P], None),
    "directions": (
        MNRL + f", temperature: 0.1, directions: [{', '.join(DIRECTIONS)}]", PAIR + ", negatives: [n1, list], negatives_per_query: all",
        L.MultipleNegativesRankingLoss(model, scale=10, directions=DIRECTIONS), [Q, P, N1, *LISTS], None),
    "hardness": (
        MNRL + ", hardness_mode: hard_negatives, hardness_strength: 9, directions: [doc_to_query, query_to_doc], partition_mode: per_direction", PAIR + ", negatives: [n1, n2]",
        L.MultipleNegativesRankingLoss(model, hardness_mode="hard_negatives", hardness_strength=9.0, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"), [Q, P, N1, N2], None),
    "template": (MNRL, 'query: q, positive: "{title} {p}"', L.MultipleNegativesRankingLoss(model), [Q, JOINED], None),
    "gist": (GIST, PAIR + ", negatives: n1", L.GISTEmbedLoss(model, guide), [Q, P, N1], None),
    "gist, relative": (
        GIST + ", margin: 0.1, margin_strategy: relative, contrast_anchors: false, scale: 20", PAIR + ", negatives: n1",
        L.GISTEmbedLoss(model, guide, temperature=0.05, margin=0.1, margin_strategy="relative", contrast_anchors=False), [Q, P, N1], None),
    "cosent": ("name: cosent", PAIR + ", label: grade", L.CoSENTLoss(model), [Q, P], values("grade")),
    "angle": ("name: angle", PAIR + ", label: grade", L.AnglELoss(model), [Q, P], values("grade")),
    "cosine_similarity": ("name: cosine_similarity", PAIR + ", label: grade", L.CosineSimilarityLoss(model), [Q, P], values("grade")),
    "contrastive": ("name: contrastive", PAIR + ", label: binary", L.ContrastiveLoss(model), [Q, P], values("binary")),
    "online_contrastive": ("name: online_contrastive", PAIR + ", label: binary", L.OnlineContrastiveLoss(model), [Q, P], values("binary")),
    "triplet": ("name: triplet", PAIR + ", negatives: n1", L.TripletLoss(model), [Q, P, N1], None),
    "triplet, cosine": (
        "name: triplet, distance: cosine, margin: 0.3", PAIR + ", negatives: n1",
        L.TripletLoss(model, distance_metric=L.TripletDistanceMetric.COSINE, triplet_margin=0.3), [Q, P, N1], None),
    "batch_hard_triplet": ("name: batch_hard_triplet", "query: q, label: class", L.BatchHardTripletLoss(model), [Q], values("class")),
    "batch_hard_soft_margin_triplet": ("name: batch_hard_soft_margin_triplet", "query: q, label: class", L.BatchHardSoftMarginTripletLoss(model), [Q], values("class")),
    "batch_semi_hard_triplet": ("name: batch_semi_hard_triplet", "query: q, label: class", L.BatchSemiHardTripletLoss(model), [Q], values("class")),
    "batch_all_triplet": ("name: batch_all_triplet", "query: q, label: class", L.BatchAllTripletLoss(model), [Q], values("class")),
    "margin_mse": ("name: margin_mse", f"{PAIR}, {LIST}, scores: scores", L.MarginMSELoss(model), [Q, P, *LISTS], values("scores")),
    "margin_mse, label": ("name: margin_mse", PAIR + ", negatives: n1, label: margin", L.MarginMSELoss(model), [Q, P, N1], values("margin")),
    "distill_kl": ("name: distill_kl, temperature: 2", f"{PAIR}, {LIST}, scores: [ps, ns]", L.DistillKLDivLoss(model, temperature=2.0), [Q, P, *LISTS], SCORES),
    "mse": ("name: mse", PAIR + ", teacher: teacher", L.EmbedDistillLoss(model, distance_metric="mse"), [Q, P], values("teacher")),
    "mse, cosine": ("name: mse, distance: cosine", "query: q, teacher: teacher", L.EmbedDistillLoss(model, distance_metric="cosine"), [Q], values("teacher")),
    "matryoshka of mnrl": (
        MNRL + ", matryoshka: {dims: [32, 8], weights: [1, 0.5]}", PAIR + ", negatives: n1",
        L.MatryoshkaLoss(model, L.MultipleNegativesRankingLoss(model), [32, 8], [1, 0.5]), [Q, P, N1], None),
    "matryoshka of mse": (
        "name: mse, matryoshka: {dims: [32, 8]}", PAIR + ", teacher: teacher",
        L.MatryoshkaLoss(model, L.EmbedDistillLoss(model, distance_metric="mse"), [32, 8]), [Q, P], values("teacher")),
    "matryoshka of triplets": (
        "name: batch_hard_triplet, margin: 0.3, matryoshka: {dims: [32, 8]}", "query: q, label: class",
        L.MatryoshkaLoss(model, L.BatchHardTripletLoss(model, margin=0.3), [32, 8]), [Q], values("class")),
    "matryoshka of angle": (
        "name: angle, matryoshka: {dims: [32, 7]}", PAIR + ", label: grade",
        L.MatryoshkaLoss(model, L.AnglELoss(model), [32, 7]), [Q, P], values("grade")),
    "a loss per dataset": (
        MNRL, f"{PAIR}, negatives: n1 | {PAIR}, label: grade, loss: {{name: cosent, scale: 10}} | query: q, label: class, loss: {{name: batch_hard_triplet, matryoshka: {{dims: [32, 8]}}}}",
        Mean([(L.MultipleNegativesRankingLoss(model), [Q, P, N1], None), (L.CoSENTLoss(model, scale=10), [Q, P], values("grade")),
             (L.MatryoshkaLoss(model, L.BatchHardTripletLoss(model), [32, 8]), [Q], values("class"))]), None, None),
}  # fmt: skip


def value(loss, columns, labels):
    if isinstance(loss, Mean):
        return sum(value(*part) for part in loss) / len(loss)
    prompts = [model.prompts["query"] if k == 0 else model.prompts["document"] for k in range(len(columns))]
    return loss([model.preprocess([p + t for t in c]) for p, c in zip(prompts, columns)], labels)


def theirs(*case):
    model.zero_grad()
    loss = value(*case)
    loss.backward()
    return loss.item(), sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()


def ours(loss, columns, batch, mesh):
    shutil.rmtree(work / "run", ignore_errors=True)
    train = ", ".join(f"{{path: {work / 'rows.jsonl'}, {c}}}" for c in columns.split(" | "))
    (work / "recipe.yaml").write_text(f"""
model: {{path: {tiny}, dropout: 0}}
data: {{shuffle: false, mixing: round_robin, train: [{train}]}}
batch: {{global_size: {ROWS}, accumulate: {columns.count(" | ") + 1}, no_duplicates: false, drop_last: false{batch}}}
loss: {{{loss}}}
optimizer: {{lr: 1e-9, max_grad_norm: 1e9}}
train: {{max_steps: 1}}
mesh: {{{mesh}}}
save: {{dir: {work / "run"}}}
""")
    subprocess.run([args.contraflow, "train", "-c", work / "recipe.yaml", "--quiet"], check=True)
    step = json.loads((work / "run" / "metrics.jsonl").read_text().splitlines()[0])
    return step["loss"], step["grad_norm"]


print("loss | sentence-transformers: loss, norm | relative errors, plain | 3 ranks")
bad = []
for name, (loss, columns, peer, texts, labels) in CASES.items():
    if args.only and name not in args.only:
        continue
    want = theirs(peer, texts, labels)
    errors = []
    for batch, mesh in (("", "replicate: 1"), (", sub_batch: {rows: 3}, cache: always", "replicate: 3")):
        errors.append([abs(a - b) / abs(b) for a, b in zip(ours(loss, columns, batch, mesh), want)])
    print(f"{name} | {want[0]:.6f} {want[1]:.6f} | {errors[0][0]:.0e} {errors[0][1]:.0e} | {errors[1][0]:.0e} {errors[1][1]:.0e}", flush=True)
    if not max(max(e) for e in errors) < 1e-5:
        bad.append(name)
shutil.rmtree(work)
if bad:
    sys.exit(f"off by more than 1e-5: {bad}")
