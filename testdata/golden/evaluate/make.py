"""Makes *.json here: retrieval metrics from trec_eval's own code, correlations from scipy, BM25 from bm25s.

Run in an environment of its own (a few seconds; writes only here):
    pip install pytrec_eval-terrier==0.5.11 ir_measures==0.4.3 scipy==1.17.1 numpy==2.4.6 bm25s==0.3.16
    python testdata/golden/evaluate/make.py
"""

import json
import math
import platform
import random
import unicodedata
from importlib.metadata import version
from pathlib import Path

import bm25s
import ir_measures
import numpy as np
import pytrec_eval
import scipy.stats

HERE = Path(__file__).resolve().parent
SEED = 20261103
PACKAGES = ["pytrec_eval-terrier", "ir_measures", "scipy", "numpy", "bm25s"]


def write(name, about, **data):
    head = {
        "about": about,
        "script": "testdata/golden/evaluate/make.py",
        "seed": SEED,
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
    }
    (HERE / f"{name}.json").write_text(json.dumps({**head, **data}, ensure_ascii=False, separators=(",", ":")) + "\n")


CUTS = [1, 3, 5, 10, 100]


def ranked(hits):
    """trec_eval's order: by score (a C float), descending, then by id, descending, bytes compared."""
    return sorted(hits, key=lambda d: (np.float32(hits[d]), d.encode()), reverse=True)


def retrieval():
    rng = random.Random(SEED)
    # Ids whose order as text differs from that as numbers and that in the corpus; bytes above 0x7f too.
    docs = [str(i) for i in range(1, 90)] + [f"d{i}" for i in range(40)] + [f"D-{i:02d}" for i in range(20)]
    docs += ["é", "z", "Z", "ß/1", "日本", "日", "a b", "~", "\U0001f600", "\ufb01"]
    rng.shuffle(docs)
    qrels, run = {}, {}
    for i in range(80):
        q = f"q{i}"
        hits = rng.sample(docs, rng.choice([1, 3, 10, 11, 50, 120]))
        judged = sorted({*rng.sample(hits, rng.randint(0, len(hits))), *rng.sample(docs, rng.choice([1, 2, 5, 20]))})
        qrels[q] = {d: rng.choice([-1, 0, 0, 1, 1, 2, 3, 7]) for d in judged}
        if max(qrels[q].values()) < 0:  # trec_eval 9 reads memory it does not own then
            qrels[q][judged[0]] = 0
        kind = i % 4  # all different; coarse, so that most are tied; all tied; ties of C floats alone
        score = [
            lambda: rng.gauss(0, 1),
            lambda: rng.randint(-2, 2) / 4,
            lambda: 0.25,
            lambda: 1 + rng.choice([0, 1e-9, 2e-9, 1e-3]),
        ][kind]
        run[q] = {d: score() for d in hits}
    qrels["nothing-relevant"] = {docs[0]: 0, docs[1]: -1}
    run["nothing-relevant"] = {docs[0]: 1.0, docs[2]: 0.5}
    qrels["empty-ranking"] = {docs[3]: 1}
    run["empty-ranking"] = {}
    qrels["missing"] = {docs[4]: 2, docs[5]: 1}
    run["unjudged"] = {docs[6]: 1.0}
    qrels["unjudged-and-missing"] = {}
    qrels["outside-the-corpus"] = {docs[7]: 1, "not in the corpus": 3}
    run["outside-the-corpus"] = {docs[7]: 1.0, docs[8]: 2.0}

    judged = {q: r for q, r in qrels.items() if r}
    text = ",".join(map(str, CUTS))
    names = {"ndcg", "map", "recip_rank", "set_recall"} | {f"{m}.{text}" for m in ["ndcg_cut", "map_cut", "recall", "P"]}
    evaluator = pytrec_eval.RelevanceEvaluator(judged, names)
    found = evaluator.evaluate(run)
    values = {}
    for q in judged:
        got = found.get(q, {})  # no ranking: all 0, as with trec_eval -c
        v = {"ndcg": got.get("ndcg", 0.0), "map": got.get("map", 0.0), "mrr": got.get("recip_rank", 0.0)}
        v["recall"] = got.get("set_recall", 0.0)
        for k in CUTS:
            for ours, theirs in [("ndcg", "ndcg_cut"), ("map", "map_cut"), ("recall", "recall"), ("precision", "P")]:
                v[f"{ours}@{k}"] = got.get(f"{theirs}_{k}", 0.0)
            v[f"mrr@{k}"] = 0.0
        values[q] = v
    for k in CUTS:  # recip_rank has no cut: trec_eval -M k cuts the ranking
        cut = {q: {d: hits[d] for d in ranked(hits)[:k]} for q, hits in run.items()}
        for q, got in evaluator.evaluate(cut).items():
            values[q][f"mrr@{k}"] = got["recip_rank"]
            assert got[f"ndcg_cut_{k}"] == values[q][f"ndcg@{k}"], (q, k)  # ranked() cut where trec_eval does
    # A second opinion on mrr@10, where no score is tied (ir_measures' programs break ties each in their way).
    untied = {q for q, hits in run.items() if len({np.float32(s) for s in hits.values()}) == len(hits)}
    rr = ir_measures.iter_calc([ir_measures.RR @ 10], judged, {q: h for q, h in run.items() if h})
    for m in rr:
        if m.query_id in untied:
            assert abs(m.value - values[m.query_id]["mrr@10"]) < 1e-12, m
    order = [q for q in run]  # the query set; "missing" is known to the judgments alone
    write(
        "retrieval",
        "per query values of trec_eval by pytrec_eval; a query without a ranking has 0 in each",
        docs=docs,
        queries=order,
        qrels=qrels,
        run=run,
        values=values,
        means={m: math.fsum(v[m] for v in values.values()) / len(values) for m in next(iter(values.values()))},
    )


def correlation():
    rng = np.random.default_rng(SEED)
    cases = []

    def case(name, x, y):
        x, y = np.asarray(x, float), np.asarray(y, float)
        cases.append({
            "name": name,
            "x": x.tolist(),
            "y": y.tolist(),
            "pearson": float(scipy.stats.pearsonr(x, y).statistic),
            "spearman": float(scipy.stats.spearmanr(x, y).statistic),
        })  # fmt: skip

    x = rng.normal(size=200)
    case("noisy", x, 0.7 * x + rng.normal(size=200))
    case("monotone", x, np.exp(x))
    case("opposite", x, -3 * x + 1)
    case("ties_in_gold", x[:120], rng.integers(0, 6, 120))
    case("ties_in_both", rng.integers(0, 4, 150), rng.integers(0, 3, 150))
    case("one_differs", [0.0] * 9 + [1.0], rng.normal(size=10))
    case("two", [1.0, 2.0], [5.0, 4.0])
    case("large_offset", 1e6 + x, x + rng.normal(size=200))
    case("huge", 1e300 * x[:20], rng.normal(size=20))
    case("tiny", 1e-300 * x[:20], rng.normal(size=20))
    write("correlation", "scipy.stats.pearsonr and spearmanr", cases=cases)


def terms(text):
    """Runs of letters, marks and numbers, in lower case."""
    keep = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return keep.lower().split()


def bm25():
    rng = random.Random(SEED)
    syllables = ["ba", "co", "du", "fe", "gi", "ko", "lu", "me", "no", "pa"]
    vocabulary = [a + b for a in syllables for b in syllables] + ["Größe", "été", "Élan", "naïve", "हिन्दी", "数据", "Ωmega", "x²", "42", "3"]
    weights = [1 / (i + 1) for i in range(len(vocabulary))]
    rng.shuffle(vocabulary)
    punctuation = [" ", " ", " ", " ", ", ", "_", "-", "\n\t", "...", "«", "'", " — "]

    def text(n):
        words = rng.choices(vocabulary, weights, k=n)
        return "".join(rng.choice([w, w, w.upper(), w.capitalize()]) + rng.choice(punctuation) for w in words)

    docs = [text(rng.choice([1, 3, 8, 20, 40])) for _ in range(150)] + ["", "...", "the only"]
    docs += docs[:5]  # equal documents: equal scores
    queries = [text(rng.choice([1, 2, 4, 8])) for _ in range(25)] + ["", "nowhere-to-be-found", "Only", docs[7]]
    tokens = [terms(d) for d in docs]
    N, mean = len(docs), sum(map(len, tokens)) / len(docs)
    cases = []
    for k1, b in [(1.2, 0.75), (0.9, 0.4), (1.5, 0.0), (2.0, 1.0)]:
        index = bm25s.BM25(method="lucene", k1=k1, b=b)
        index.index(tokens, show_progress=False)
        scores = []
        for query in queries:
            row = np.zeros(N)
            for t in terms(query):
                df = sum(t in d for d in tokens)
                idf = math.log(1 + (N - df + 0.5) / (df + 0.5))
                for i, d in enumerate(tokens):
                    if tf := d.count(t):
                        row[i] += idf * tf / (tf + k1 * (1 - b + b * len(d) / mean))
            known = [t for t in terms(query) if t in index.vocab_dict]
            if known:  # the formula above is bm25s', which is in float32
                np.testing.assert_allclose(row, index.get_scores(known), rtol=1e-5, atol=1e-6)
            scores.append({i: float(f"{s:.12g}") for i, s in enumerate(row) if s > 0})
        cases.append({"k1": k1, "b": b, "scores": scores})
    write("bm25", "cases[].scores[query]{document: score}, in float64; equal to bm25s' method lucene within 1e-5",
          docs=docs, queries=queries, terms=tokens[:20], cases=cases)  # fmt: skip


retrieval()
correlation()
bm25()
