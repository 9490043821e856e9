"""Trains a small cross-encoder for 10 steps with every loss of rerankers, in contraflow and with sentence-transformers' losses of CrossEncoder
(FlagEmbedding's, which are torch's cross entropy over groups, by hand), and compares the loss of every step. Recipes of the former are what contraflow
import makes of CrossEncoderTrainingArguments and the loss's name.

    python testdata/peers/reranker_steps.py CONTRAFLOW [LOSS ...]

Prints a table. Exits with 1 if a loss is off by more than 1e-4 of it. Needs sentence-transformers (6.2 was used), transformers 5.23, pyarrow.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder import losses as L

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
contraflow, only = sys.argv[1], sys.argv[2:]
work = Path(tempfile.mkdtemp())
tiny = Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny"
STEPS, BATCH, LR = 10, 8, 1e-3
tok = transformers.AutoTokenizer.from_pretrained(tiny, model_max_length=40)
torch.manual_seed(3)
config = transformers.BertConfig(
    vocab_size=len(tok), hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=48, num_labels=1, pad_token_id=0)
model = transformers.BertForSequenceClassification(config)
with torch.no_grad():
    for p in model.parameters():
        if p.dim() > 1:
            p.mul_(4)
model.save_pretrained(work / "start")
tok.save_pretrained(work / "start")

steps = json.loads((Path(__file__).resolve().parents[1] / "golden" / "steps" / "texts.json").read_text())["steps"]
texts = [row for step in steps for row in step]
bodies = [t for row in texts for t in row[1:]]
generator = torch.Generator().manual_seed(4)
rows = []
for i in range(STEPS * BATCH):
    n = int(torch.randint(1, 5, (1,), generator=generator))
    docs = [bodies[int(k)] for k in torch.randint(0, len(bodies), (n + 1,), generator=generator)]
    even = (docs + [bodies[(7 * i + k) % len(bodies)] for k in range(4)])[:4]
    rows.append({
        "query": texts[i % len(texts)][0], "docs": docs, "even": even,
        "graded": torch.randint(0, 3, (n + 1,), generator=generator).tolist(), "taught": (torch.randn(4, generator=generator) * 2).tolist(),
        "label": float(torch.rand(1, generator=generator) > 0.5),
        "own": texts[i][1:],  # which no other row has
        "shared": [bodies[int(k)] for k in torch.randint(0, 9, (2,), generator=generator)],
        "shared query": bodies[int(torch.randint(0, 12, (1,), generator=generator))],
    })  # fmt: skip


def table(docs, scores=None, label=None, query="query", margin=False):
    """Rows as contraflow reads them, the first document and the others; and as sentence-transformers' losses do."""
    columns = {"query": [r[query] for r in rows], "positive": [r[docs][0] for r in rows], "negatives": [r[docs][1:] for r in rows]}
    if scores:
        columns["scores"] = [[float(x) for x in r[scores]] for r in rows]
    source = {"path": str(work / "train.parquet"), "query": "query", "positive": "positive"}
    columns["docs"] = [r[docs] for r in rows]
    if docs != "docs":
        columns |= {f"d{k}": [r[docs][k] for r in rows] for k in range(len(rows[0][docs]))}
    if label:
        del columns["negatives"]
        columns["label"] = [r["label"] for r in rows]
        source["label"] = "label"
    else:
        source |= {"negatives": ["negatives"], "negatives_per_query": "all"}
    if margin:
        columns["label"] = [r["taught"][0] for r in rows]
        source["label"] = "label"
    if scores:
        source["scores"] = "scores"
    pq.write_table(pa.table(columns), work / "train.parquet")
    return source


def imported(loss, columns):
    """What contraflow import makes of a script with this loss."""
    arguments = CrossEncoderTrainingArguments(
        output_dir=str(work / "run"), per_device_train_batch_size=BATCH, learning_rate=LR, weight_decay=0.01, lr_scheduler_type="constant", max_grad_norm=0, max_steps=STEPS,
        save_strategy="no", logging_steps=1, report_to="none", use_cpu=True)  # fmt: skip
    settings = arguments.to_dict() | {
        "arguments": type(arguments).__name__, "model": str(work / "start"), "max_length": 40, "train_dataset": str(work / "train.parquet"), "columns": columns, "loss": loss}  # fmt: skip
    reply = subprocess.run([contraflow, "import", "-"], input=json.dumps(settings), capture_output=True, text=True)
    if reply.returncode or "unknown" in reply.stderr or "without counterpart" in reply.stderr:
        sys.exit(f"import of {loss}: exit {reply.returncode}: {reply.stderr}")
    return reply.stdout


def ours(loss, source, columns=None):
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    if columns:
        (work / "recipe.yaml").write_text(imported(loss, columns))
        return trained(out, "model.dropout=0", "data.shuffle=false", "batch.sub_batch={rows: 7}")
    recipe = {
        "model": {"path": str(work / "start"), "kind": "reranker", "max_length": 40, "dropout": 0}, "data": {"train": [source], "shuffle": False},
        "batch": {"global_size": BATCH, "sub_batch": {"rows": 7}}, "loss": loss,
        "optimizer": {"lr": LR, "weight_decay": 0.01, "schedule": "constant", "warmup_ratio": 0, "max_grad_norm": 0},
        "train": {"max_steps": STEPS, "precision": "f32"}, "eval": {"every": 0}, "save": {"dir": str(out)},
    }  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    return trained(out)


def trained(out, *sets):
    more = [x for s in sets for x in ("--set", s)]
    reply = subprocess.run([contraflow, "train", "-c", str(work / "recipe.yaml"), "--quiet", *more], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"exit {reply.returncode} of\n{(work / 'recipe.yaml').read_text()}\n{reply.stderr[-2000:]}")
    return [x["loss"] for x in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()) if "loss" in x]


def theirs(step):
    encoder = CrossEncoder(str(work / "start"), device="cpu", max_length=40).eval()
    decayed = [p for n, p in encoder.named_parameters() if p.dim() > 1]
    plain = [p for n, p in encoder.named_parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=LR)
    compute, values = step(encoder), []
    for i in range(STEPS):
        loss = compute(rows[i * BATCH : (i + 1) * BATCH])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def listwise(cls, **more):
    def step(encoder):
        loss = cls(encoder, **more)
        return lambda part: loss([[r["query"] for r in part], [r["docs"] for r in part]], [torch.tensor(r["graded"]) for r in part])

    return step


def pointwise(cls):
    def step(encoder):
        loss = cls(encoder)
        return lambda part: loss([[r["query"] for r in part], [r["docs"][0] for r in part]], torch.tensor([r["label"] for r in part]))

    return step


def margins(encoder):
    loss = L.MarginMSELoss(encoder)
    return lambda part: loss([[r["query"] for r in part], *[[r["even"][k] for r in part] for k in range(4)]], torch.tensor([r["taught"] for r in part]))


def margin(encoder):
    loss = L.MarginMSELoss(encoder)
    return lambda part: loss([[r["query"] for r in part], *[[r["own"][k] for r in part] for k in range(2)]], torch.tensor([r["taught"][0] for r in part]))


def flag(first, taught):
    def step(encoder):
        def compute(part):
            features = encoder.preprocess([(r["query"], d) for r in part for d in r["even"]])
            logits = encoder(features)["scores"].view(len(part), -1)
            loss = 0
            if first:
                loss = loss + F.cross_entropy(logits, torch.zeros(len(part), dtype=torch.long))
            if taught:
                targets = torch.softmax(torch.tensor([r["taught"] for r in part]), -1)
                loss = loss - torch.mean(torch.sum(torch.log_softmax(logits, -1) * targets, -1))
            return loss

        return compute

    return step


def in_batch(cls, columns, **more):
    """The peer's loss where each row is compared with all of its batch's others, which leaves nothing to chance; no text is in two rows."""

    def step(encoder):
        loss = cls(encoder, num_negatives=None, **more)
        return lambda part: loss([[r["query"] for r in part], *[[r["own"][k] for r in part] for k in range(columns)]], None)

    return step


def distinct(encoder):
    """The same by hand where rows share queries and documents: none is a negative of a row that it is right for, nor twice a negative of one."""

    def compute(part):
        losses = []
        for r in part:
            right = {x["shared"][0] for x in part if x["shared query"] == r["shared query"]}
            others = {d: None for x in part if x is not r for d in x["shared"]}  # in their order
            group = r["shared"] + [d for d in others if d not in right and d not in r["shared"] and d != r["shared query"]]
            logits = encoder(encoder.preprocess([(r["shared query"], d) for d in group]))["scores"].view(1, -1)
            losses.append(F.cross_entropy(10 * torch.sigmoid(logits), torch.zeros(1, dtype=torch.long)))
        return torch.stack(losses).mean()

    return compute


LISTS = ["query", "docs", "scores"]
CASES = {  # with options of loss; or the peer's loss, with its columns
    "cross_entropy": ({}, lambda: table("even"), flag(True, False), None),
    "kl": ({}, lambda: table("even", "taught"), flag(False, True), None),
    "distill": ({}, lambda: table("even", "taught"), flag(True, True), None),
    "list_net": ("ListNetLoss", lambda: table("docs", "graded"), listwise(L.ListNetLoss), LISTS),
    "list_mle": ("ListMLELoss", lambda: table("docs", "graded"), listwise(L.ListMLELoss), LISTS),
    "list_mle, by label": ({"name": "ListMLELoss", "respect_input_order": False}, lambda: table("docs", "graded"), listwise(L.ListMLELoss, respect_input_order=False), LISTS),
    "list_net, sigmoid": (
        {"name": "ListNetLoss", "activation_fn": "torch.nn.modules.activation.Sigmoid"}, lambda: table("docs", "graded"),
        listwise(L.ListNetLoss, activation_fn=torch.nn.Sigmoid()), LISTS),
    "p_list_mle": ("PListMLELoss", lambda: table("docs", "graded"), listwise(L.PListMLELoss), LISTS),
    "rank_net": ("RankNetLoss", lambda: table("docs", "graded"), listwise(L.RankNetLoss), LISTS),
    "adr_mse": ("ADRMSELoss", lambda: table("docs", "graded"), listwise(L.ADRMSELoss), LISTS),
    "lambda": ({}, lambda: table("docs", "graded"), listwise(L.LambdaLoss), None),
    "lambda, k": ({"name": "LambdaLoss", "k": 2}, lambda: table("docs", "graded"), listwise(L.LambdaLoss, k=2), LISTS),
    "bce": ("BinaryCrossEntropyLoss", lambda: table("docs", label=True), pointwise(L.BinaryCrossEntropyLoss), ["query", "positive", "label"]),
    "mse": ("MSELoss", lambda: table("docs", label=True), pointwise(L.MSELoss), ["query", "positive", "label"]),
    "mnrl, pairs": (
        {"name": "MultipleNegativesRankingLoss", "num_negatives": 7, "scale": 2.0, "activation_fn": "torch.nn.modules.linear.Identity"}, lambda: table("own"),
        in_batch(L.MultipleNegativesRankingLoss, 1, scale=2.0, activation_fn=torch.nn.Identity()), ["query", "d0"]),
    "mnrl, hard negatives": (
        {"name": "CachedMultipleNegativesRankingLoss", "num_negatives": None, "mini_batch_size": 70}, lambda: table("own"),
        in_batch(L.CachedMultipleNegativesRankingLoss, 2, mini_batch_size=70), ["query", "d0", "d1"]),
    "mnrl, shared texts": ({"name": "mnrl", "num_negatives": "all"}, lambda: table("shared", query="shared query"), distinct, None),
    "margin_mse": ("MarginMSELoss", lambda: table("even", "taught"), margins, ["query", "d0", "d1", "d2", "d3", "scores"]),
    "margin_mse, a difference": ({"name": "margin_mse"}, lambda: table("own", margin=True), margin, None),
}
print("loss | first step | last step | largest relative error")
for name, (more, source, step, columns) in CASES.items():
    if only and name not in only:
        continue
    source = source()
    got, want = ours(more if columns else {"name": name, **more}, source, columns), theirs(step)
    if len(got) != STEPS or abs(want[0] - want[-1]) < 1e-3 * abs(want[0]):
        sys.exit(f"{name}: {len(got)} steps, losses {want}: nothing to compare")
    worst = max(abs(a - b) / abs(b) for a, b in zip(got, want))
    print(f"{name} | {want[0]:.6f} | {want[-1]:.6f} | {worst:.1e}", flush=True)
    if not worst < 1e-4:
        sys.exit(f"{name}: losses {got}, want {want}")
shutil.rmtree(work)
