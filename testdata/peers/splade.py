"""Checks model.kind sparse both ways against sentence-transformers' SparseEncoder, with small random models of six families:

1. as sentence-transformers saves it, the model gives the same sparse embeddings in contraflow, and after training what contraflow saves gives the same in
   sentence-transformers;
2. the loss and the norm of all parameters' gradients are SpladeLoss's, of every sparse loss, on 3 ranks with unequal rows and sub-batches that are embedded
   twice, of one loss plainly as well;
3. two steps of SGD on two ranks change every parameter as they do there in one process, with the regularizer's weights growing as
   SpladeRegularizerWeightSchedulerCallback has them grow;
4. what contraflow eval --nanobeir says is what SparseNanoBEIREvaluator does.

    python testdata/peers/splade.py CONTRAFLOW

Prints tables. Exits with 1 if embeddings differ by more than 1e-5 of the largest, a loss or a norm by more than 1e-5 of it, or what two steps have changed
a parameter by, by more than 1e-3 of its largest change (f32, whose rounding of weights shows in their differences). Needs sentence-transformers (6.2 was
used) and pyarrow.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import small  # before transformers

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from nanobeir import TASKS, Nano
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder import losses as L
from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import SpladeRegularizerWeightSchedulerCallback
from sentence_transformers.sparse_encoder.evaluation import SparseNanoBEIREvaluator
from sentence_transformers.sparse_encoder.modules import SpladePooling

contraflow = sys.argv[1]
work = Path(tempfile.mkdtemp())
random.seed(7)
golden = Path(__file__).resolve().parents[1] / "golden" / "bert"
words = " ".join(json.loads((golden / "minilm-tiny.json").read_text())["texts"]).split()
encoder, _ = small.shape(72)
NONE = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# name: configuration, its arguments, activation
MODELS = {
    "bert": ("BertConfig", {**encoder, **NONE}, "relu"),
    "xlm-roberta": ("XLMRobertaConfig", {**encoder, **NONE, "type_vocab_size": 1}, "log1p_relu"),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 72, "dropout": 0.0, "attention_dropout": 0.0}, "relu"),
    "modernbert": ("ModernBertConfig", {**encoder, "local_attention": 16}, "relu"),
    "gte": ("GteConfig", {**encoder, **NONE, "type_vocab_size": 1}, "log1p_relu"),
    "nomic-bert": ("NomicBertConfig", {**encoder, **NONE}, "relu"),
}  # fmt: skip


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")
    return reply.stdout


def pick():
    return " ".join(random.choice(words) for _ in range(random.randint(1, 9)))


def sample():
    return [pick() for _ in range(20)]


def build(name):
    """A random SparseEncoder, as sentence-transformers saves it."""
    kind, args, activation = MODELS[name]
    # 120 tokens: of few features few have two tokens that are equally good but for rounding.
    tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(golden / "minilm-tiny" / "tokenizer.json"), model_max_length=64, **small.WP)
    torch.manual_seed(3)
    model = transformers.AutoModelForMaskedLM.from_config(small.config(kind, args, tok))
    small.spread(model.eval())
    with torch.no_grad():
        model.get_output_embeddings().weight.div_(8)  # so that products of embeddings are not of the size of hundreds, whose rounding softmax shows
        logits = model(**tok(sample(), padding=True, truncation=True, return_tensors="pt")).logits.amax(1)
        model.get_output_embeddings().bias.sub_(logits.quantile(0.85).item())  # so that not all features are active
    plain = work / f"{name}-plain"
    model.save_pretrained(plain)
    tok.save_pretrained(plain)
    out = SparseEncoder(modules=[Transformer(str(plain), transformer_task="fill-mask"), SpladePooling("max", activation)], device="cpu")
    out.save_pretrained(str(work / "saved" / name), create_model_card=False)
    return work / "saved" / name


def peer(folder):
    model = SparseEncoder(str(folder), device="cpu").double().eval()  # what differs is our rounding
    model[1].train()  # whose arithmetic in place has no gradient otherwise; the encoder drops nothing
    return model


def dense(folder, texts):
    """Embeddings by contraflow, from its lists."""
    pq.write_table(pa.table({"text": texts}), work / "texts.parquet")
    run(contraflow, "embed", "--model", folder, "--input", work / "texts.parquet", "--output", work / "lists.parquet")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    out = torch.zeros(len(texts), size)
    for i, row in enumerate(pq.read_table(work / "lists.parquet").to_pylist()):
        out[i, row["lexical_ids"]] = torch.tensor(row["lexical_weights"])
    return out


def compare(what, folder, texts):
    with torch.no_grad():
        want = SparseEncoder(str(folder), device="cpu").encode(texts, convert_to_sparse_tensor=False, convert_to_tensor=True)
    got = dense(folder, texts)
    off = ((got - want).abs().max() / want.abs().max()).item()
    active = (want > 0).float().mean().item()
    print(f"{what}: embeddings off by {off:.1e}; {active:.0%} of features are active", flush=True)
    if not off < 1e-5 or not 0.01 < active < 0.97:
        sys.exit("the embeddings differ, or there is nothing to see")
    return got


def clear(model, texts):
    """Whether no feature's best token is so near to the second or to a logit of 0 that rounding to f32 may take another, which has another gradient."""
    with torch.no_grad():
        features = model[0](model.preprocess(texts))
        logits = features["token_embeddings"].masked_fill(features["attention_mask"][..., None] == 0, -torch.inf)
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return first.abs().min() > 3e-6 and (first - second)[first > 0].min() > 3e-6


def make(name):
    """Rows for a model, and the file that they are in."""
    model = peer(folders[name])
    for _ in range(100):
        rows = [{"q": pick(), "p": pick(), "n": pick(), "scores": [random.gauss(0, 1), random.gauss(0, 1)], "grade": random.random()} for _ in range(13)]
        if clear(model, [r[k] for r in rows for k in "qpn"]):
            break
    else:
        sys.exit(f"{name}: no rows without a choice that rounding may change")
    file = work / f"rows-{name}.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return rows, file


def column(rows, key):
    """Of texts, or of labels: a teacher's scores, what the first is above the second, grades."""
    if key in "qpn":
        return [r[key] for r in rows]
    if key == "margin":
        return torch.tensor([r["scores"][0] - r["scores"][1] for r in rows], dtype=torch.float64)
    return torch.tensor([r[key] for r in rows], dtype=torch.float64)


class Square(torch.nn.Module):
    """MSELoss, for labels that sentence-transformers has made float32."""

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(x, y.to(x.dtype))


FLOPS, BOTH = "flops: {query: 0.02, document: 0.01, warmup_ratio: 0}", {"query_regularizer_weight": 0.02, "document_regularizer_weight": 0.01}
TRIPLE = ", positive: p, negatives: n"
# the recipe's loss, its columns, the peer's loss, the arguments of SpladeLoss, its columns and labels
CASES = {
    "mnrl": ("name: mnrl, mask_duplicates: false, " + FLOPS, TRIPLE, L.SparseMultipleNegativesRankingLoss, BOTH, "qpn", None),
    "mnrl, thresholds": (
        "name: mnrl, mask_duplicates: false, flops: {query: 0.02, document: 0.01, warmup_ratio: 0, query_threshold: 14, document_threshold: 18}", TRIPLE,
        L.SparseMultipleNegativesRankingLoss, {**BOTH, "query_regularizer_threshold": 14, "document_regularizer_threshold": 18}, "qpn", None),
    "mnrl, documents only": (
        "name: mnrl, mask_duplicates: false, flops: {document: 0.03, document_only: true, warmup_ratio: 0}", TRIPLE,
        L.SparseMultipleNegativesRankingLoss, {"document_regularizer_weight": 0.03, "use_document_regularizer_only": True}, "qpn", None),
    "margin_mse": ("name: margin_mse, " + FLOPS, TRIPLE + ", scores: [scores]", L.SparseMarginMSELoss, BOTH, "qpn", "margin"),
    "distill_kl": ("name: distill_kl, " + FLOPS, TRIPLE + ", scores: [scores]", L.SparseDistillKLDivLoss, BOTH, "qpn", "scores"),
    "triplet": ("name: triplet, " + FLOPS, TRIPLE, L.SparseTripletLoss, BOTH, "qpn", None),
    "cosent": ("name: cosent, " + FLOPS, ", positive: p, label: grade", L.SparseCoSENTLoss, BOTH, "qp", "grade"),
    "angle": ("name: angle, " + FLOPS, ", positive: p, label: grade", L.SparseAnglELoss, BOTH, "qp", "grade"),
    "cosine_similarity": ("name: cosine_similarity, " + FLOPS, ", positive: p, label: grade", lambda m: L.SparseCosineSimilarityLoss(m, loss_fct=Square()), BOTH, "qp", "grade"),
}  # fmt: skip


def train(name, loss, columns, steps, optimizer, batch, mesh):
    shutil.rmtree(work / "run", ignore_errors=True)
    (work / "recipe.yaml").write_text(f"""
model: {{path: {folders[name]}, kind: sparse}}
data: {{shuffle: false, train: [{{path: {data[name][1]}, query: q{columns}}}]}}
batch: {{global_size: 13, no_duplicates: false, drop_last: false{batch}}}
loss: {{{loss}}}
optimizer: {optimizer}
train: {{epochs: {steps}, precision: f32}}
mesh: {{{mesh}}}
log: {{every: 1}}
save: {{dir: {work / "run"}}}
""")
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    return [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]


def value(model, loss, rows, columns, labels):
    return sum(loss([model.preprocess(column(rows, c)) for c in columns], labels and column(rows, labels)).values())


def state(model):
    """Its parameters, by their names in files."""
    model[0].model.save_pretrained(work / "state")
    return load_file(work / "state" / "model.safetensors")


folders = {name: build(name) for name in MODELS}
print("as sentence-transformers saves them")
for name, folder in folders.items():
    compare(name, folder, sample() + [" ".join(sample())])

data = {name: make(name) for name in folders}
print("loss | SpladeLoss: loss, norm | relative errors on 3 ranks, and of the first plainly")
bad = []
for i, (name, (text, columns, kind, options, texts, labels)) in enumerate(CASES.items()):
    of = list(folders)[i % len(folders)]
    model = peer(folders[of])
    loss = L.SpladeLoss(model, kind(model), **options)
    total = value(model, loss, data[of][0], texts, labels)
    total.backward()
    want = total.item(), sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()
    errors = []
    ways = ((", sub_batch: {rows: 3}, cache: always", "replicate: 3"), ("", "replicate: 1"))
    for batch, mesh in ways if name == "mnrl" else ways[:1]:
        step = train(of, text, columns, 1, "{lr: 1e-9, max_grad_norm: 1e9}", batch, mesh)[0]
        errors.append([abs(a - b) / abs(b) for a, b in zip((step["loss"], step["grad_norm"]), want)])
    print(f"{name}, {of} | {want[0]:.6f} {want[1]:.6f} | {', '.join(f'{a:.0e} {b:.0e}' for a, b in errors)}", flush=True)
    if not max(max(e) for e in errors) < 1e-5:
        bad.append(name)
if bad:
    sys.exit(f"off by more than 1e-5: {bad}")

print("two steps of SGD on two ranks: the worst parameter")
text, columns, kind, options, texts, labels = CASES["mnrl"]
for name, folder in folders.items():
    for _ in range(100):
        model = peer(folder)
        before = state(model)
        loss = L.SpladeLoss(model, kind(model), **options)
        grow = SpladeRegularizerWeightSchedulerCallback(loss, warmup_ratio=1.0)
        grow.warmup_steps = 2
        for step in range(2):
            loss.query_regularizer_weight = grow._calculate_weight_value(step, options["query_regularizer_weight"])
            loss.document_regularizer_weight = grow._calculate_weight_value(step, options["document_regularizer_weight"])
            model.zero_grad()
            value(model, loss, data[name][0], texts, labels).backward()
            if step == 0:
                lr = 0.3 / sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()
            sure = clear(model, [r[k] for r in data[name][0] for k in "qpn"])
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= lr * p.grad
        if sure:
            break
        data[name] = make(name)
    after = state(model)
    optimizer = f"{{name: sgd, lr: {lr!r}, weight_decay: 0, max_grad_norm: 0, schedule: constant, warmup_ratio: 0}}"
    train(name, text.replace("warmup_ratio: 0", "warmup_ratio: 1"), columns, 2, optimizer, ", sub_batch: {rows: 4}", "replicate: 2")
    mine = load_file(work / "run" / "model" / "model.safetensors")
    top, at = 0.0, ""
    changes = {k: after[k].double() - before[k].double() for k in mine}
    floor = 1e-3 * max(c.abs().max().item() for c in changes.values())  # keys' biases have no gradient
    for k, v in mine.items():
        got = v.double() - before[k].double()
        off = ((got - changes[k]).abs().max() / max(changes[k].abs().max().item(), floor)).item()
        top, at = max((top, at), (off, k))
    print(f"{name} | {top:.0e} {at}", flush=True)
    if not top < 1e-3 or not floor > 1e-6:
        sys.exit("two steps differ")
    if set(mine) != set(load_file(folder / "model.safetensors")):
        sys.exit(f"saved are {sorted(mine)}")
    trained, some = work / f"{name}-trained", sample()
    shutil.copytree(work / "run" / "model", trained)
    now = compare(f"{name}, trained in contraflow, in sentence-transformers", trained, some)
    if (now - dense(folder, some)).abs().max() < 1e-3:
        sys.exit("training changed nothing: this check would not see a model that is saved as it was loaded")
nano = Nano(contraflow, work, words)
evaluator = SparseNanoBEIREvaluator(TASKS, str(nano.folder), precision_recall_at_k=[100])
for name in ("bert", "modernbert"):
    nano.eval(name, folders[name], evaluator(SparseEncoder(str(folders[name]), device="cpu")), "dot")
shutil.rmtree(work)

import queries  # noqa: E402, F401: in the same process, as loading the peers takes longer than comparing
