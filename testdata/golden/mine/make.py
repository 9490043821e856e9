"""Makes mine/negatives: what sentence-transformers' mine_hard_negatives mines with given embeddings, for many options.

The model is a stand-in that looks embeddings up, so that nothing but the choice is compared. Embeddings are multiples of 1/8 before
they are normalized by the stand-in; no two scores of a query are closer than 1e-4, so rounding changes no rank.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/mine/make.py (some seconds; writes only here)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import numpy as np
import torch
from datasets import Dataset
from goldens import save
from sentence_transformers.util import mine_hard_negatives, pairwise_dot_score

SEED = 20261122
E = 6
rng = np.random.default_rng(SEED)


class Model:
    device = torch.device("cpu")
    prompts = {}

    class model_card_data:
        base_model = None

    def __init__(self, of):
        self.of = of

    def encode_query(self, texts, **kw):
        return np.stack([self.of[t] for t in texts])

    encode_document = encode_query

    @staticmethod
    def similarity(a, b):
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    @staticmethod
    def similarity_pairwise(a, b):
        return pairwise_dot_score(torch.as_tensor(a), torch.as_tensor(b))


def texts(prefix, n):
    return [f"{prefix}{i}" for i in range(n)]


def unit():
    x = rng.integers(-16, 17, E) / 8
    return (x / np.linalg.norm(x)).astype(np.float64)


queries, docs = texts("q", 14), texts("d", 30)
while True:
    of = {t: unit() for t in queries + docs}
    s = np.stack([of[q] for q in queries]) @ np.stack([of[d] for d in docs]).T
    if np.diff(np.sort(s, 1), axis=1).min() > 1e-4:
        break
while True:
    cross = {t: unit() for t in queries + docs}
    s = np.stack([cross[q] for q in queries]) @ np.stack([cross[d] for d in docs]).T
    if np.diff(np.sort(s, 1), axis=1).min() > 1e-5:
        break


class Cross:  # a stand-in for a CrossEncoder
    def predict(self, pairs, **kw):
        return torch.tensor([cross[q] @ cross[d] for q, d in pairs])


pairs = [(q, docs[i]) for i, q in enumerate(queries)] + [("q3", "d20"), ("q3", "d21"), ("q5", "d22")] + [("q0", "d0")] * 4  # a pair that comes often counts as often in how deep the peer looks
cases = []
for corpus in (None, docs, docs[18:]):
    for o, rescored in [(o, False) for o in (
        {}, {"num_negatives": 1}, {"num_negatives": 5}, {"range_min": 3}, {"range_min": 2, "range_max": 9, "num_negatives": 4},
        {"max_score": 0.3}, {"min_score": 0.1}, {"min_score": 0.0, "max_score": 0.5, "num_negatives": 2}, {"absolute_margin": 0.1},
        {"relative_margin": 0.05}, {"relative_margin": 0.2, "absolute_margin": 0.0, "range_min": 1, "num_negatives": 2}, {"range_max": 40, "num_negatives": 20},
    )] + [(o, True) for o in (
        {"absolute_margin": 0.1}, {"relative_margin": 0.05, "range_min": 1, "num_negatives": 2}, {"min_score": -0.2}, {"max_score": 0.4, "range_max": 8}, {"min_score": 0.0, "max_score": 0.5, "num_negatives": 1},
    )]:  # fmt: skip
        try:
            out = mine_hard_negatives(
                Dataset.from_dict({"anchor": [q for q, _ in pairs], "positive": [d for _, d in pairs]}), Model(of), corpus=corpus, cross_encoder=Cross() if rescored else None,
                output_format="n-tuple", output_scores=True, verbose=False, **o,
            )  # fmt: skip
            rows = [
                {"query": r["anchor"], "positive": r["positive"], "negatives": [r[f"negative_{i + 1}"] for i in range(o.get("num_negatives", 3))], "scores": r["scores"]}
                for r in out
            ]
        except Exception as e:  # nothing is left
            if "empty" not in str(e).lower() and "No triplets" not in str(e):
                raise
            rows = []
        cases.append({"options": o, "cross": rescored, "corpus": corpus or [], "rows": rows})
save(
    "mine/negatives", {"embeddings": np.stack([of[t] for t in queries + docs]), "cross": np.stack([cross[t] for t in queries + docs])},
    {"about": __doc__.split("\n")[0], "texts": queries + docs, "pairs": pairs, "cases": cases}, __file__, SEED, ["sentence_transformers"],
)  # fmt: skip
print(len(cases), "cases", [len(c["rows"]) for c in cases])
