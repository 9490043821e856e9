"""Makes candidates.json here: how scores rank given candidates, by sentence-transformers' RerankingEvaluator and CrossEncoderRerankingEvaluator, whose models
are stood in for by tables of scores. Of equal scores, whose order their MRR leaves to a sort, reciprocal rank, recall and precision are means over all orders,
made one by one.

Run in an environment of its own (a few seconds; writes only here):
    pip install sentence-transformers==6.2.0 scikit-learn==1.9.1 numpy==2.4.6
    python testdata/golden/evaluate/candidates.py
"""

import itertools
import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.cross_encoder.evaluation import CrossEncoderRerankingEvaluator
from sentence_transformers.sentence_transformer.evaluation import RerankingEvaluator

HERE = Path(__file__).resolve().parent
SEED = 20261127
CUTS = [1, 3, 10]


class Embedder:
    """Query q is [q], a document its score for each query."""

    def __init__(self, scores):
        self.scores = scores

    def encode_query(self, texts, **_):
        return torch.tensor([[float(t[1:])] for t in texts], dtype=torch.float64)

    def encode_document(self, texts, **_):
        return torch.tensor([[self.scores[tuple(map(int, t[1:].split("_")))]] for t in texts], dtype=torch.float64)


class Reranker:
    def __init__(self, scores):
        self.scores = scores

    def predict(self, pairs, **_):
        return np.array([self.scores[q, d] for q, d in pairs])


def over_orders(scores, relevant, k):
    """Means over all orders of equal scores: of reciprocal rank, recall and precision among the first k."""
    values = sorted(set(scores), reverse=True)
    groups = [[i for i, s in enumerate(scores) if s == v] for v in values]
    out = []
    for parts in itertools.product(*(itertools.permutations(g) for g in groups)):
        first = [relevant[i] for part in parts for i in part][:k]
        rank = first.index(True) + 1 if True in first else 0
        out.append([1 / rank if rank else 0, sum(first) / sum(relevant), sum(first) / k])
    return np.mean(out, axis=0)


def case(name, queries):
    """queries: of each the scores of its candidates, and which are relevant; those come first."""
    scores = {(q, i): s for q, (ss, _) in enumerate(queries) for i, s in enumerate(ss)}
    samples = [
        {"query": f"q{q}", "positive": [f"d{q}_{i}" for i, r in enumerate(rel) if r], "negative": [f"d{q}_{i}" for i, r in enumerate(rel) if not r]}
        for q, (_, rel) in enumerate(queries)
    ]  # fmt: skip
    want, ties = {}, any(len(set(ss)) < len(ss) for ss, _ in queries)
    for k in CUTS:
        theirs = RerankingEvaluator(samples, at_k=k, similarity_fct=lambda _, docs: docs[:, 0], write_csv=False)
        theirs = theirs.compute_metrics(Embedder(scores))
        mrr, recall, precision = np.mean([over_orders(ss, rel, k) for ss, rel in queries], axis=0)
        assert ties or abs(theirs["mrr"] - mrr) < 1e-12, (name, k, theirs["mrr"], mrr)
        want |= {f"ndcg@{k}": theirs["ndcg"], f"mrr@{k}": mrr, f"recall@{k}": recall, f"precision@{k}": precision, "map": theirs["map"]}
    return {"name": name, "scores": [list(ss) for ss, _ in queries], "relevant": [list(rel) for _, rel in queries], "want": want}


def ranked(rng):
    """Rows of documents in a first stage's order, and a CrossEncoder's figures, with all positives and with those that are among the documents."""
    rows, scores = [], {}
    for q in range(8):
        docs = [f"d{q} {i}" for i in range(int(rng.integers(2, 9)))]
        found = [docs[i] for i in sorted(rng.choice(len(docs), int(rng.integers(0 if q % 3 else 1, len(docs))), replace=False))]
        missed = [f"m{q} {i}" for i in range(q % 3)]
        positive = [*missed[:1], *found, *missed[1:]] or [f"m{q} 0"]
        rows.append({"query": f"q{q}", "positive": positive, "documents": docs})
        scores |= {(f"q{q}", d): float(rng.normal()) for d in [*docs, *positive]}
    out = {"rows": rows, "scores": [[q, d, s] for (q, d), s in scores.items()]}
    for name, always in (("all", True), ("found", False)):
        got = CrossEncoderRerankingEvaluator(rows, always_rerank_positives=always, write_csv=False)
        got.store_metrics_in_model_card_data = lambda *_: None
        out[name] = {k: float(v) for k, v in got(Reranker(scores)).items()}
    return out


def main():
    rng = np.random.default_rng(SEED)

    def queries(n, digits, most=8):
        out = []
        for _ in range(n):
            size = int(rng.integers(2, most))
            relevant = [True] * int(rng.integers(1, size)) + [False] * size
            out.append((np.round(rng.normal(size=size), digits).tolist(), [bool(r) for r in relevant[:size]]))
        return out

    cases = [
        case("noisy", queries(20, 12)),
        case("ties", queries(20, 0)),
        case("all equal", [([0.5] * 6, [True, True, False, False, False, False]), ([-1.0] * 5, [True, False, False, False, False])]),
        case("the only relevant one is last", [([0.1, 0.2, 0.3, 0.4], [True, False, False, False])]),
        case("a tie across the cut", [([1.0, 3.0, 1.0, 1.0, 2.0], [True, True, False, False, False]), ([1.0, 2.0, 3.0, 1.0, 1.0], [True, False, False, False, False])]),
        case("more than ten", [(rng.permutation(14).astype(float).tolist(), [True] * 3 + [False] * 11)]),
    ]
    (HERE / "candidates.json").write_text(json.dumps({"cases": cases, "ranked": ranked(rng)}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
