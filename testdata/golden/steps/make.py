"""Makes steps/*: ten training steps of bert/minilm-tiny by sentence-transformers, with dropout 0, for five losses.

The loop is the one of transformers' Trainer: AdamW (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01 but on no bias
and no LayerNorm), gradients clipped to a global norm of 1, linear schedule with 2 warm-up steps of 10 (so that the first
step has a learning rate of 0). Everything runs twice, in float32 as users do and in float64.

Needs torch 2.9, transformers 5, sentence-transformers 6.2, and bert/minilm-tiny (testdata/golden/bert/make.py makes it).
Run: python testdata/golden/steps/make.py (half a minute; writes only here)
"""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import transformers
from goldens import GOLDEN, error, report, save
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from transformers.trainer_pt_utils import get_parameter_names

SEED = 20261104
STEPS, WARMUP, BATCH = 10, 2, 16
LR, DECAY, MAX_NORM = 1e-3, 0.01, 1.0
FOLDER = GOLDEN / "bert" / "minilm-tiny"
MODULES = ["transformers", "tokenizers", "sentence_transformers"]
transformers.utils.logging.disable_progress_bar()

ALL = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
SYMMETRIC = ("query_to_doc", "doc_to_query")
# name: (columns used, loss class, its arguments)
VARIANTS = {
    "mnrl": (2, MultipleNegativesRankingLoss, {}),
    "mnrl_hard_negatives": (3, MultipleNegativesRankingLoss, {}),
    "mnrl_all_directions": (3, MultipleNegativesRankingLoss, {"directions": ALL}),
    "mnrl_symmetric": (2, MultipleNegativesRankingLoss, {"directions": SYMMETRIC, "partition_mode": "per_direction"}),
    "cached_mnrl": (3, CachedMultipleNegativesRankingLoss, {"mini_batch_size": 5}),
}


def make_texts():
    """[step][row][query, positive, negative]. A positive shares words with its query; no text occurs twice."""
    rng = random.Random(SEED)
    vocabulary = (FOLDER / "vocab.txt").read_text().split()
    words = [w for w in vocabulary if w.isalpha()]
    seen = set()

    def text(count, keep=()):
        while True:
            chosen = list(keep) + rng.choices(words, k=count)
            rng.shuffle(chosen)
            joined = " ".join(chosen)
            if joined not in seen:
                seen.add(joined)
                return joined

    rows = []
    for _ in range(STEPS * BATCH):
        query = text(rng.randint(1, 8)) if rng.random() < 0.9 else text(2)
        mine = query.split()
        positive = text(rng.randint(2, 18), rng.sample(mine, (len(mine) + 1) // 2))
        negative = text(rng.randint(1, 12), rng.sample(mine, 1))
        rows.append([query, positive, negative])
    return [rows[s * BATCH : (s + 1) * BATCH] for s in range(STEPS)]


def optimizer_of(model):
    """transformers' Trainer.create_optimizer and get_decay_parameter_names."""
    forbidden = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], forbidden))
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n in decayed], "weight_decay": DECAY},
        {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8), decayed


def plain(name):
    """The name that a parameter has in model.safetensors."""
    return name.removeprefix("0.model.").removeprefix("0.auto_model.")


def train(columns, loss_class, options, texts, dtype):
    model = SentenceTransformer(str(FOLDER), device="cpu", model_kwargs={"attn_implementation": "eager"}).to(dtype)
    model.train()
    loss = loss_class(model, **options)
    optimizer, decayed = optimizer_of(model)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    log = {"loss": [], "grad_norm": [], "lr": []}
    first = {}
    for batch in texts:
        features = [model.preprocess([row[c] for row in batch]) for c in range(columns)]
        optimizer.zero_grad()
        value = loss(features, None)
        value.backward()
        if not first:
            first = {plain(n): p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        log["loss"].append(value.item())
        log["grad_norm"].append(norm.item())
        log["lr"].append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    weights = {plain(n): p.detach() for n, p in model.named_parameters() if p.grad is not None}
    return log, first, weights, {plain(n) for n in decayed}


def tokens(texts):
    model = SentenceTransformer(str(FOLDER), device="cpu")
    ids = []
    for batch in texts:
        for c in range(3):
            features = model.preprocess([row[c] for row in batch])
            ids += [i[m.bool()] for i, m in zip(features["input_ids"], features["attention_mask"])]
    lengths = torch.tensor([len(i) for i in ids], dtype=torch.int32).reshape(STEPS, 3, BATCH)
    return {"ids": torch.cat(ids).to(torch.int32), "lengths": lengths}


texts = make_texts()
save(
    "steps/texts", tokens(texts),
    {"about": "texts of each step: rows of query, positive, negative; and their token ids", "steps": texts},
    __file__, SEED, MODULES,
)  # fmt: skip

for name, (columns, loss_class, options) in VARIANTS.items():
    single, _, weights32, _ = train(columns, loss_class, options, texts, torch.float32)
    double, first, weights, decayed = train(columns, loss_class, options, texts, torch.float64)
    start = {plain(n): p for n, p in SentenceTransformer(str(FOLDER), device="cpu").named_parameters()}
    arrays = {f"{k}_f64": torch.tensor(v, dtype=torch.float64) for k, v in double.items()}
    arrays |= {f"{k}_f32": torch.tensor(v, dtype=torch.float64) for k, v in single.items() if k != "lr"}
    if name != "cached_mnrl":  # its gradient is that of mnrl_hard_negatives
        arrays |= {f"grad/{n}": g.float() for n, g in first.items()}
    if name == "mnrl":
        arrays |= {f"final/{n}": p.float() for n, p in weights.items()}
        arrays |= {f"final_f32/{n}": p for n, p in weights32.items()}
    relative = max(abs(a - b) / b for a, b in zip(single["loss"], double["loss"]))
    norms = max(abs(a - b) / b for a, b in zip(single["grad_norm"], double["grad_norm"]))
    moved = {n: (weights[n] - start[n]).norm().item() for n in weights}
    apart = {n: (weights32[n].double() - weights[n]).norm().item() / moved[n] for n in weights}
    worst = max((v, n) for n, v in apart.items() if not n.endswith("key.bias"))
    print(
        f"{name}: loss {double['loss'][0]:.4f} to {double['loss'][-1]:.4f}; float32 against float64: losses {relative:.1e}, "
        f"norms {norms:.1e}, |difference| / |movement| of final weights {worst[0]:.1e} in {worst[1]}",
        file=sys.stderr,
    )
    save(
        f"steps/{name}", arrays,
        {
            "about": "ten training steps by sentence-transformers", "weights": "bert/minilm-tiny/model", "texts": "steps/texts",
            "columns": columns, "loss": loss_class.__name__, "options": options, "scale": 20, "similarity": "cos",
            "optimizer": {
                "name": "adamw", "lr": LR, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": DECAY, "max_grad_norm": MAX_NORM,
                "schedule": "linear", "warmup_steps": WARMUP, "steps": STEPS,
            },
            "decayed": sorted(decayed & set(weights)),
        },
        __file__, SEED, MODULES,
    )  # fmt: skip
report(__file__)
