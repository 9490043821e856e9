"""Makes loss/spread: losses of a batch as a whole, and of each query's hardest in-batch negative, with the gradient of every embedding, in float64, by
sentence-transformers' own classes.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/spread.py (10 s; writes only here)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
from goldens import exact, normal, save
from sentence_transformers.sentence_transformer import losses as L
from sentence_transformers.util import cos_sim, dot_score

SEED = 20261127
G = torch.Generator().manual_seed(SEED)
SIMILARITY = {"cosine": cos_sim, "dot": dot_score}
arrays, cases = {}, []


def add(loss, options, x):
    """x: [columns, B, E]."""
    x = x.clone().requires_grad_(True)
    if loss == "gor":
        o = dict(options)
        peer = L.GlobalOrthogonalRegularizationLoss(None, similarity_fct=SIMILARITY[o.pop("metric", "cosine")], **o)
        value = sum(peer.compute_loss_from_embeddings(list(x)).values())
    else:
        value = L.MegaBatchMarginLoss(None, use_mini_batched_version=False, **options).calculate_loss([[c] for c in x])
    value.backward()
    key = f"{len(cases):03d}"
    arrays[key + "/x"], arrays[key + "/grad"] = x.detach().float(), x.grad  # exact
    cases.append({"name": key, "loss": loss, "options": options, "columns": len(x), "B": x.shape[1], "E": x.shape[2], "value": value.item()})


def embeddings(columns, B, E, near):
    """near: how much all texts have in common."""
    return exact(near * normal(G, 1, 1, E) + 0.6 * normal(G, 1, B, E) + normal(G, columns, B, E))


for B, E in ((1, 8), (2, 5), (6, 9), (9, 6), (7, 7), (23, 10)):  # fewer texts than features, and more
    for near in (0, 1):
        for columns in (1, 2, 4):
            add("gor", {}, embeddings(columns, B, E, near))
        for o in ({"aggregation": "sum", "mean_weight": 0}, {"second_moment_weight": 0}, {"metric": "dot", "mean_weight": 0.5, "second_moment_weight": 0.25}):
            add("gor", o, embeddings(3, B, E, near))
        for o in ({}, {"positive_margin": 0.5, "negative_margin": 0}, {"positive_margin": 1, "negative_margin": -1}):
            add("mega", o, embeddings(2, B, E, near))
save("loss/spread", arrays, {"about": __doc__.split("\n")[0], "cases": cases}, __file__, SEED, ["sentence_transformers"])
print(len(cases), "cases;", sum(c["value"] == 0 for c in cases), "are 0")
