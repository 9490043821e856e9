"""Makes loss/rank: values and gradients of the losses of rerankers for groups of documents, as sentence-transformers' losses of
CrossEncoder compute them in float64, and FlagEmbedding's (AbsRerankerModel.forward, which is cross_entropy of torch) by hand.

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/rank.py (10 s; writes only here)
"""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))
spec = importlib.util.spec_from_file_location("families", HERE.parent / "families" / "make.py")
families = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)

import torch
import torch.nn.functional as F
from goldens import save
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses as L
from sentence_transformers.cross_encoder.losses.lambda_loss import LambdaRankScheme, NDCGLoss1Scheme, NDCGLoss2PPScheme, NDCGLoss2Scheme

SEED = 20261122
SIZES = [4, 1, 7, 3, 2]  # of the groups


class Fake(CrossEncoder):
    """Gives the scores that it holds, whatever the texts: "3" has scores[3]."""

    def __init__(self, scores):
        torch.nn.Module.__init__(self)
        self.scores_held = scores

    num_labels = 1
    device = torch.device("cpu")

    def preprocess(self, pairs, prompt=None, task=None):
        return {"at": torch.tensor([int(document) for _, document in pairs])}

    def forward(self, features):
        return {"scores": self.scores_held[features["at"]].unsqueeze(1)}


def run(loss, scores, sizes, labels, margin=False, flat=False):
    held = scores.clone().requires_grad_()
    names = [str(i) for i in range(len(held))]
    groups, grouped = [], []
    for n in sizes:
        at = sum(len(g) for g in groups)
        groups.append(names[at : at + n])
        grouped.append(labels[at : at + n])
    queries = ["q"] * len(groups)
    with families.in_double():
        made = loss(Fake(held))
        if flat:
            value = made([["q"] * len(held), names], labels)
        elif margin:
            columns = [list(c) for c in zip(*groups)]
            value = made([queries, *columns], torch.stack(grouped))
        else:
            value = made([queries, groups], grouped)
        value.backward()
    return value.detach(), held.grad


generator = torch.Generator().manual_seed(SEED)
scores = torch.randn(sum(SIZES), generator=generator, dtype=torch.float64) * 3
graded = torch.tensor([2, 0, 1, 0, 1, 3, 0, 0, 2, 1, 1, 0, 0, 1, 0, 1, 1][: sum(SIZES)], dtype=torch.float64)
binary = (graded > 0).double()
teacher = torch.randn(sum(SIZES), generator=generator, dtype=torch.float64) * 2
even = torch.arange(16)
cases = {}


def case(name, fields, value_grad, labels, sizes):
    value, grad = value_grad
    arrays[f"{name}/value"], arrays[f"{name}/grad"], arrays[f"{name}/labels"], arrays[f"{name}/sizes"] = value.reshape(1), grad, labels, torch.tensor(sizes)
    cases[name] = fields


arrays = {"scores": scores}
case("list_net", {"Name": "list_net"}, run(L.ListNetLoss, scores, SIZES, graded), graded, SIZES)
case("list_mle", {"Name": "list_mle"}, run(L.ListMLELoss, scores, SIZES, graded), graded, SIZES)
distinct = teacher  # an order that sorting finds, whatever it does with ties
case("list_mle by label", {"Name": "list_mle", "ByLabel": True}, run(lambda m: L.ListMLELoss(m, respect_input_order=False), scores, SIZES, distinct), distinct, SIZES)
case("p_list_mle", {"Name": "p_list_mle"}, run(L.PListMLELoss, scores, SIZES, graded), graded, SIZES)
case("rank_net", {"Name": "rank_net"}, run(L.RankNetLoss, scores, SIZES, graded), graded, SIZES)
case("rank_net k", {"Name": "rank_net", "K": 2, "Sigma": 0.5}, run(lambda m: L.RankNetLoss(m, k=2, sigma=0.5), scores, SIZES, graded), graded, SIZES)
case("lambda", {"Name": "lambda"}, run(L.LambdaLoss, scores, SIZES, graded), graded, SIZES)
for scheme, cls in [("ndcg_loss2pp", lambda: NDCGLoss2PPScheme(mu=3.0)), ("ndcg_loss2", NDCGLoss2Scheme), ("ndcg_loss1", NDCGLoss1Scheme), ("lambda_rank", LambdaRankScheme)]:
    fields = {"Name": "lambda", "Scheme": scheme, "K": 3, "Mu": 3.0 if scheme == "ndcg_loss2pp" else 0.0}
    case(f"lambda {scheme}", fields, run(lambda m: L.LambdaLoss(m, weighting_scheme=cls(), k=3), scores, SIZES, graded), graded, SIZES)
case("lambda none relevant", {"Name": "lambda"}, run(L.LambdaLoss, scores, SIZES, graded * torch.tensor([1.0] * 4 + [0.0] * 13)), graded * torch.tensor([1.0] * 4 + [0.0] * 13), SIZES)
ones = [1] * len(scores)
case("bce", {"Name": "bce"}, run(L.BinaryCrossEntropyLoss, scores, ones, binary, flat=True), binary, ones)
case("bce weighted", {"Name": "bce", "PosWeight": 2.5}, run(lambda m: L.BinaryCrossEntropyLoss(m, pos_weight=torch.tensor(2.5)), scores, ones, binary, flat=True), binary, ones)
case("mse", {"Name": "mse"}, run(L.MSELoss, scores, ones, teacher, flat=True), teacher, ones)
case("margin_mse", {"Name": "margin_mse"}, run(L.MarginMSELoss, scores, [4] * 4, teacher[even], margin=True), teacher, [4] * 4)

case("adr_mse", {"Name": "adr_mse"}, run(L.ADRMSELoss, scores, SIZES, graded), graded, SIZES)
case("adr_mse alpha", {"Name": "adr_mse", "Alpha": 2.5}, run(lambda m: L.ADRMSELoss(m, alpha=2.5), scores, SIZES, teacher), teacher, SIZES)

sigmoid = {"activation_fn": torch.nn.Sigmoid()}
for name, cls, labels in [
    ("list_net", L.ListNetLoss, graded), ("list_mle", L.ListMLELoss, graded), ("p_list_mle", L.PListMLELoss, graded), ("rank_net", L.RankNetLoss, graded),
    ("lambda", L.LambdaLoss, graded), ("adr_mse", L.ADRMSELoss, graded),
]:  # fmt: skip
    case(f"{name} of sigmoids", {"Name": name, "Activation": "sigmoid"}, run(lambda m: cls(m, **sigmoid), scores, SIZES, labels), labels, SIZES)
case("bce of sigmoids", {"Name": "bce", "Activation": "sigmoid"}, run(lambda m: L.BinaryCrossEntropyLoss(m, **sigmoid), scores, ones, binary, flat=True), binary, ones)
case("mse of sigmoids", {"Name": "mse", "Activation": "sigmoid"}, run(lambda m: L.MSELoss(m, **sigmoid), scores, ones, teacher, flat=True), teacher, ones)
margins = run(lambda m: L.MarginMSELoss(m, **sigmoid), scores, [4] * 4, teacher[even], margin=True)
case("margin_mse of sigmoids", {"Name": "margin_mse", "Activation": "sigmoid"}, margins, teacher, [4] * 4)


def by_hand(f, labels):
    held = scores.clone().requires_grad_()
    s, l = held.split(SIZES), labels.split(SIZES)
    value = torch.stack([f(a, b) for a, b in zip(s, l)]).mean()
    value.backward()
    return value.detach(), held.grad


first = lambda s, _: F.cross_entropy(s[None], torch.zeros(1, dtype=torch.long))
taught = lambda s, l: -(torch.log_softmax(s, -1) * torch.softmax(l, -1)).sum()
case("cross_entropy", {"Name": "cross_entropy"}, by_hand(first, teacher), teacher, SIZES)
case("kl", {"Name": "kl"}, by_hand(taught, teacher), teacher, SIZES)
case("distill", {"Name": "distill"}, by_hand(lambda s, l: first(s, l) + taught(s, l), teacher), teacher, SIZES)


def among_own(**options):
    """Of a batch of one row the loss has no other rows' documents, and the groups may be of any sizes."""
    held = scores.clone().requires_grad_()
    with families.in_double():
        made = L.MultipleNegativesRankingLoss(Fake(held), num_negatives=None, **options)
        value = torch.stack([made([["q"], *[[str(int(i))] for i in group]], None) for group in torch.arange(len(scores)).split(SIZES)]).mean()
        value.backward()
    return value.detach(), held.grad


case("mnrl", {"Name": "mnrl"}, among_own(), teacher, SIZES)
case("mnrl scaled", {"Name": "mnrl", "Scale": 3.5, "Activation": "sigmoid"}, among_own(scale=3.5), teacher, SIZES)
case("mnrl of scores", {"Name": "mnrl", "Scale": 0.7, "Activation": "identity"}, among_own(scale=0.7, activation_fn=None), teacher, SIZES)
save("loss/rank", arrays, {"about": "scores of groups, one after the other", "cases": cases}, __file__, SEED, ["sentence_transformers"])
