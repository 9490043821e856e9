"""Checks model.kind multi_vector both ways against sentence-transformers' MultiVectorEncoder, with the random BERT of testdata/golden/bert/minilm-tiny and a
random ModernBERT, whose sliding windows hide all of a short query's tokens from what fills it up at its end:

1. token vectors of queries and of documents, of folders as sentence-transformers, PyLate and Stanford's ColBERT write them: with queries that are
   filled up (fixed, and at least so long), with tokens that the others attend to or not, a skiplist, prompts, several dense modules;
2. each loss: its value, and every parameter's gradient, which is read off the weights behind one step of SGD; in contraflow plainly, and on 2
   ranks in sub-batches that are embedded twice, there in one process on the same batch. sentence-transformers pads: masked tokens of a document
   are out of the maximum, of a query out of the sum, so that only tokens with a vector count on both sides;
3. the weights behind two steps of AdamW, of both;
4. what training saves, from each of these folders and from an encoder without a projection, loads there and gives the same token vectors;
5. pairs with scores or labels, triplets and candidates have the figures of its evaluators: with scores the MultiVectorDistillationEvaluator's of flat pairs, and for labels
   scikit-learn's average precision of similarity_pairwise, as it has no evaluator of these;
6. what contraflow eval --nanobeir says is what MultiVectorNanoBEIREvaluator does.

    python testdata/peers/multivector.py CONTRAFLOW

Exits with 1 if token vectors are off by 1e-5, a loss by more than 2e-5 of it, or a tensor's gradient or change by more than 2e-4 of its largest (or
of 1e-3 of the model's largest gradient, below which there is rounding alone; of AdamW's steps of 0.02, twice the learning rate), or a figure by more than 1e-5 (scores are sums of such products). Needs sentence-transformers (6.2 was used).
"""

import json
import os
import random
import shutil
import string
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import safetensors.torch
import scipy.stats
import sklearn.metrics
import torch
import transformers
from nanobeir import TASKS, Nano
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder import evaluation as E
from sentence_transformers.multi_vector_encoder import losses as L
from sentence_transformers.multi_vector_encoder import scoring
from sentence_transformers.multi_vector_encoder.evaluation import MultiVectorNanoBEIREvaluator
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
contraflow, work = sys.argv[1], Path(tempfile.mkdtemp())
tiny = Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny"
random.seed(5)
torch.manual_seed(5)
WORDS = "cat dog , bird . fish tree river , road house city stone bread ! water fire wind rain snow sun".split()


def text(most):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(1, most)))


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")
    return reply.stdout


def dense(rows, columns):
    return Dense(rows, columns, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")


def modernbert(folder):
    """A random ModernBERT with the tokenizer of tiny: of four layers two see three tokens on each side."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("modules.json", "*Pooling", "*Normalize", "*sentence*", "*.safetensors", "config.json"))
    config = transformers.ModernBertConfig(
        vocab_size=json.loads((tiny / "config.json").read_text())["vocab_size"], hidden_size=32, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4, local_attention=6,
        max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=None, cls_token_id=2, sep_token_id=3, initializer_range=0.2,
    )  # fmt: skip
    transformers.ModernBertModel(config).save_pretrained(folder)
    return folder


def native(folder, similarity, words, tasks, dims, base=tiny, **roles):
    """A MultiVectorEncoder as sentence-transformers saves it."""
    transformer = Transformer(str(base), **roles)
    dims = [transformer.get_embedding_dimension(), *dims]
    modules = [transformer, *map(dense, dims, dims[1:]), MultiVectorMask(skiplist_words=words, skiplist_tasks=tasks), Normalize(module_input_name="token_embeddings")]
    MultiVectorEncoder(modules=modules, prompts={"query": "ask: ", "document": "read: "}, similarity_fn_name=similarity, device="cpu").save_pretrained(str(folder))
    return folder


def pylate(folder, source, attend):
    """The same in PyLate's form: markers that become one token, and no module for mask and norm."""
    shutil.copytree(source, folder)
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[0]["type"], modules[1]["type"] = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = json.loads((folder / "1_Dense" / "config.json").read_text())
    settings = {k: v for k, v in settings.items() if not k.startswith("module_")} | {"use_residual": False}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(settings))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 19, "do_lower_case": False}))
    config = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim", "query_prefix": "[unused0] ", "document_prefix": "[unused1] ",
        "query_length": 14, "document_length": 20, "attend_to_expansion_tokens": attend, "skiplist_words": list(string.punctuation),
    }  # fmt: skip
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


def stanford(folder, attend):
    """A folder of Stanford's ColBERT: the projection is among the encoder's weights."""
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("modules.json", "*Pooling", "*Normalize", "*sentence*"))
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"bert." + k: v for k, v in safetensors.torch.load_file(tiny / "model.safetensors").items()}
    weights["linear.weight"] = torch.randn(18, config["hidden_size"]) / 5
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "artifact.metadata").write_text(json.dumps({"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "doc_maxlen": 24, "query_maxlen": 12, "attend_to_mask_tokens": attend}))
    return folder


QUERIES, DOCUMENTS = [text(20) for _ in range(6)] + [""], [text(30) for _ in range(6)] + ["", "fish , ."]


def compare(name, folder):
    model, worst = MultiVectorEncoder(str(folder), device="cpu"), 0.0
    for role, texts, encode in (("query", QUERIES, model.encode_query), ("document", DOCUMENTS, model.encode_document)):
        flags = [x for t in texts for x in ("--text", t)]
        got = [json.loads(line)["token_vectors"] for line in run(contraflow, "embed", "--model", folder, "--parts", "--prompt", role, *flags).splitlines()]
        for t, mine, theirs in zip(texts, got, encode(texts, convert_to_numpy=True), strict=True):
            mine = np.array(mine)
            if mine.shape != theirs.shape:
                sys.exit(f"{name}: the {role} {t!r} has token vectors of shape {mine.shape}, want {theirs.shape}")
            worst = max(worst, np.abs(mine - theirs).max())
    print(f"{name}: token vectors off by {worst:.1e}")
    if not worst < 1e-5:
        sys.exit("they differ")
    return model


def measure(name, model, folder):
    """Some texts are in several pairs, and on both sides; positive and negative are others, whose scores would differ by rounding alone there."""
    texts = sorted({text(12) for _ in range(12)})
    pairs = [{"a": random.choice(texts), **dict(zip("bn", random.sample(texts, 2))), "s": random.randint(0, 5), "y": i % 3 == 0} for i in range(40)]
    samples = [{"query": q, "positive": random.sample(texts, 2), "negative": random.sample(texts, 5)} for q in texts[:6]]
    for s in samples:
        s["negative"] = [x for x in s["negative"] if x not in s["positive"]]
    columns = {key: [p[key] for p in pairs] for key in pairs[0]}
    scores = model.similarity_pairwise(model.encode_query(columns["a"]), model.encode_document(columns["b"])).numpy()
    distilled = E.MultiVectorDistillationEvaluator(columns["a"], columns["b"], [float(s) for s in columns["s"]], write_csv=False)(model)
    ranked = E.MultiVectorRerankingEvaluator(samples, write_csv=False)(model)
    triplets = E.MultiVectorTripletEvaluator(columns["a"], columns["b"], columns["n"], write_csv=False)(model)
    want = {
        "sts": ("a,b,s", pairs, {"spearman": distilled["spearman"], "pearson": scipy.stats.pearsonr(scores, columns["s"])[0]}),
        "pair-classification": ("a,b,y", pairs, {"ap": sklearn.metrics.average_precision_score(columns["y"], scores)}),
        "triplets": ("a,b,n", pairs, {"accuracy": next(v for k, v in triplets.items() if k.endswith("accuracy"))}),
        "candidates": ("query,positive,negative", samples, {k: ranked[k] for k in ("ndcg@10", "mrr@10", "map")}),
    }
    worst = 0.0
    for task, (names, lines, figures) in want.items():
        (work / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        got = json.loads(run(contraflow, "eval", "--model", folder, f"--{task}", work / "task.jsonl", "--columns", names, "--json"))
        for key, value in figures.items():
            worst = max(worst, abs(got[key] - value))
            if not abs(got[key] - value) <= 1e-5 or value in (0, 1) and task != "candidates":
                sys.exit(f"{name}: {task} has {key} {got[key]}, want {value}")
    print(f"{name}: figures of pairs, triplets and candidates off by {worst:.1e}")


ROWS = 7
rows = [{"q": text(9), "p": text(14), "n1": text(14), "n2": text(14), "scores": [round(random.gauss(0, 2), 3) for _ in range(3)]} for _ in range(ROWS)]
for r in rows:
    r["margin"] = round(random.gauss(0, 2), 3)
(work / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
SCORES, MARGIN = torch.tensor([r["scores"] for r in rows]), torch.tensor([r["margin"] for r in rows])


def features(model, columns):
    """What the trainer's collator makes of a batch."""
    out = []
    for i, key in enumerate(columns):
        role = "document" if i else "query"
        out.append({**model.preprocess([r[key] for r in rows], prompt=model.prompts[role], task=role), "task": role})
    return out


def weights(folder):
    """A saved model's tensors by the names that files have."""
    out = {k: v for k, v in safetensors.torch.load_file(folder / "model.safetensors").items() if not k.startswith("pooler")}
    for file in sorted(folder.glob("*_Dense/model.safetensors")):
        out |= {f"{file.parent.name}.{k}": v for k, v in safetensors.torch.load_file(file).items()}
    return out


def parameters(model):
    out = {k: p for k, p in model[0].model.named_parameters() if not k.startswith("pooler")}
    for i, module in enumerate(model):
        if isinstance(module, Dense):
            out |= {f"{i}_Dense.{k}": p for k, p in module.named_parameters()}
    return out


def train(name, folder, loss, columns, sgd, steps=1, model="", more="mesh: {replicate: 1}"):
    out = work / f"run-{name}"
    recipe = f"""
model: {{path: {folder}, kind: multi_vector, dropout: 0{model}}}
data: {{train: [{{path: {work / 'rows.jsonl'}, query: q, positive: p{columns}}}], shuffle: false}}
loss: {{{loss}}}
optimizer: {sgd}
train: {{epochs: {steps}, precision: f32}}
log: {{every: 1}}
save: {{dir: {out}}}
{more}
"""
    if "batch:" not in more:
        recipe += f"batch: {{global_size: {ROWS}, no_duplicates: false}}\n"
    (work / "recipe.yaml").write_text(recipe)
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines() if "loss" in line], out / "model"


def differ(what, got, want, floor):
    worst = max(((got[k] - v).abs().max() / max(v.abs().max(), floor)).item() for k, v in want.items())
    if got.keys() != want.keys() or not worst <= 2e-4:
        each = {k: ((got[k] - v).abs().max() / max(v.abs().max(), floor)).item() for k, v in want.items() if k in got}
        sys.exit(f"{what}: {max(each, key=each.get)} is off by {worst:.1e}")
    return worst


fixed = {"strategy": "fixed", "attend": True, "length": 14}
a = native(work / "a", "maxsim", [".", ",", "no such token"], None, (24, 16), query_expansion=fixed, document_length=18)
b = native(work / "b", "meanmaxsim", [","], ["query", "document"], (12,), query_length=16, query_expansion={**fixed, "strategy": "min", "length": 8, "token": "[SEP]"})
c = native(work / "c", None, [], None, (10,))
d = pylate(work / "d", c, True)
e = stanford(work / "e", True)
f = native(work / "f", "maxsim", [","], None, (12,), query_expansion={**fixed, "attend": False})
g = native(work / "g", "maxsim", [","], None, (12,), base=modernbert(work / "modern"), query_expansion={"strategy": "min", "attend": False, "length": 15})
h = pylate(work / "h", c, False)
i = stanford(work / "i", False)
models = {folder: compare(name, folder) for name, folder in {
    "filled up to 14": a, "to at least 8": b, "not at all": c, "PyLate's": d, "Stanford's": e, "not attended to": f, "ModernBERT's, not attended to": g, "PyLate's, not attended to": h,
    "Stanford's, not attended to": i,
}.items()}  # fmt: skip
for name, folder in {"filled up to 14": a, "the mean": b, "PyLate's": d, "ModernBERT's, not attended to": g}.items():
    measure(name, models[folder], folder)

LR = 1e3
SGD = f"{{name: sgd, lr: {LR}, weight_decay: 0, max_grad_norm: 0, schedule: constant, warmup_ratio: 0}}"
MNRL, KL, MSE = L.MultiVectorMultipleNegativesRankingLoss, L.MultiVectorDistillKLDivLoss, L.MultiVectorMarginMSELoss
RANKS = f"batch: {{global_size: {ROWS}, no_duplicates: false, sub_batch: {{rows: 3}}, cache: always, replay_budget: 0}}\nmesh: {{replicate: 2}}"
NEGATIVES = ", negatives: [n1, n2]"
CASES = {
    "mnrl": (a, lambda m: MNRL(m), "mask_duplicates: false", NEGATIVES, ("q", "p", "n1", "n2"), None),
    "cached mnrl, mean": (
        b, lambda m: L.CachedMultiVectorMultipleNegativesRankingLoss(m, scale=9.0, mini_batch_size=3, similarity_fct=scoring.mean_colbert_scores),
        "mask_duplicates: false, scale: 9", "", ("q", "p"), None),
    "mnrl, PyLate's": (d, lambda m: MNRL(m), "mask_duplicates: false", ", negatives: n1", ("q", "p", "n1"), None),
    "distill_kl": (
        a, lambda m: KL(m, student_temperature=0.5, teacher_temperature=2.0), "name: distill_kl, student_temperature: 0.5, teacher_temperature: 2", NEGATIVES + ", scores: scores",
        ("q", "p", "n1", "n2"), SCORES),
    "margin_mse": (b, lambda m: MSE(m), "name: margin_mse, similarity: maxsim", NEGATIVES + ", scores: scores", ("q", "p", "n1", "n2"), SCORES),
    "mnrl, not attended to": (f, lambda m: MNRL(m), "mask_duplicates: false", ", negatives: n1", ("q", "p", "n1"), None),
    "distill_kl, ModernBERT's, not attended to": (
        g, lambda m: KL(m), "name: distill_kl", NEGATIVES + ", scores: scores", ("q", "p", "n1", "n2"), SCORES),
    "margin_mse, mean": (c, lambda m: MSE(m, similarity_fct=scoring.mean_colbert_scores_pairwise), "name: margin_mse, similarity: mean_maxsim", ", negatives: n1, label: margin", ("q", "p", "n1"), MARGIN),
}  # fmt: skip
for name, (folder, peer, loss, columns, keys, labels) in CASES.items():
    model = models[folder].eval()
    model.zero_grad()
    value = peer(model)(features(model, keys), labels)
    value.backward()
    want = {k: p.grad if p.grad is not None else torch.zeros_like(p) for k, p in parameters(model).items()}
    largest = max(g.abs().max().item() for g in want.values())
    before = weights(folder)
    for more in ("mesh: {replicate: 1}", RANKS) if labels is None else (RANKS,):
        values, saved = train("".join(filter(str.isalnum, name)), folder, loss, columns, SGD, more=more)
        got = {k: (before[k] - v) / LR for k, v in weights(saved).items()}
        worst = differ(f"{name}, {more}", got, want, 1e-3 * largest)
        ranks = "2 ranks" if more == RANKS else "plainly"
        print(f"{name}, {ranks}: loss {values[0]:.6f}, there {value.item():.6f}; gradients off by {worst:.1e}")
        if abs(values[0] - value.item()) > 2e-5 * abs(value.item()):
            sys.exit("the losses differ")

adamw = "{lr: 0.01, eps: 0.01, weight_decay: 0, max_grad_norm: 0, schedule: constant, warmup_ratio: 0}"
for name, folder in {"attended to": a, "ModernBERT's, not attended to": g}.items():
    model = MultiVectorEncoder(str(folder), device="cpu").eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-2, weight_decay=0)
    start = {k: p.detach().clone() for k, p in parameters(model).items()}
    for _ in range(2):
        optimizer.zero_grad()
        MNRL(model)(features(model, ("q", "p", "n1", "n2"))).backward()
        optimizer.step()
    _, saved = train("adamw" + folder.name, folder, "mask_duplicates: false", NEGATIVES, adamw, steps=2)
    now = weights(saved)
    worst = differ("two steps of AdamW", {k: v - start[k] for k, v in now.items()}, {k: p.detach() - start[k] for k, p in parameters(model).items()}, 0.02)
    print(f"{name}, two steps of AdamW: weights' changes off by {worst:.1e}")
    compare(f"{name}, trained in contraflow", saved)
GENTLE = "{lr: 1e-3}"
compare("PyLate's, trained", train("pylate", d, "mask_duplicates: false", "", GENTLE)[1])
compare("Stanford's, trained", train("stanford", e, "similarity: mean_maxsim", "", GENTLE)[1])
for name, folder in {"PyLate's": h, "Stanford's": i}.items():
    model = compare(f"{name}, not attended to, trained", train("unseen" + folder.name, folder, "mask_duplicates: false", "", GENTLE)[1])
    if model[0].query_expansion["attend"]:
        sys.exit(f"what training of {name} has saved has the others attend to what fills queries up")
fresh = train("fresh", tiny, "", "", GENTLE, model=", vector_dim: 20, skiplist: punctuation, query_expansion: {length: 10, attend: false}, max_length: {document: 16}, lora: {rank: 4, targets: [query, value]}")[1]
model = compare("a new projection, with LoRA", fresh)
if model.get_embedding_dimension() != 20 or model[0].query_expansion != {"strategy": "fixed", "attend": False, "token": None, "length": 10} or model[0].document_length != 16 or len(model[2].skiplist_words) != 32:
    sys.exit(f"what training with a new projection has saved is not what the recipe says: {model}")
nano = Nano(contraflow, work, WORDS)
nano.eval("attended to", a, MultiVectorNanoBEIREvaluator(TASKS, str(nano.folder), precision_recall_at_k=[100])(MultiVectorEncoder(str(a), device="cpu")), "maxsim")
shutil.rmtree(work)
