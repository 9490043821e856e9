"""Checks model.queries, sparse queries without a model, both ways against sentence-transformers' Router of SparseStaticEmbedding and of a transformer with
SpladePooling, with a small random BERT:

1. as sentence-transformers saves it, the model gives the same embeddings in contraflow by encode_query and encode_document, the empty query among them;
2. two steps of SGD on two ranks, with sub-batches that are embedded twice, change every parameter as they do there in one process, the weights of queries'
   tokens at a learning rate of their own, with the documents' regularizer of SpladeLoss; the loss is the same too;
3. with frozen weights of a file of token to weight, which a plain masked-language model gets (SparseStaticEmbedding.from_json), likewise;
4. what contraflow saves gives the same embeddings in sentence-transformers, which cuts queries where the recipe says.

    python testdata/peers/queries.py CONTRAFLOW

Exits with 1 if embeddings differ by more than 1e-5 of the largest, a loss by more than 1e-5 of it, or what two steps have changed a parameter by, by more
than 1e-3 of its largest change (f32, whose rounding of weights shows in their differences). Needs sentence-transformers (6.2 was used) and pyarrow.
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import small  # before transformers

import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder import losses as L
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

contraflow = sys.argv[1]
work = Path(tempfile.mkdtemp())
random.seed(11)
golden = Path(__file__).resolve().parents[1] / "golden" / "bert"
words = " ".join(json.loads((golden / "minilm-tiny.json").read_text())["texts"]).split()
LENGTH, SAVED = 32, 12  # queries' tokens, as the peer has them and as the recipe has them


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {reply.stderr[-2000:]}")
    return reply.stdout


def pick(most=9):
    return " ".join(random.choice(words) for _ in range(random.randint(1, most)))


tok = transformers.PreTrainedTokenizerFast(tokenizer_file=str(golden / "minilm-tiny" / "tokenizer.json"), model_max_length=LENGTH, **small.WP)
encoder, _ = small.shape(72)
torch.manual_seed(3)
bert = transformers.AutoModelForMaskedLM.from_config(small.config("BertConfig", {**encoder, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, tok))
small.spread(bert.eval())
with torch.no_grad():
    bert.get_output_embeddings().weight.div_(8)
    logits = bert(**tok([pick() for _ in range(20)], padding=True, truncation=True, return_tensors="pt")).logits.amax(1)
    bert.get_output_embeddings().bias.sub_(logits.quantile(0.85).item())
bert.save_pretrained(work / "plain")
tok.save_pretrained(work / "plain")
(work / "idf.json").write_text(json.dumps({t: round(random.uniform(0.1, 2), 3) for t in sorted(tok.get_vocab())[::2]}))  # others are 0


def save(name, weights):
    document = Transformer(str(work / "plain"), transformer_task="fill-mask")
    query = weights(document.tokenizer)
    router = Router.for_query_document([query], [document, SpladePooling("max", "log1p_relu")])
    SparseEncoder(modules=[router], device="cpu", similarity_fn_name="dot").save_pretrained(str(work / name), create_model_card=False)
    return work / name


def cut(folder):
    """Has queries cut where the recipe cuts them."""
    file = folder / "query_0_SparseStaticEmbedding" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": SAVED}))


def compare(what, folder, texts):
    peer = SparseEncoder(str(folder), device="cpu")
    for role, encode in ("query", peer.encode_query), ("document", peer.encode_document):
        want = encode(texts, convert_to_sparse_tensor=False, convert_to_tensor=True)
        lines = run(contraflow, "embed", "--model", folder, "--prompt", role, *[x for t in texts for x in ("--text", t)]).splitlines()
        got = torch.zeros_like(want)
        for i, line in enumerate(lines):
            row = json.loads(line)
            got[i, row["lexical_ids"]] = torch.tensor(row["lexical_weights"])
        off, active = ((got - want).abs().max() / want.abs().max()).item(), (want > 0).float().mean().item()
        print(f"{what}, {role}: embeddings off by {off:.1e}; {active:.0%} of features are active", flush=True)
        if not off < 1e-5 or not 0.005 < active < 0.97:
            sys.exit("the embeddings differ, or there is nothing to see")


def clear(model, texts):
    """Whether rounding to f32 can't take another token for a feature's best, as in splade.py."""
    with torch.no_grad():
        document = model[0].sub_modules["document"][0]
        features = document(document.preprocess(texts))
        logits = features["token_embeddings"].masked_fill(features["attention_mask"][..., None] == 0, -torch.inf)
    first, second = logits.topk(2, dim=1).values.unbind(1)
    return first.abs().min() > 3e-6 and (first - second)[first > 0].min() > 3e-6


def two_steps(folder, frozen):
    """A peer's two steps of SGD: its model, parameters before, losses, rows and the learning rate."""
    for _ in range(100):
        rows = [{"q": pick(20), "p": pick(), "n": pick()} for _ in range(13)]
        model = SparseEncoder(str(folder), device="cpu").double().eval()
        model[0].sub_modules["document"][1].train()  # whose arithmetic in place has no gradient otherwise
        before = {k: v.clone() for k, v in model[0].state_dict().items()}
        loss = L.SpladeLoss(model, L.SparseMultipleNegativesRankingLoss(model), document_regularizer_weight=0.01)
        queries = model[0].sub_modules["query"][0]
        losses, sure = [], True
        for step in range(2):
            model.zero_grad()
            inputs = [model.preprocess([r[k] for r in rows], task="query" if k == "q" else "document") for k in "qpn"]
            value = sum(loss(inputs, None).values())
            value.backward()
            losses.append(value.item())
            if step == 0:
                lr = 0.1 / sum((p.grad**2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()
            sure = sure and clear(model, [r[k] for r in rows for k in "pn"])
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad is not None:
                        p -= (5 * lr if p is queries.weight else lr) * p.grad
        if sure:
            return model, before, losses, rows, lr
    sys.exit("no rows without a choice that rounding may change")


def name_of(key):
    """A parameter's name in the peer's Router."""
    return "sub_modules.query.0.weight" if key == "weight" else f"sub_modules.document.0.model.{key}"


def train(what, path, keys, peer, frozen):
    model, before, losses, rows, lr = peer
    (work / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    groups = "" if frozen else f", groups: [{{params: [queries], lr: {5 * lr!r}}}]"
    (work / "recipe.yaml").write_text(f"""
model: {{path: {path}, kind: sparse, max_length: {{query: {SAVED}, document: 64}}{keys}}}
data: {{shuffle: false, train: [{{path: {work / "rows.jsonl"}, query: q, positive: p, negatives: n}}]}}
batch: {{global_size: 13, no_duplicates: false, drop_last: false, sub_batch: {{rows: 4}}, cache: always}}
loss: {{name: mnrl, mask_duplicates: false, flops: {{document: 0.01, warmup_ratio: 0}}}}
optimizer: {{name: sgd, lr: {lr!r}, weight_decay: 0, max_grad_norm: 0, schedule: constant, warmup_ratio: 0{groups}}}
train: {{epochs: 2, precision: f32}}
mesh: {{replicate: 2}}
log: {{every: 1}}
save: {{dir: {work / "run"}}}
""")
    shutil.rmtree(work / "run", ignore_errors=True)
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    got = [json.loads(line)["loss"] for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    off = max(abs(a - b) / abs(b) for a, b in zip(got, losses, strict=True))
    saved = work / "run" / "model"
    mine = load_file(saved / "model.safetensors") | load_file(saved / "query_0_SparseStaticEmbedding" / "model.safetensors")
    after = model[0].state_dict()
    changes = {k: after[name_of(k)].double() - before[name_of(k)].double() for k in mine}
    floor = 1e-3 * max(c.abs().max().item() for c in changes.values())
    top, at = 0.0, ""
    for k, v in mine.items():
        difference = ((v.double() - before[name_of(k)].double() - changes[k]).abs().max() / max(changes[k].abs().max().item(), floor)).item()
        top, at = max((top, at), (difference, k))
    moved = changes["weight"].abs().max().item()
    print(f"{what}: losses off by {off:.0e}, the worst parameter after two steps by {top:.0e}, {at}; weights of queries changed by up to {moved:.0e}", flush=True)
    if not off < 1e-5 or not top < 1e-3 or (moved == 0) != frozen or not floor > 1e-6:
        sys.exit("training differs")
    if json.loads((saved / "query_0_SparseStaticEmbedding" / "config.json").read_text())["frozen"] != frozen:
        sys.exit("the saved folder says otherwise whether the weights are frozen")
    compare(f"{what}, as contraflow saves it", saved, texts)


texts = [pick() for _ in range(4)] + ["", " ".join(words[:90]), "[SEP] " + pick()]
trains = save("trains", lambda t: SparseStaticEmbedding(t, weight=torch.rand(len(t.get_vocab())) + 0.2, frozen=False))
compare("as sentence-transformers saves it", trains, texts)
cut(trains)
train("weights that train", trains, "", two_steps(trains, False), False)
frozen = save("frozen", lambda t: SparseStaticEmbedding.from_json(str(work / "idf.json"), t, frozen=True))
cut(frozen)
train("frozen idf.json", work / "plain", f", activation_function: log1p_relu, queries: {{weights: {work / 'idf.json'}, frozen: true}}", two_steps(frozen, True), True)
shutil.rmtree(work)
