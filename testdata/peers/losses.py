"""One training step of every loss of embedders, and of sums of them, on rows with templates, lists, teachers' scores and prompts, in contraflow and
with sentence-transformers: the loss and the norm of all parameters' gradients. Ours is computed plainly, and on 3 ranks with unequal rows and
sub-batches that are embedded twice. Then two steps of FlagEmbedding's distillation for embedders (kl_div), by recipes that contraflow import makes
of its command line: losses (but for the entropy of the teacher's distributions) and norms, of several devices, whose exchange is played in one
process, the norms.

    python testdata/peers/losses.py [--seed N] CONTRAFLOW [LOSS ...]

Prints tables. Exits with 1 if a loss or a norm is off by more than 1e-5 of it. Needs sentence-transformers (6.2 was used) and
FlagEmbedding (1.4.2).
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
from FlagEmbedding.finetune.embedder.encoder_only.base.modeling import BiEncoderOnlyEmbedderModel
from sentence_transformers import SentenceTransformer, util
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


class Sum(list):
    """Losses of one batch, each with its weight and its columns."""


def gor(**options):
    """The peer's loss, whose two parts its trainer adds up; of the first features alone where the texts say how many."""
    peer = L.GlobalOrthogonalRegularizationLoss(model, **options)

    def loss(features, labels):
        shown = [model(f)["sentence_embedding"][:, : f.get("first")] for f in features]
        return sum(peer.compute_loss_from_embeddings(shown).values())

    return loss


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
    "mega_batch_margin": ("name: mega_batch_margin, mask_duplicates: false", PAIR, L.MegaBatchMarginLoss(model, mini_batch_size=5), [Q, P], None),
    "mega_batch_margin, margins": (
        "name: mega_batch_margin, mask_duplicates: false, positive_margin: 0.99, negative_margin: 0", PAIR,
        L.MegaBatchMarginLoss(model, positive_margin=0.99, negative_margin=0, use_mini_batched_version=False), [Q, P], None),
    "gor": ("name: gor", f"{PAIR}, {LIST}", gor(), [Q, P, *LISTS], None),
    "gor, sum": ("name: gor, mean_weight: 0, second_moment_weight: 3, aggregation: sum, similarity: dot", PAIR + ", negatives: [n1, n2]",
                 gor(similarity_fct=util.dot_score, mean_weight=None, second_moment_weight=3, aggregation="sum"), [Q, P, N1, N2], None),
    "mnrl and gor": (
        f"[{{{MNRL}}}, {{name: gor, weight: 0.5, mean_weight: 0, aggregation: sum}}]", PAIR + ", negatives: n1",
        Sum([(1, L.MultipleNegativesRankingLoss(model), [Q, P, N1], None), (0.5, gor(mean_weight=0, aggregation="sum"), [Q, P, N1], None)]), None, None),
    "matryoshka of gor, texts": (
        "name: gor, matryoshka: {dims: [32, 8], weights: [1, 0.5]}", "query: q, label: class",
        Sum([(w, lambda x, labels, n=n, of=gor(): of([{**f, "first": n} for f in x], labels), [Q], None) for n, w in ((32, 1), (8, 0.5))]), None, None),
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
    "mnrl and distill_kl": (
        f"[{{{MNRL}, temperature: 0.1}}, {{name: distill_kl, weight: 3, similarity: cosine, student_temperature: 0.5}}]", f"{PAIR}, {LIST}, scores: [ps, ns]",
        Sum([(1, L.MultipleNegativesRankingLoss(model, scale=10), [Q, P, *LISTS], None),
             (3, L.DistillKLDivLoss(model, temperature=0.5, similarity_fct=util.pairwise_cos_sim), [Q, P, *LISTS], SCORES * 0.5)]), None, None),
    "matryoshka of mnrl, gist, cosent": (
        f"[{{{MNRL}, weight: 0.5, matryoshka: {{dims: [32, 8], weights: [1, 0.5]}}}}, {{{GIST}}}, {{name: cosent, weight: 2}}]", PAIR + ", label: grade",
        Sum([(0.5, L.MatryoshkaLoss(model, L.MultipleNegativesRankingLoss(model), [32, 8], [1, 0.5]), [Q, P], None), (1, L.GISTEmbedLoss(model, guide), [Q, P], None),
             (2, L.CoSENTLoss(model), [Q, P], values("grade"))]), None, None),
    "sums of datasets' own": (
        MNRL, f"{PAIR}, label: grade, loss: [cosent, {{name: cosine_similarity, weight: 4}}] | query: q, label: class, teacher: teacher, loss: [batch_hard_triplet, {{name: mse, weight: 0.1}}]",
        Mean([(Sum([(1, L.CoSENTLoss(model), [Q, P], values("grade")), (4, L.CosineSimilarityLoss(model), [Q, P], values("grade"))]), None, None),
              (Sum([(1, L.BatchHardTripletLoss(model), [Q], values("class")), (0.1, L.EmbedDistillLoss(model, distance_metric="mse"), [Q], values("teacher"))]), None, None)]), None, None),
}  # fmt: skip


def value(loss, columns, labels):
    if isinstance(loss, Mean):
        return sum(value(*part) for part in loss) / len(loss)
    if isinstance(loss, Sum):
        return sum(weight * value(*part) for weight, *part in loss)
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
loss: {loss if loss.startswith("[") else "{" + loss + "}"}
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


def flag(devices, normalize, mrl):
    """Two steps of SGD with FlagEmbedding's model on rows of all devices, and with ours by an imported recipe."""
    dims, temperature, lr, size = mrl and [32, 8], 0.05, 0.01 if normalize else 1e-5, 12
    lines = [{"query": r["q"], "pos": [r["p"]], "neg": r["list"], "pos_scores": [r["ps"]], "neg_scores": r["ns"]} for r in rows[:size]]
    (work / "flag.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    torch.manual_seed(1)
    peer = BiEncoderOnlyEmbedderModel(
        transformers.AutoModel.from_pretrained(tiny), temperature=temperature, kd_loss_type="kl_div", use_mrl=bool(mrl), mrl_dims=dims or [],
        sentence_pooling_method="mean", normalize_embeddings=normalize,
    )  # fmt: skip
    peer.eval()
    peer.training = True  # of this module alone: the encoder below drops nothing
    teacher = torch.tensor([r["pos_scores"] + r["neg_scores"] for r in lines]).softmax(-1)
    side = lambda texts: model.tokenizer(texts, padding=True, return_tensors="pt")
    query, documents = side([r["query"] for r in lines]), side([t for r in lines for t in r["pos"] + r["neg"]])

    def loss():
        if devices == 1:
            return peer(queries=query, passages=documents, teacher_scores=[s for r in lines for s in r["pos_scores"] + r["neg_scores"]]).loss
        q, p = (peer.encode(x) for x in (query, documents))
        share, total = size // devices, 0
        for rank in range(devices):  # as each process computes it, with what others have sent as numbers; DDP takes the mean
            peer.process_rank, peer.world_size = rank, devices
            own = lambda t, n: t[rank * n : (rank + 1) * n]

            def gathered(t):
                everything, n = (q, share) if len(t) == share else (p, share * len(p) // len(q))
                return torch.cat([t if r == rank else everything.detach()[r * n : (r + 1) * n] for r in range(devices)])

            peer._dist_gather_tensor = gathered
            total += peer._compute_cross_device_neg_loss(own(q, share), own(p, share * len(p) // len(q)), own(teacher, share))[1] / devices
        return total

    entropy = -(teacher * teacher.log()).sum(-1).mean().item()
    want = []
    for _ in range(2):
        peer.zero_grad()
        now = loss()
        now.backward()
        of = [p for p in peer.parameters() if p.grad is not None]
        want += [now.item() - entropy, sum((p.grad.double() ** 2).sum() for p in of).sqrt().item()]
        with torch.no_grad():
            for p in of:
                p -= lr * p.grad

    command = ["-m", "FlagEmbedding.finetune.embedder.encoder_only.base", "--model_name_or_path", tiny, "--train_data", work / "flag.jsonl", "--train_group_size", 4]
    command += ["--per_device_train_batch_size", size // devices, "--temperature", temperature, "--knowledge_distillation", True, "--kd_loss_type", "kl_div"]
    command += ["--sentence_pooling_method", "mean", "--normalize_embeddings", normalize, "--query_max_len", 32, "--passage_max_len", 32]
    command += (["--negatives_cross_device"] if devices > 1 else []) + (["--use_mrl", True, "--mrl_dims", *dims] if mrl else [])
    made = subprocess.run([str(c) for c in (args.contraflow, "import", "--devices", devices, "--", "torchrun", *command)], check=True, capture_output=True, text=True).stdout
    (work / "flag.yaml").write_text(made)
    out = []
    for more in (["mesh.replicate=1"], ["mesh.replicate=3", "batch.sub_batch={rows: 3}", "batch.cache=always"]):
        shutil.rmtree(work / "run", ignore_errors=True)
        sets = [f"optimizer={{name: sgd, lr: {lr}, weight_decay: 0, max_grad_norm: 1e9, schedule: constant, warmup_ratio: 0}}", "data.shuffle=false", "model.dropout=0", "train.epochs=2"]
        sets += [f"save.dir={work / 'run'}", "log.every=1", *more]
        subprocess.run([args.contraflow, "train", "-c", work / "flag.yaml", "--quiet", *[a for s in sets for a in ("--set", s)]], check=True)
        steps = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
        out.append([v for step in steps[:2] for v in (step["loss"], step["grad_norm"])])
    if devices > 1:  # their value has all of the contrastive loss, of whose gradient the devices' mean has a part
        return want[1::2], [v[1::2] for v in out]
    return want, out


print("distillation | FlagEmbedding: two steps' losses and norms | relative errors, plain | 3 ranks")
for name, how in {
    "kl_div": (1, True, False), "kl_div, not normalized": (1, False, False), "kl_div, mrl": (1, True, True), "kl_div, 2 devices": (2, True, False), "kl_div, 3 devices": (3, True, False),
}.items():  # fmt: skip
    if args.only and name not in args.only:
        continue
    want, got = flag(*how)
    errors = [max(abs(a - b) / abs(b) for a, b in zip(g, want)) for g in got]
    print(f"{name} | {' '.join(f'{v:.6f}' for v in want)} | {errors[0]:.0e} | {errors[1]:.0e}", flush=True)
    if not max(errors) < 1e-5:
        bad.append(name)
shutil.rmtree(work)
if bad:
    sys.exit(f"off by more than 1e-5: {bad}")
