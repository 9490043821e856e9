"""Makes multivector/losses: what losses of sentence-transformers' MultiVectorEncoder come to, in float64, with their gradients with respect to
every token's vector.

The formulas are written out over texts without padding. Each value is compared here with the peer's own scoring, which pads texts to the
longest and masks: of a document, masked tokens are out of the maximum (the dtype's least number), of a query out of the sum. It scores in
float32, to which both agree.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/multivector/make.py (10 s; writes only here)
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))

import torch
import torch.nn.functional as F
from goldens import exact, normal, report, save
from sentence_transformers.multi_vector_encoder import scoring

SEED = 20261127
G = torch.Generator().manual_seed(SEED)
B, D = 4, 6


def padded(texts):
    x = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=7.0)  # what a mask must keep out
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    for i, t in enumerate(texts):
        mask[i, : len(t)] = True
    return x, mask


def maxsim(q, d, mean):
    s = (q @ d.T).max(1).values
    return s.mean() if mean else s.sum()


def peers(queries, columns, kind, mean):
    """The peer's scores, as its losses ask for them: [B, B*N] by rows' documents, or [B, N] of rows' own."""
    q, q_mask = padded(queries)
    flat, mask = padded([d for column in columns for d in column])
    docs, d_mask = (x.unflatten(0, (len(columns), B)).transpose(0, 1) for x in (flat, mask))
    f = scoring.colbert_scores if kind == "mnrl" else scoring.colbert_kd_scores
    return f(q, docs, queries_mask=q_mask, documents_mask=d_mask, length_normalize=mean)


def compute(c, texts, teacher):
    queries, columns = texts[:B], [texts[B * (k + 1) : B * (k + 2)] for k in range(c["negatives"] + 1)]
    own = torch.stack([torch.stack([maxsim(queries[i], column[i], c["mean"]) for column in columns]) for i in range(B)])
    if c["loss"] == "mnrl":
        all_ = torch.stack([torch.stack([maxsim(q, d, c["mean"]) for i in range(B) for d in (column[i] for column in columns)]) for q in queries])
        scores = all_
        value = F.cross_entropy(c["scale"] * all_, torch.arange(B) * len(columns))
    elif c["loss"] == "distill_kl":
        scores = own
        p, q = F.log_softmax(teacher / c["teacher"], -1), F.log_softmax(own / c["student"], -1)
        value = F.kl_div(q, p, reduction="batchmean", log_target=True) * c["student"] ** 2
    else:
        scores = own
        margins = teacher[:, :1] - teacher[:, 1:]
        value = F.mse_loss(own[:, :1] - own[:, 1:], margins)
    theirs = peers([t.detach() for t in queries], [[t.detach() for t in column] for column in columns], c["loss"], c["mean"])
    assert (scores - theirs).abs().max() < 1e-5, (c, scores, theirs)
    return value


def main():
    arrays, cases = {}, []
    data = {}
    for negatives in (0, 1, 3):
        lengths = torch.randint(1, 9, (B * (2 + negatives),), generator=G)
        vectors = exact(F.normalize(normal(G, int(lengths.sum()), D).double(), dim=-1).float())
        teacher = exact(normal(G, B, 1 + negatives))
        data[negatives] = lengths, vectors.double(), teacher.double()
        arrays[f"{negatives}/lengths"], arrays[f"{negatives}/vectors"], arrays[f"{negatives}/teacher"] = lengths, vectors, teacher
    for mean in (False, True):
        for negatives, (lengths, vectors, teacher) in data.items():
            kinds = [{"loss": "mnrl", "scale": 1.0}, {"loss": "mnrl", "scale": 7.0}]
            if negatives:
                kinds += [{"loss": "distill_kl", "student": 1.0, "teacher": 1.0}, {"loss": "distill_kl", "student": 0.5, "teacher": 2.0}, {"loss": "margin_mse"}]
            for c in kinds:
                c = {"name": f"case{len(cases)}", "negatives": negatives, "mean": mean, **c}
                x = vectors.clone().requires_grad_()
                value = compute(c, list(x.split(lengths.tolist())), teacher)
                value.backward()
                arrays[c["name"]] = x.grad
                cases.append({**c, "value": value.item()})
    save("multivector/losses", arrays, {"B": B, "D": D, "cases": cases}, __file__, SEED, ["sentence_transformers"])
    report(__file__)


main()
