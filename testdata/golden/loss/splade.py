"""Makes loss/splade: values and gradients of losses of sparse embeddings with their regularizers, as sentence-transformers' SpladeLoss computes them
in float64 (through CachedSpladeLoss, whose calculate_loss takes embeddings).

Needs torch 2.9 and sentence-transformers 6.2. Run: python testdata/golden/loss/splade.py (10 s; writes only here)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
from goldens import normal, save
from sentence_transformers.sparse_encoder import losses as L

SEED = 20261128
B, V = 6, 11
BASES = {
    "mnrl": lambda: L.SparseMultipleNegativesRankingLoss(None),
    "margin_mse": lambda: L.SparseMarginMSELoss(None),
    "distill_kl": lambda: L.SparseDistillKLDivLoss(None),
    "triplet": lambda: L.SparseTripletLoss(None),
}
OPTIONS = {
    "both": {"document_regularizer_weight": 0.7, "query_regularizer_weight": 0.4},
    "document": {"document_regularizer_weight": 0.3},
    "thresholds": {"document_regularizer_weight": 0.7, "query_regularizer_weight": 0.4, "document_regularizer_threshold": 5, "query_regularizer_threshold": 4},
    "together": {"document_regularizer_weight": 0.9, "use_document_regularizer_only": True, "document_regularizer_threshold": 3},
}

generator = torch.Generator().manual_seed(SEED)
columns = [torch.relu(normal(generator, B, V)) for _ in range(3)]
scores = normal(generator, B, 2)
arrays, cases = {"x": torch.cat(columns), "scores": scores.T.reshape(-1)}, []
for base, make in BASES.items():
    for name, options in OPTIONS.items():
        held = [c.clone().requires_grad_() for c in columns]
        labels = {"margin_mse": scores[:, 0] - scores[:, 1], "distill_kl": scores}.get(base)
        loss = L.CachedSpladeLoss(None, make(), **options)
        value = loss.calculate_loss([[h] for h in held], labels)
        value.backward()
        label = f"{base}/{name}"
        arrays[label] = torch.cat([h.grad for h in held])
        added = sum(v for k, v in loss._component_values.items() if k != "base_loss")
        cases.append({"name": label, "base": base, "options": options, "loss": value.item(), "added": added})
active = (torch.cat(columns) > 0).sum(1)
assert active.min() <= 4 < active.max()
meta = {"about": "SpladeLoss of random embeddings", "rows": B, "size": V, "cases": cases, "query_active": active[:B].double().mean().item(), "document_active": active[B:].double().mean().item()}
save("loss/splade", arrays, meta, __file__, SEED, ["sentence_transformers"])
