"""Makes dense/*: a random small BERT whose pooled embeddings go through dense layers, modules of sentence-transformers, before they are
normalized: embeddings and the gradient of every parameter, in float64.

    dense/chain     as EmbeddingGemma has them: two, without biases, the first one wider
    dense/tanh      as LaBSE has it: one, with bias and tanh, of as many features
    dense/narrow    gelu, then relu, then tanh, each with a bias; not normalized

Arrays: ids, lengths, r [B, E]; weight/NAME and grad/NAME (of sum(embedding * r)) for each parameter; embedding. meta.config is config.json,
meta.dense the layers.

Needs torch 2.9, transformers 5.23 and sentence-transformers 6.2. Run: python testdata/golden/dense/make.py (seconds; writes only here)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import normal, report, save
from sentence_transformers.base.modules import Dense

SEED = 20261121
LENGTHS = [1, 12, 6, 2, 9]
VOCAB, HIDDEN = 50, 16
CASES = {
    "chain": ([(40, False, "Identity"), (12, False, "Identity")], "mean", True),
    "tanh": ([(16, True, "Tanh")], "cls", True),
    "narrow": ([(9, True, "GELU"), (20, True, "ReLU"), (5, True, "Tanh")], "last", False),
}


def make(number, name, layers, pooling, normalize):
    seed = SEED + number
    generator = torch.Generator().manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, max_position_embeddings=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager",
    )  # fmt: skip
    torch.set_default_dtype(torch.float64)
    model = transformers.BertModel(config, add_pooling_layer=False)
    modules, size = {}, HIDDEN
    for i, (out, bias, activation) in enumerate(layers):
        modules[f"{2 + i}_Dense"] = Dense(size, out, bias, getattr(torch.nn, activation)())
        size = out
    named = list(model.named_parameters()) + [(f"{m}.{n}", p) for m, d in modules.items() for n, p in d.named_parameters()]
    with torch.no_grad():
        for n, p in named:
            p.copy_(normal(generator, *p.shape, std=0.3, mean=1.0 if n.endswith("LayerNorm.weight") else 0.0))
    rows = [torch.randint(1, VOCAB, (n,), generator=generator) for n in LENGTHS]
    r = normal(generator, len(rows), size)
    out = []
    for row in rows:
        hidden = model(input_ids=row[None]).last_hidden_state[0]
        features = {"sentence_embedding": {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling][None]}
        for d in modules.values():
            features = d(features)
        out.append(features["sentence_embedding"])
    embedding = torch.cat(out)
    if normalize:
        embedding = F.normalize(embedding, dim=1)
    (embedding * r).sum().backward()
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r, "embedding": embedding}
    for n, p in named:
        arrays["weight/" + n] = p.detach().float()
        arrays["grad/" + n] = p.grad if p.grad is not None else torch.zeros_like(p)
    meta = {
        "about": "dense layers between pooling and normalization", "pooling": pooling, "normalize": normalize, "config": config.to_dict(),
        "dense": [{"name": n, "out": d.out_features, "bias": d.bias, "activation": a.lower()} for (n, d), (_, _, a) in zip(modules.items(), layers)],
    }  # fmt: skip
    save(f"dense/{name}", arrays, meta, __file__, seed, ["transformers", "sentence_transformers"])


if __name__ == "__main__":
    for number, (name, (layers, pooling, normalize)) in enumerate(CASES.items()):
        make(number, name, layers, pooling, normalize)
    report(__file__)
