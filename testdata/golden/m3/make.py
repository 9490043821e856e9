"""Makes m3/*: what FlagEmbedding's M3 learns from, in float64.

losses: the objective of its unified fine-tuning (EncoderOnlyEmbedderM3Model.forward of FlagEmbedding 1.4), each head alone,
self-distillation and both forms of distillation from a teacher, with the gradient of every part: of embeddings, of tokens' lexical
weights, of tokens' vectors. The formulas are written out here, over texts without padding; testdata/peers/m3.py compares them with
FlagEmbedding itself.

model: a random XLM-RoBERTa with the two heads as FlagEmbedding saves them (colbert_linear.pt, sparse_linear.pt): its three parts of some
texts, and the gradient of sum(part * r) with respect to every parameter.

files: what torch.save writes of a linear layer in several ways.

Needs torch 2.9 and transformers 5.23. Run: python testdata/golden/m3/make.py (10 s; writes only here)
"""

import collections
import copy
import itertools
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import exact, normal, report, save

SEED = 20261122
G = torch.Generator().manual_seed(SEED)
SPECIAL = [0, 1, 2, 3]  # cls, pad, eos, unk
VOCAB = 10  # few, so that texts have tokens several times
PARTS = ("dense", "sparse", "multi_vector")


def lexical(ids, weights):
    """[V]: of each token the largest weight, special tokens without any."""
    each = torch.zeros(len(ids), VOCAB, dtype=weights.dtype).scatter(1, ids[:, None], weights[:, None])
    keep = torch.ones(VOCAB, dtype=weights.dtype)
    keep[SPECIAL] = 0
    return each.max(0).values * keep


def all_scores(x, B, temperature):
    """Scores [B, N-B] of queries, the first B texts, with all documents, by part."""
    dense = x["dense"][:B] @ x["dense"][B:].T
    words = torch.stack([lexical(i, w) for i, w in zip(x["ids"], x["sparse"])])
    sparse = words[:B] @ words[B:].T
    vectors = torch.stack([torch.stack([(q @ d.T).max(1).values.mean() for d in x["multi_vector"][B:]]) for q in x["multi_vector"][:B]])
    return {"dense": dense / temperature, "sparse": sparse / temperature, "multi_vector": vectors / temperature}


def contrast(scores, own, teacher, kind):
    """The mean over rows of what FlagEmbedding makes of scores; own [B, K] are each row's documents, the positive first."""
    rows = torch.arange(len(scores))
    first = F.cross_entropy(scores, own[:, 0])
    if kind == "":
        return first
    target = torch.softmax(teacher, dim=1)
    if kind == "kl_div":
        return first - (target * F.log_softmax(scores[rows[:, None], own], dim=1)).sum(1).mean()
    total = 0
    for k in range(own.shape[1]):
        left = scores.clone()
        for before in range(k):
            left[rows, own[:, before]] = -torch.inf
        total = total + (target[:, k] * F.cross_entropy(left, own[:, k], reduction="none")).mean()
    return total


def objective(x, B, own, parts, temperature, distill, teacher, kind):
    scores = all_scores(x, B, temperature)
    share = {"dense": 1.0, "sparse": 0.1 if len(parts) > 1 else 1.0, "multi_vector": 1.0}
    losses = [share[p] * contrast(scores[p], own, teacher, kind) for p in parts]
    if len(parts) == 1:
        return losses[0]
    fused = sum({"dense": 1.0, "sparse": 0.3, "multi_vector": 1.0}[p] * scores[p] for p in parts)
    loss = (sum(losses) + contrast(fused, own, teacher, kind)) / (len(parts) + 1)
    if distill:
        target = torch.softmax(fused.detach(), dim=1)
        h = [-share[p] * (target * F.log_softmax(scores[p], dim=1)).sum(1).mean() for p in parts]
        loss = (loss + sum(h) / len(parts)) / 2
    return loss


def make_losses():
    arrays, cases = {}, []
    for name, B, K, E, D in (("small", 3, 0, 4, 3), ("negatives", 5, 2, 6, 5)):
        N = B * (2 + K)
        lengths = torch.randint(1, 9, (N,), generator=G)
        cuts = lengths.tolist()
        data = {
            "dense": exact(F.normalize(normal(G, N, E), dim=1)),
            "sparse": exact(torch.relu(normal(G, int(lengths.sum()), std=0.6))),
            "multi_vector": exact(F.normalize(normal(G, int(lengths.sum()), D), dim=1)),
        }
        ids = torch.randint(0, VOCAB, (int(lengths.sum()),), generator=G)
        teacher = normal(G, B, 1 + K, std=2.0)
        own = torch.arange(B)[:, None] + B * torch.arange(1 + K)[None]  # columns of documents, one behind the other
        arrays |= {f"{name}/{k}": v for k, v in {**data, "lengths": lengths, "ids": ids, "teacher": teacher}.items()}
        choices = [PARTS, *((p,) for p in PARTS), ("dense", "multi_vector")]
        for parts, distill, kind, temperature in itertools.product(choices, (False, True), ("", "kl_div", "m3_kd_loss"), (0.02, 0.5)):
            if distill and len(parts) == 1 or kind and K == 0 or temperature == 0.02 and parts != PARTS:
                continue
            leaves = {k: v.clone().requires_grad_(True) for k, v in data.items()}
            weights = torch.relu(leaves["sparse"])  # so that a weight of 0 has no gradient, as behind the head's ReLU
            x = {"dense": leaves["dense"], "ids": ids.split(cuts), "sparse": weights.split(cuts), "multi_vector": leaves["multi_vector"].split(cuts)}
            loss = objective(x, B, own, parts, temperature, distill, teacher, kind)
            loss.backward()
            case = f"{name}/{len(cases)}"
            for k, v in leaves.items():
                arrays[f"{case}/{k}"] = v.grad if v.grad is not None else torch.zeros_like(v)
            cases.append({"name": case, "data": name, "B": B, "negatives": K, "E": E, "D": D, "parts": list(parts), "self_distill": distill,
                          "distillation": kind, "scale": 1 / temperature, "loss": loss.item()})  # fmt: skip
    save("m3/losses", arrays, {"special": SPECIAL, "cases": cases}, __file__, SEED)


def make_model():
    lengths, hidden, dim = [4, 9, 2, 6], 16, 12
    config = transformers.XLMRobertaConfig(
        vocab_size=40, hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=20, type_vocab_size=1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=1, bos_token_id=0, eos_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    model = transformers.XLMRobertaModel(config, add_pooling_layer=False).eval()
    heads = torch.nn.ModuleDict({"colbert_linear": torch.nn.Linear(hidden, dim), "sparse_linear": torch.nn.Linear(hidden, 1)})
    with torch.no_grad():
        for p in itertools.chain(model.parameters(), heads.parameters()):
            p.copy_((p + torch.randn(p.shape, generator=G) * 0.1).bfloat16().float())
    folder = HERE / "model"
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    for name, head in heads.items():
        torch.save(collections.OrderedDict((k, v.clone()) for k, v in head.state_dict().items()), folder / f"{name}.pt")
    for file in folder.iterdir():
        file.chmod(0o644)
    model, heads = model.double(), heads.double()
    rows = [torch.randint(4, 40, (n,), generator=G) for n in lengths]
    parts = {"dense": [], "sparse": [], "multi_vector": []}
    for row in rows:
        h = model(input_ids=row[None], attention_mask=torch.ones(1, len(row), dtype=torch.int64)).last_hidden_state[0]
        parts["dense"].append(F.normalize(h[:1], dim=1))
        parts["sparse"].append(torch.relu(heads["sparse_linear"](h[1:])))
        parts["multi_vector"].append(F.normalize(heads["colbert_linear"](h[1:]), dim=1))
    parts = {k: torch.cat(v) for k, v in parts.items()}
    r = {k: normal(G, *v.shape) for k, v in parts.items()}
    sum((parts[k] * r[k]).sum() for k in parts).backward()
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(lengths)}
    arrays |= {f"part/{k}": v for k, v in parts.items()} | {f"r/{k}": v for k, v in r.items()}
    arrays |= {f"head/{n}": p for n, p in heads.named_parameters()}
    for n, p in itertools.chain(model.named_parameters(), heads.named_parameters()):
        arrays["grad/" + n] = p.grad
    save("m3/model", arrays, {"about": "gradients are those of sum(part * r)", "dim": dim}, __file__, SEED, ["transformers"])


def make_files():
    folder = HERE / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6).reshape(2, 3) / 4)
        linear.bias.copy_(torch.tensor([-1.5, 2.0]))
    whole = torch.arange(20.0)
    for name, value in {
        "state_dict": linear.state_dict(),  # with _metadata
        "half": linear.half().state_dict(),
        "bfloat16": linear.bfloat16().state_dict(),
        "double": linear.double().state_dict(),
        "parameters": {"weight": torch.nn.Parameter(torch.ones(2, 2)), "bias": torch.nn.Parameter(torch.zeros(2), requires_grad=False)},
        "views": {"weight": whole[4:10].reshape(2, 3), "bias": whole[10:12]},  # of one storage
        "transposed": {"weight": whole[:6].reshape(2, 3).T},
        "nested": {"state_dict": {"weight": torch.ones(1)}},
        "module": linear,  # a pickle of a class
        # contiguous, though strides along dimensions of 1 are any; a scalar; nothing
        "unusual": {"row": whole.as_strided((1, 4), (3, 1)), "column": whole.as_strided((3, 1), (1, 7)), "scalar": torch.tensor(2.5), "none": torch.zeros(2, 0, 3)},
        "negative": {"weight": torch._neg_view(torch.arange(3.0))},  # which its storage is not
    }.items():
        torch.save(value, folder / f"{name}.pt")
    torch.save({"weight": torch.ones(2)}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    for file in folder.iterdir():
        file.chmod(0o644)


make_losses()
make_model()
make_files()
report(__file__)
