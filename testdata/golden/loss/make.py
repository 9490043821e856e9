"""Makes loss/mnrl and loss/masked: the contrastive loss and its gradient with respect to every embedding, in float64.

mnrl comes from sentence-transformers' MultipleNegativesRankingLoss.compute_loss_from_embeddings itself: every set of
directions it takes, both partition modes, cosine and dot product. masked adds what sentence-transformers does not have,
row weights and masking of duplicates by the identity of texts; its formulas are written out here (see `rows_loss` and
`excluded`) and give what sentence-transformers gives when no weight and no duplicate is there.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/make.py (some seconds; writes only here)
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
from goldens import exact, normal, report, save
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import cos_sim, dot_score

SEED = 20261102
G = torch.Generator().manual_seed(SEED)

# In the order in which sentence-transformers joins the scores.
DIRECTIONS = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
SHORT = {"query_to_doc": "qd", "query_to_query": "qq", "doc_to_query": "dq", "doc_to_doc": "dd"}
SIMILARITY = {"cos": cos_sim, "dot": dot_score}
FORMS = [
    (("query_to_doc", *more), "joint") for n in range(4) for more in itertools.combinations(DIRECTIONS[1:], n)
] + [(("query_to_doc",), "per_direction"), (("query_to_doc", "doc_to_query"), "per_direction")]


def form_name(directions, partition):
    return "+".join(SHORT[d] for d in directions) + ("" if partition == "joint" else "_per_direction")


def embeddings(B, E, K):
    """[2+K, B, E]: queries, positives, then K columns of negatives, that have something to do with each other."""
    topic = normal(G, 1, B, E)
    return exact(topic * 0.7 + normal(G, 2 + K, B, E))


def peer(x, directions, partition, similarity, scale):
    """Loss and gradient by sentence-transformers. x is [2+K, B, E]."""
    x = x.clone().requires_grad_(True)
    loss = MultipleNegativesRankingLoss(
        None, scale=scale, similarity_fct=SIMILARITY[similarity], directions=directions, partition_mode=partition
    )
    value = loss.compute_loss_from_embeddings(list(x.unbind(0)), None)
    value.backward()
    return value.item(), x.grad


def make_mnrl():
    arrays, cases = {}, []

    def add(key, forms, pairs, scales):
        for (directions, partition), (data, similarity), scale in itertools.product(forms, pairs, scales):
            x = arrays[f"{key}/{data}"]
            value, grad = peer(x, directions, partition, similarity, scale)
            name = f"{key}/{data}/{similarity}{scale}/{form_name(directions, partition)}"
            arrays[name] = grad
            columns, B, E = x.shape
            cases.append({
                "name": name, "x": f"{key}/{data}", "B": B, "E": E, "negatives": columns - 2, "similarity": similarity,
                "scale": scale, "directions": directions, "partition_mode": partition, "loss": value + 0.0,  # never -0
            })  # fmt: skip

    def inputs(B, E, K):
        key = f"B{B}_E{E}_N{K}"
        raw = embeddings(B, E, K)
        arrays[f"{key}/raw"], arrays[f"{key}/unit"] = raw, exact(F.normalize(raw, dim=2))
        return key

    for B, K in itertools.product((1, 2, 7), (0, 1, 3)):
        key = inputs(B, 8, K)
        add(key, FORMS, [("unit", "dot"), ("raw", "cos")], (20, 5))
        if K == 1:
            add(key, FORMS, [("unit", "cos"), ("raw", "dot")], (5,))
    for B in (1, 2, 7):
        add(inputs(B, 24, 1), FORMS, [("unit", "dot"), ("raw", "cos")], (20,))
    common = FORMS[:1] + FORMS[7:8] + FORMS[9:]  # query_to_doc, all four jointly, symmetric
    for K in (0, 1, 3):
        key = inputs(33, 24, K)
        add(key, FORMS if K == 1 else common, [("unit", "dot")], (20,))
        add(key, common, [("raw", "cos")], (5,))
    add(inputs(33, 8, 1), FORMS, [("unit", "dot")], (20,))
    save(
        "loss/mnrl", arrays,
        {"about": "sentence-transformers' MultipleNegativesRankingLoss on given embeddings, in float64", "cases": cases},
        __file__, SEED, ["sentence_transformers"],
    )  # fmt: skip
    return len(cases)


def excluded(direction, q, p, docs, mask_duplicates):
    """[B, N] of 0 and 1: the candidates that row i's softmax leaves out, in one direction.

    q, p: [B] identities of the query and positive texts; docs: [1+K, B] those of all documents, positives first. A
    candidate document d = (c, j) is row j's document of column c, at place c*B + j.
    """
    B, N = len(q), docs.numel()
    out = torch.zeros(B, N if direction.endswith("doc") else B, dtype=torch.int32)
    for i in range(B):
        for n in range(out.shape[1]):
            c, j = divmod(n, B)
            if direction == "query_to_doc":
                own = c == 0 and j == i  # the positive is never left out
                same = docs[c, j] == p[i] or docs[c, j] == q[i] or (c == 0 and q[j] == q[i])
                out[i, n] = not own and mask_duplicates and same
            elif direction == "doc_to_query":
                own = j == i
                same = q[j] == q[i] or q[j] == p[i] or p[j] == p[i]
                out[i, n] = not own and mask_duplicates and same
            elif direction == "query_to_query":
                same = q[j] == q[i] or q[j] == p[i] or p[j] == p[i]
                out[i, n] = j == i or (mask_duplicates and same)
            elif direction == "doc_to_doc":  # every document of the row itself is left out
                same = docs[c, j] == p[i] or docs[c, j] == q[i] or (c == 0 and q[j] == q[i])
                out[i, n] = j == i or (mask_duplicates and same)
    return out


def rows_loss(x, directions, partition, scale, masks):
    """l_i for each row: -s(q_i, p_i) + log Z_i, with s = scale * dot product.

    joint:          Z_i = sum over the directions and their candidates that are not left out of exp(s)
    per_direction:  log Z_i = the mean over directions of log(sum over that direction's candidates of exp(s))
    """
    queries, documents = x[0], x[1:].reshape(-1, x.shape[2])
    anchors = {"query": queries, "doc": x[1]}
    candidates = {"query": queries, "doc": documents}
    scores = []
    for direction in directions:
        a, b = direction.split("_to_")
        s = scale * anchors[a] @ candidates[b].T
        scores.append(s.masked_fill(masks[direction].bool(), -torch.inf))
    positive = scale * (queries * x[1]).sum(1)
    if partition == "joint":
        log_z = torch.logsumexp(torch.cat(scores, dim=1), dim=1)
    else:
        log_z = sum(torch.logsumexp(s, dim=1) for s in scores) / len(scores)
    return log_z - positive


def identities(B, K, kind):
    """[2+K, B] text identities: queries, positives, negatives. Equal numbers are equal texts."""
    ids = torch.arange((2 + K) * B).reshape(2 + K, B)
    if kind == "distinct" or B < 7:
        return ids
    if kind == "one_query":  # all rows ask the same
        ids[0] = 0
        return ids
    if kind == "one_positive":
        ids[1] = 1000
        return ids
    q, p = ids[0], ids[1]
    q[2] = q[0]  # two rows with one query and different positives
    p[3] = p[1]  # two rows with one positive and different queries
    q[5], p[5] = q[4], p[4]  # the same pair twice
    p[6] = q[0]  # a positive that is another row's query
    if B > 8:
        q[8] = p[8]  # a row whose positive is its own query
        q[9] = p[7]  # a query that is another row's positive
        q[12] = q[11] = q[10]
    if K:
        n = ids[2]
        n[0] = p[0]  # a hard negative that is its own row's positive
        n[1] = p[5]  # or another row's
        n[2] = q[3]  # or another row's query
        n[3] = q[3]  # or its own
        n[5] = n[4]  # the same negative twice: both stay, neither is an anchor's text
    if K > 1:
        ids[3, 6] = ids[2, 6]
        ids[3, 4] = p[2]
    return ids


def make_masked():
    arrays, cases = {}, []
    for B, E, K, kinds in [
        (7, 8, 0, ("mixed", "one_query", "one_positive")),
        (7, 8, 1, ("distinct", "mixed")),
        (7, 8, 3, ("mixed",)),
        (33, 8, 1, ("mixed",)),
        (1, 8, 1, ("distinct",)),
    ]:
        for kind in kinds:
            key = f"B{B}_E{E}_N{K}_{kind}"
            x = exact(F.normalize(embeddings(B, E, K), dim=2))
            ids = identities(B, K, kind)
            weights = exact(torch.rand(B, generator=G, dtype=torch.float64) * 3 + 0.1)
            if B > 1:
                weights[1] = 0.0  # the row counts as a candidate only
            arrays.update({f"{key}/x": x, f"{key}/text_ids": ids, f"{key}/weights": weights})
            plain = {d: excluded(d, ids[0], ids[1], ids[1:], False) for d in DIRECTIONS}
            masks = {d: excluded(d, ids[0], ids[1], ids[1:], True) for d in DIRECTIONS}
            arrays.update({f"{key}/excluded_{SHORT[d]}": m for d, m in masks.items()})
            for (directions, partition), weighted, masked in itertools.product(FORMS, (False, True), (False, True)):
                if B == 33 and not (weighted and masked):
                    continue
                v = x.clone().requires_grad_(True)
                rows = rows_loss(v, directions, partition, 20, masks if masked else plain)
                w = weights if weighted else torch.ones_like(weights)
                value = (w * rows).sum() / w.sum()
                value.backward()
                if not weighted and not masked:
                    want, gradient = peer(x, directions, partition, "dot", 20)
                    assert abs(value.item() - want) < 1e-12 and (v.grad - gradient).abs().max() < 1e-12
                name = f"{key}/{'weighted' if weighted else 'equal'}_{'masked' if masked else 'plain'}/" + form_name(
                    directions, partition
                )
                arrays[name], arrays[f"{name}/rows"] = v.grad, rows
                cases.append({
                    "name": name, "data": key, "B": B, "E": E, "negatives": K, "scale": 20, "directions": directions,
                    "partition_mode": partition, "weighted": weighted, "masked": masked, "loss": value.item() + 0.0,
                })  # fmt: skip
    save(
        "loss/masked", arrays,
        {
            "about": "sum w_i l_i / sum w_i over dot products of unit embeddings, with candidates left out by text identity",
            "cases": cases,
        },
        __file__, SEED, ["sentence_transformers"],
    )  # fmt: skip
    return len(cases)


print(make_mnrl(), "cases of mnrl,", make_masked(), "of masked", file=sys.stderr)
report(__file__)
