"""Makes loss/gist: GISTEmbed's loss and the gradient of every embedding, in float64, by sentence-transformers' GISTEmbedLoss (up to one
column of negatives) and CachedGISTEmbedLoss (any number), on given embeddings of the model and of a guide.

Some texts come twice: the guide's cosine of such a text is the positive's exactly. No row's query is its own positive: then the peer's
query is a candidate of itself or not as its cosine of 1 is rounded.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/gist.py (some seconds; writes only here)
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
from goldens import exact, normal, save
from sentence_transformers.sentence_transformer import losses as st

SEED = 20261122
G = torch.Generator().manual_seed(SEED)


def bare(cls, **options):
    """A loss without models: only its formula is used."""
    loss = cls.__new__(cls)
    torch.nn.Module.__init__(loss)
    loss.similarity_fct = torch.nn.CosineSimilarity(dim=-1)
    loss.cross_entropy_loss = torch.nn.CrossEntropyLoss()
    loss.gather_across_devices, loss.must_retokenize, loss.show_progress_bar = False, False, False
    loss.model = loss.guide = None
    for k, v in options.items():
        setattr(loss, k, v)
    return loss


def plain(x, guide, options):
    loss = bare(st.GISTEmbedLoss, **options)
    module = sys.modules[st.GISTEmbedLoss.__module__]
    embeddings = iter([list(x), list(guide)])
    module.embed_columns = lambda model, features: next(embeddings)
    return loss([{}] * len(x), None)


def cached(x, guide, options):
    loss = bare(st.CachedGISTEmbedLoss, mini_batch_size=5, **options)
    return loss.calculate_loss([[c] for c in x], [[c] for c in guide])


arrays, cases = {}, []


def add(kind, data, **options):
    x = arrays[data + "/x"].double().requires_grad_(True)
    guide = arrays[data + "/guide"].double()
    value = kind(x, guide, options)
    value.backward()
    key = f"{len(cases):03d}"
    arrays[key + "/grad"] = x.grad
    cases.append({"name": key, "data": data, "peer": kind.__name__, "B": x.shape[1], "E": x.shape[2], "G": guide.shape[2], "negatives": len(x) - 2, "value": value.item() + 0.0, **options})


for B, K in [(1, 1), (2, 0), (7, 0), (7, 1), (7, 3), (33, 1), (33, 2)]:
    data = f"B{B}_N{K}"
    x = exact(normal(G, 1, B, 8) * 0.7 + normal(G, 2 + K, B, 8))
    guide = exact(normal(G, 1, B, 5) * 0.8 + normal(G, 2 + K, B, 5) * 0.9)
    if B >= 7:
        for a, b in [((1, 2), (1, 3)), ((0, 4), (0, 5)), ((1, 6), (0, 1))] + ([((2, 0), (1, 1))] if K else []):
            x[a], guide[a] = x[b], guide[b]
    arrays[data + "/x"], arrays[data + "/guide"] = x.float(), guide.float()
    margins = [("absolute", 0.0), ("absolute", 0.15), ("relative", 0.05), ("relative", 0.5)]
    for (strategy, margin), anchors, positives in itertools.product(margins, (True, False), (True, False)):
        for temperature in (0.05, 0.5) if B < 33 else (0.05,):
            add(cached if K > 1 or B == 2 else plain, data, temperature=temperature, margin_strategy=strategy, margin=margin, contrast_anchors=anchors, contrast_positives=positives)
    add(cached, data, temperature=0.01, margin_strategy="relative", margin=0.05, contrast_anchors=True, contrast_positives=True)

save(
    "loss/gist", arrays,
    {"about": "sentence-transformers' GISTEmbedLoss and CachedGISTEmbedLoss on given embeddings, in float64", "cases": cases},
    __file__, SEED, ["sentence_transformers"],
)  # fmt: skip
print(len(cases), "cases", file=sys.stderr)
