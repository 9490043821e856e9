#!/usr/bin/env python3
"""Training steps of other kinds of models than step.py's beside sentence-transformers, in f32: the same rows, maximum length and number of threads.

    python kinds.py CONTRAFLOW [--data train.parquet] [--only sparse,qwen3] [--rounds 2]

Models have MiniLM-L6's size: its weights (lora, reranker, sparse, late), or random ones of other families. A round is a run of `contraflow train` and then
as many steps of the peer; what counts is each side's median step but for the first two, and of rounds the median ratio. A step is all of: tokenization, forward, backward,
clipping, AdamW, dropout on. Both pad or pack as they do, so texts' lengths are the data's. Prints a table in markdown, and exits with 1 if a kind is slower than
the peer. Takes a quarter of an hour and wants the machine for itself. Written for sentence-transformers 6.2, torch 2.15 and peft 0.21.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

STEPS = 6
LR = 2e-5
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6}
# What is trained, in the table's words; the rows of a step; texts' maximum length.
KINDS = {
    "lora": ("embedder, LoRA of rank 16 in all layers", 32, 128),
    "reranker": ("reranker, labelled pairs", 32, 128),
    "sparse": ("SPLADE", 32, 128),
    "late": ("late interaction, 128 features", 32, 128),
    "deberta": ("embedder, DeBERTa v3", 32, 128),
    "t5": ("embedder, T5", 32, 128),
    "qwen3": ("embedder, Qwen3", 32, 128),
    "modernbert": ("embedder, ModernBERT, documents of 1,024 tokens", 8, 1024),
}
FAMILIES = {
    "deberta": ("DebertaV2", "mean", {
        **SHAPE, "intermediate_size": 1536, "num_attention_heads": 6, "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
    }),
    "t5": ("T5", "mean", {"d_model": 384, "d_kv": 64, "d_ff": 1024, "num_layers": 6, "num_heads": 6}),
    "qwen3": ("Qwen3", "lasttoken", {**SHAPE, "intermediate_size": 1152, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048}),
    "modernbert": ("ModernBert", "mean", {**SHAPE, "intermediate_size": 576, "num_attention_heads": 6, "max_position_embeddings": 2048}),
}  # fmt: skip


def make(kind, folder):
    """The folder of the model that both sides begin with."""
    source = common.minilm()
    if kind in ("lora", "reranker", "late"):
        return source
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    if kind == "sparse":  # its head is new
        model, pooling = transformers.BertForMaskedLM.from_pretrained(source), None
    else:
        name, pooling, shape = FAMILIES[kind]
        ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": tokenizer.sep_token_id, "cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        config = getattr(transformers, name + "Config")(vocab_size=len(tokenizer), **shape, **ids)
        model = getattr(transformers, {"T5": "T5Encoder"}.get(name, name) + "Model")(config)
    bare = folder / "bare"
    model.save_pretrained(bare)
    tokenizer.save_pretrained(bare)
    if pooling is None:
        return bare
    SentenceTransformer(modules=[Transformer(str(bare)), Pooling(384, pooling)], device="cpu").save_pretrained(str(folder / "model"))
    return folder / "model"


def rows(kind, table):
    """Queries, documents and labels."""
    queries, documents = table["comment"].to_pylist(), table["body"].to_pylist()
    n, length = len(queries), KINDS[kind][2]
    if length > 128:
        documents = [" ".join(documents[(7 * i + j) % n] for j in range(12)) for i in range(n)]
    if kind == "reranker":  # every other row has another row's document
        documents = [documents[i if i % 2 else (i + 5) % n] for i in range(n)]
    return queries, documents, [float(i % 2) for i in range(n)]


def peer(kind, folder, data, threads):
    """The other side, in a process of its own: a round is STEPS steps from the first row on."""
    import pyarrow.parquet as pq
    import torch
    from sentence_transformers.base.modules import Dense, Normalize, Transformer

    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    queries, documents, labels = rows(kind, pq.read_table(data))
    _, n, length = KINDS[kind]
    if kind == "reranker":
        from sentence_transformers import CrossEncoder
        from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

        model = CrossEncoder(folder, num_labels=1, max_length=length, device="cpu")
        loss = BinaryCrossEntropyLoss(model)
        compute = lambda q, d, y: loss([q, d], torch.tensor(y))
    elif kind == "sparse":
        from sentence_transformers import SparseEncoder
        from sentence_transformers.sparse_encoder import losses
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        model = SparseEncoder(modules=[Transformer(folder, transformer_task="fill-mask"), SpladePooling("max")], device="cpu")
        loss = losses.SpladeLoss(model, losses.SparseMultipleNegativesRankingLoss(model), document_regularizer_weight=3e-5, query_regularizer_weight=5e-5)
        compute = lambda q, d, _: sum(loss([model.preprocess(q), model.preprocess(d)], None).values())
    elif kind == "late":
        from sentence_transformers import MultiVectorEncoder
        from sentence_transformers.multi_vector_encoder import losses
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

        name = {"module_input_name": "token_embeddings"}
        dense = Dense(384, 128, bias=False, activation_function=torch.nn.Identity(), **name)
        model = MultiVectorEncoder(modules=[Transformer(folder), dense, MultiVectorMask(), Normalize(**name)], device="cpu")
        loss = losses.MultiVectorMultipleNegativesRankingLoss(model)
        compute = lambda q, d, _: loss([model.preprocess(q, task="query"), model.preprocess(d, task="document")], None)
    else:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses

        model = SentenceTransformer(folder, device="cpu")
        if kind == "lora":
            from peft import LoraConfig

            model.add_adapter(LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        loss = losses.MultipleNegativesRankingLoss(model)
        compute = lambda q, d, _: loss([model.preprocess(q), model.preprocess(d)], None)
    if kind != "reranker":
        model.max_seq_length = length
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, fused=True)

    def step(lo):
        start = time.perf_counter()
        compute(queries[lo : lo + n], documents[lo : lo + n], labels[lo : lo + n]).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    common.serve(lambda: {"seconds": [step(i * n) for i in range(STEPS)]})


def train(args, kind, folder, work):
    """A run here: each step's seconds."""
    _, n, length = KINDS[kind]
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    model, row, loss = {"path": str(folder), "max_length": length}, {"path": str(work / "rows.jsonl"), "query": "query", "positive": "positive"}, {"name": "mnrl"}
    if kind == "lora":
        model["lora"] = {"rank": 16, "alpha": 32, "targets": "all-linear"}
    elif kind == "reranker":
        model["kind"], row["label"], loss = "reranker", "label", {"name": "bce"}
    elif kind == "sparse":
        model["kind"], loss = "sparse", {"name": "mnrl", "scale": 1, "flops": {"query": 5e-5, "document": 3e-5}}
    elif kind == "late":
        model |= {"kind": "multi_vector", "vector_dim": 128, "query_expansion": "none"}
        loss = {"name": "mnrl", "scale": 1}
    recipe = {"model": model, "data": {"train": [row]}, "batch": {"global_size": n}, "loss": loss, "optimizer": {"lr": LR}, "train": {"max_steps": STEPS, "device": "cpu"}, "save": {"dir": str(run)}}
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    reply = subprocess.run([args.contraflow, "train", "-c", work / "recipe.yaml"], capture_output=True, text=True, env={**os.environ, "GOMAXPROCS": str(args.threads)})
    if reply.returncode:
        sys.exit(f"{kind}: {reply.stderr[-2000:]}")
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [n / s["pairs_per_s"] for s in steps if "pairs_per_s" in s]


def measure(args, kind, table, data):
    with tempfile.TemporaryDirectory(prefix="contraflow-kinds-") as work:
        work = Path(work)
        folder = make(kind, work)
        with open(work / "rows.jsonl", "w") as out:
            for query, document, label in zip(*rows(kind, table)):
                out.write(json.dumps({"query": query, "positive": document} | ({"label": label} if kind == "reranker" else {})) + "\n")
        other = common.Paced("sentence-transformers", [sys.executable, __file__, "--peer", kind, folder, data, args.threads])
        ours, theirs = [], []
        for _ in range(args.rounds or 2):
            ours.append(statistics.median(train(args, kind, folder, work)[2:]))
            theirs.append(statistics.median(other.round()["seconds"][2:]))
        other.finish()
        ratios = sorted(b / a for a, b in zip(ours, theirs))
        return KINDS[kind][1] / statistics.median(ours), KINDS[kind][1] / statistics.median(theirs), ratios


def main():
    p = common.parser(__doc__)
    p.add_argument("--only", help="kinds, with commas between them: " + ", ".join(KINDS))
    args = p.parse_args()
    import pyarrow.parquet as pq

    data = common.rows(args, 2000)
    table, slower = pq.read_table(data), []
    print(f"{common.machine(args)['processor']}, {args.threads} threads\n\n| trained in f32, pairs a step | contraflow | sentence-transformers | times as fast |\n|---|---|---|---|", flush=True)
    for kind in args.only.split(",") if args.only else KINDS:
        ours, theirs, ratios = measure(args, kind, table, data)
        print(f"| {KINDS[kind][0]}, {KINDS[kind][1]} | {ours:.2f} pairs/s | {theirs:.2f} pairs/s | {statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}) |", flush=True)
        if statistics.median(ratios) < 1:
            slower.append(kind)
    sys.exit(f"slower than the peer: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(*sys.argv[2:])
    else:
        main()
