"""Makes loss/pairwise: losses of pairs, of rows with their own documents, and of labelled single texts, with the gradient of every
embedding, in float64, by sentence-transformers' own classes.

Where rows have different numbers of negatives (ragged), which the peer does not take, its loss of each row alone is averaged.
Sums of the peer that are no means are its sums.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/pairwise.py (some seconds; writes only here)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
from goldens import exact, normal, save
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.util import pairwise_cos_sim, pairwise_dot_score

SEED = 20261121
G = torch.Generator().manual_seed(SEED)
SIMILARITY = {"cosine": pairwise_cos_sim, "dot": pairwise_dot_score}
SIAMESE = {"cosine": "COSINE_DISTANCE", "euclidean": "EUCLIDEAN", "manhattan": "MANHATTAN"}
BATCH = {"cosine": "cosine_distance", "euclidean": "euclidean_distance"}


class Model:  # what MatryoshkaLoss asks of one
    def __init__(self, x):
        self.x = list(x)

    def get_embedding_dimension(self):
        return self.x[0].shape[1]

    def forward(self, features):
        return {"sentence_embedding": self.x[features["column"]]}

    def __call__(self, features):
        return self.forward(features)


def peer(name, o, model=None):
    if name == "cosine_similarity":
        mse = lambda out, labels: torch.nn.functional.mse_loss(out, labels.to(out.dtype))  # the peer's labels are float32
        return st.CosineSimilarityLoss(model, loss_fct=mse)
    if name in ("contrastive", "online_contrastive"):
        metric = getattr(__import__(st.ContrastiveLoss.__module__, fromlist=["x"]).SiameseDistanceMetric, SIAMESE[o.get("metric", "cosine")])
        cls = st.ContrastiveLoss if name == "contrastive" else st.OnlineContrastiveLoss
        return cls(model, distance_metric=metric, margin=o.get("margin", 0.5))
    if name == "triplet":
        metrics = __import__(st.TripletLoss.__module__, fromlist=["x"]).TripletDistanceMetric
        return st.TripletLoss(model, distance_metric=getattr(metrics, o.get("metric", "euclidean").upper()), triplet_margin=o.get("margin", 5))
    if name == "margin_mse":
        return st.MarginMSELoss(model, similarity_fct=SIMILARITY[o.get("metric", "dot")])
    if name == "distill_kl":
        loss = st.DistillKLDivLoss(
            model, similarity_fct=SIMILARITY[o.get("metric", "dot")], temperature=o.get("temperature", 1.0),
            student_temperature=o.get("student"), teacher_temperature=o.get("teacher"),
        )  # fmt: skip
        loss._checked_teacher_scale = True  # only warns
        return loss
    if name == "cosent":
        return st.CoSENTLoss(model, scale=o.get("scale", 20), similarity_fct=SIMILARITY[o.get("metric", "cosine")])
    if name == "angle":
        return st.AnglELoss(model, scale=o.get("scale", 20))
    if name == "teacher":
        return st.EmbedDistillLoss(model, distance_metric=o["metric"])
    if name == "mnrl":
        return st.MultipleNegativesRankingLoss(model, scale=o.get("scale", 20), hardness_mode=o.get("hardness_mode"), hardness_strength=o.get("hardness_strength", 0))
    metric = lambda: getattr(__import__(st.BatchHardTripletLoss.__module__, fromlist=["x"]).BatchHardTripletLossDistanceFunction, BATCH[o.get("metric", "euclidean")])
    cls = {"batch_hard": st.BatchHardTripletLoss, "batch_hard_soft_margin": st.BatchHardSoftMarginTripletLoss, "batch_semi_hard": st.BatchSemiHardTripletLoss, "batch_all": st.BatchAllTripletLoss}[name]
    return cls(model, distance_metric=metric(), **({} if name == "batch_hard_soft_margin" else {"margin": o.get("margin", 5)}))


arrays, cases = {}, []


def add(name, o, x, labels=None, counts=None, matryoshka=None):
    """x: [columns, B, E]. counts: of each row's negatives, the first of its columns; then the peer sees each row alone."""
    columns, B, E = x.shape
    x = x.clone().requires_grad_(True)

    def value(x, labels):
        if matryoshka:
            dims, weights = matryoshka
            model = Model(x)
            m = st.MatryoshkaLoss(model, peer(name, o, model), dims, weights)
            return m([{"column": c} for c in range(len(x))], labels)
        loss = peer(name, o)
        if name == "teacher":
            return loss.compute_loss_from_embeddings(list(x), [labels] * len(x))
        return loss.compute_loss_from_embeddings(list(x), labels)

    if counts is None:
        out = value(x, labels)
    else:
        out = 0
        for i, n in enumerate(counts):
            if n:
                own = labels[i : i + 1] if labels is None or labels.ndim == 1 else labels[i : i + 1, : n + 1]
                out = out + value(x[: 2 + n, i : i + 1], own) / B
    out.backward()
    key = f"{len(cases):03d}"
    arrays[key + "/x"], arrays[key + "/grad"] = x.detach().float(), x.grad  # exact
    if labels is not None:
        arrays[key + "/labels"] = labels.float()
    cases.append({
        "name": key, "loss": name, "options": o, "B": B, "E": E, "columns": columns, "value": out.item() + 0.0,
        "counts": counts or [], "dims": list(matryoshka[0]) if matryoshka else [], "weights": list(matryoshka[1] or []) if matryoshka else [],
    })  # fmt: skip


def embeddings(columns, B, E, duplicates=False):
    topic = normal(G, 1, B, E)
    x = exact(topic * 0.7 + normal(G, columns, B, E))
    if duplicates and columns > 1:
        x[:, 3] = x[:, 1]
        x[1, 2] = x[0, 2]
    return x


def numbers(*shape):
    return exact(normal(G, *shape))


def binary(B):
    return (torch.arange(B) * 7 % 5 < 2).double()


for B, E in ((1, 8), (6, 9), (17, 10)):
    for dup in (False, True) if B > 4 else (False,):
        x = lambda columns: embeddings(columns, B, E, dup)
        graded = (torch.arange(B) * 5 % 7).double() / 4
        add("cosine_similarity", {}, x(2), numbers(B))
        for metric in ("cosine", "euclidean", "manhattan"):
            if dup and metric != "cosine":
                continue  # the peer's root and absolute value have no gradient at 0
            add("contrastive", {"metric": metric, "margin": 0.5 if metric == "cosine" else 6}, x(2), binary(B))
            add("online_contrastive", {"metric": metric, "margin": 0.5 if metric == "cosine" else 6}, x(2), binary(B))
            add("triplet", {"metric": metric, "margin": 0.3 if metric == "cosine" else 5}, x(3))
        add("contrastive", {}, x(2), (numbers(B) * 16).round() / 16)  # 1 - label is a float32 in the peer
        add("online_contrastive", {}, x(2), torch.ones(B).double())
        add("online_contrastive", {}, x(2), torch.zeros(B).double())
        for o in ({}, {"metric": "cosine"}):
            add("margin_mse", o, x(3), numbers(B))
            add("margin_mse", o, x(5), numbers(B, 4))
        for o in ({}, {"temperature": 2}, {"metric": "cosine", "student": 0.05, "teacher": 0.5}):
            add("distill_kl", o, x(4), numbers(B, 3))
        for o in ({}, {"scale": 5}, {"metric": "dot", "scale": 1}):
            add("cosent", o, x(2), graded)
        add("angle", {}, x(2), graded)
        add("angle", {"scale": 3}, x(2), graded)
        add("angle", {}, x(4), graded)
        add("angle", {}, x(4))
        for metric in ("mse", "l2", "cosine"):
            add("teacher", {"metric": metric}, x(1), numbers(B, E))
            add("teacher", {"metric": metric}, x(3), numbers(B, E))
        for mode in ("in_batch_negatives", "hard_negatives", "all_negatives"):
            add("mnrl", {"hardness_mode": mode, "hardness_strength": 9}, x(2))
            add("mnrl", {"hardness_mode": mode, "hardness_strength": 5, "scale": 8}, x(4))
        # Matryoshka over a loss of each kind.
        dims = ([E, E // 2, 3], [1, 0.5, 0.25])
        add("mnrl", {}, x(3), None, None, dims)
        add("mnrl", {}, x(3), None, None, ([4], None))
        add("cosent", {}, x(2), graded, None, dims)
        add("margin_mse", {}, x(4), numbers(B, 3), None, dims)
        if B > 4:
            counts = [int(i * i + i // 2) % 4 for i in range(B)]
            add("margin_mse", {}, x(5), numbers(B, 4), counts)
            add("distill_kl", {"metric": "cosine", "temperature": 0.3}, x(5), numbers(B, 4), counts)
            classes = torch.arange(B) * 3 % 4
            for metric in ("euclidean", "cosine"):
                for name in ("batch_hard", "batch_hard_soft_margin", "batch_semi_hard", "batch_all"):
                    for margin in (5, 0.25):
                        add(name, {"metric": metric, "margin": margin}, x(1), classes.double())
                add("batch_hard", {"metric": metric}, x(1), torch.arange(B).double())  # no positives
                add("batch_hard", {"metric": metric}, x(1), torch.zeros(B).double())  # no negatives

save("loss/pairwise", arrays, {"about": __doc__.split("\n")[0], "cases": cases}, __file__, SEED, ["sentence_transformers"])
print(len(cases), "cases")
