"""Trains small layer-wise rerankers, with a head for each layer and with one for all, in contraflow and with FlagEmbedding's model and loss (see
testdata/goldens/flag_layerwise.py), without a teacher's scores, where the last layer teaches those below, and with them, and compares

1. the scores of every layer before training, texts and all,
2. the loss of every step,
3. after training the scores of every layer: of the folder that contraflow saves in FlagEmbedding's class and in contraflow, and of the model that
   FlagEmbedding's loss has trained.

    python testdata/peers/layerwise.py CONTRAFLOW

Prints a table. Exits with 1 if scores of one model differ by 1e-5 of the largest or more, a loss by more than 1e-4 of it, the scores of both trained
models by 1e-2 of the largest (AdamW turns rounding into steps where a gradient is next to nothing), or training changed nothing. Needs FlagEmbedding
(1.4.2 was used), transformers 5.23, pyarrow, and what tokenize/families.py needs.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import small  # first: it sets the environment
from small import run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "goldens"))
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from flag_layerwise import LayerWiseMiniCPMForCausalLM, configure, pad, trainer
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

contraflow = sys.argv[1]
work = Path(tempfile.mkdtemp())
LAYERS, START, LENGTH, STEPS, BATCH, DOCS, LR = 4, 2, 480, 6, 4, 3, 1e-3
PROMPT = "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'."


def make(name, multi):
    folder = work / name
    tok = PreTrainedTokenizerFast(tokenizer_file=str(work / "llama3" / "tokenizer.json"), model_max_length=LENGTH, pad_token="<|end_of_text|>", bos_token="<|begin_of_text|>")
    torch.manual_seed(11 + multi)
    args = {
        "vocab_size": len(tok), "hidden_size": 48, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 520, "scale_emb": 4, "scale_depth": 1.4, "dim_model_base": 16, "pad_token_id": tok.pad_token_id, "bos_token_id": tok.bos_token_id,
        "start_layer": START, "head_multi": multi, "head_type": "simple", "tie_word_embeddings": False,
    }  # fmt: skip
    model = LayerWiseMiniCPMForCausalLM(configure(**args))
    small.spread(model)
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm", **args}))
    tok.save_pretrained(folder)
    return folder, tok, args


def load(folder, args):
    """FlagEmbedding's class with a folder's tensors, all of them and no others: its from_pretrained is older than transformers 5."""
    model = LayerWiseMiniCPMForCausalLM(configure(**args))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
    return model


def ids(tok, query, document):
    """As FlagEmbedding joins a pair."""
    plain = lambda text: tok(text, add_special_tokens=False)["input_ids"]
    prompt, sep = plain(PROMPT), plain("\n")
    head, second = [tok.bos_token_id] + plain("A: " + query), sep + plain("B: " + document)
    return head + second[: LENGTH - len(prompt) - len(sep) - len(head)] + sep + prompt


def theirs(model, tok, pairs):
    """[layer, pair], one pair at a time."""
    model.eval()
    out = []
    with torch.no_grad():
        for query, document in pairs:
            row = torch.tensor([ids(tok, query, document)])
            logits = model(input_ids=row, attention_mask=torch.ones_like(row), output_hidden_states=True, cutoff_layers=list(range(START, LAYERS + 1))).logits
            out.append([l[0, -1].item() for l in logits])
    return np.array(out).T


def ours(folder, pairs, *more):
    source, out = work / "pairs.parquet", work / "scores.parquet"
    pq.write_table(pa.table({"query": [a for a, _ in pairs], "document": [b for _, b in pairs]}), source)
    scores = []
    for layer in range(START, LAYERS + 1):
        run(contraflow, "rerank", "--model", folder, "--input", source, "--output", out, "--cutoff-layer", layer, *more)
        scores.append(pq.read_table(out)["score"].to_pylist())
    return np.array(scores)


def off(name, got, want, limit=1e-5):
    worst = 0
    for layer, (a, b) in enumerate(zip(got, want)):
        error = np.abs(a - b).max() / np.abs(b).max()
        if not error < limit:
            sys.exit(f"{name}: layer {START + layer} has {a}, want {b}: off by {error:.3g} of the largest")
        worst = max(worst, error)
    return worst


lines = small.texts()
small.tokenizers(work, lines)
words = [t for t in lines if 3 < len(t) < 40 and "\n" not in t]
rows = [
    {"query": words[i], "docs": [words[(7 * i + 11 * k + 3) % len(words)] for k in range(DOCS)], "taught": [float((i * (k + 2)) % 5) - 2 for k in range(DOCS)]} for i in range(STEPS * BATCH)
]
table = pa.table({"query": [r["query"] for r in rows], "positive": [r["docs"][0] for r in rows], "negatives": [r["docs"][1:] for r in rows], "scores": [r["taught"] for r in rows]})
pq.write_table(table, work / "train.parquet")
pairs = [(words[i], words[2 * i + 1] + " " + words[3 * i]) for i in range(12)]
print("heads | loss | scores as loaded | losses | scores as saved | scores of both trained")
for name, multi in {"one for each layer": True, "one for all": False}.items():
    start, tok, args = make(name.replace(" ", "-"), multi)
    before = ours(start, pairs, "--max-length", LENGTH)
    loaded = off(f"{name} in contraflow", before, theirs(load(start, args), tok, pairs))
    for kind, loss in {"self-distilled": {"name": "cross_entropy", "self_distill": True}, "taught": {"name": "distill"}}.items():
        out = work / "run"
        shutil.rmtree(out, ignore_errors=True)
        source = {"path": str(work / "train.parquet"), "query": "query", "positive": "positive", "negatives": ["negatives"], "negatives_per_query": "all"}
        if kind == "taught":
            source["scores"] = "scores"
        recipe = {
            "model": {"path": str(start), "kind": "reranker", "max_length": LENGTH, "dropout": 0, "activation_checkpointing": True}, "data": {"train": [source], "shuffle": False},
            "batch": {"global_size": BATCH, "sub_batch": {"rows": 5}}, "loss": loss,
            "optimizer": {"lr": LR, "weight_decay": 0.01, "schedule": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
            "train": {"max_steps": STEPS, "precision": "f32"}, "eval": {"every": 0}, "save": {"dir": str(out)},
        }  # fmt: skip
        (work / "recipe.yaml").write_text(json.dumps(recipe))
        run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
        got = [x["loss"] for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in x]
        model = load(start, args)
        decayed, plain = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=LR)
        peer, want = trainer(model, BATCH), []
        for i in range(STEPS):
            part = rows[i * BATCH : (i + 1) * BATCH]
            features = pad([ids(tok, r["query"], d) for r in part for d in r["docs"]], tok.pad_token_id)
            value = peer(features, teacher_scores=[x for r in part for x in r["taught"]] if kind == "taught" else None).loss
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            want.append(value.item())
        steps = max(abs(a - b) / abs(b) for a, b in zip(got, want))
        if len(got) != STEPS or not steps < 1e-4:
            sys.exit(f"{name}, {kind}: losses {got}, want {want}")
        after = ours(out / "model", pairs)
        if any(np.abs(a - b).max() < 1e-3 * np.abs(b).max() for a, b in zip(after, before)):
            sys.exit(f"{name}, {kind}: a layer's scores are as they were")
        saved = off(f"{name}, {kind}, trained by contraflow, in the peer", after, theirs(load(out / "model", args), tok, pairs))
        del model.forward  # which asks for all layers
        both = off(f"{name}, {kind}, trained by both", after, theirs(model, tok, pairs), 1e-2)
        print(f"{name} | {kind} | {loaded:.1e} | {steps:.1e} | {saved:.1e} | {both:.1e}", flush=True)
shutil.rmtree(work)
