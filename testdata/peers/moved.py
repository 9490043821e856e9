"""Scripts that move: what `contraflow import --python` writes of trainers of sentence-transformers, its import, and as many steps of either. A step's batch is
the whole dataset, or rows come in the order of the data. Then as many trainers as are asked for, drawn at random (drawn.py).

    python testdata/peers/moved.py CONTRAFLOW [--random FIRST-LAST]

Prints a table. Exits with 1 if a loss is off by more than 1e-4 of it, a learning rate at all, a figure of an evaluator by more than 1e-5, or the recipe names
something that is not known; of trainers drawn at random, if a loss is off by 3e-4, or a number that the trained model gives by 3e-4 of the largest. Needs sentence-transformers (6.2 was used), datasets and peft.
"""

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import drawn
import peft
import sentence_transformers as st
import torch
import transformers
from sentence_transformers.cross_encoder import losses as C
from sentence_transformers.multi_vector_encoder import losses as V
from sentence_transformers.sentence_transformer import evaluation as E
from sentence_transformers.sentence_transformer import losses as L
from sentence_transformers.sentence_transformer.modules import Dense
from sentence_transformers.sparse_encoder import losses as S
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling, Transformer

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
datasets.disable_progress_bars()
parser = argparse.ArgumentParser()
parser.add_argument("contraflow")
parser.add_argument("--random", default="1-0")
args = parser.parse_args()
contraflow = str(Path(args.contraflow).resolve())
work = Path(tempfile.mkdtemp())
os.chdir(work)
Path("trainer_settings.py").write_bytes(subprocess.run([contraflow, "import", "--python"], check=True, capture_output=True).stdout)
sys.path.insert(0, str(work))
import trainer_settings  # noqa: E402

ROWS, STEPS = 8, 4
tok = transformers.AutoTokenizer.from_pretrained(Path(__file__).resolve().parents[1] / "golden" / "bert" / "minilm-tiny")
torch.manual_seed(1)
transformers.BertForMaskedLM(transformers.BertConfig(
    vocab_size=len(tok), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    max_position_embeddings=48, initializer_range=0.2)).save_pretrained("start")  # fmt: skip
tok.save_pretrained("start")
known = drawn.families(tok)
rng = random.Random(2)


def texts(n=ROWS):
    words = "river stone bread water fire wind rain bird fish road".split()
    return [" ".join(rng.choice(words) for _ in range(rng.randint(3, 9))) for _ in range(n)]


triplets = datasets.Dataset.from_dict({"anchor": texts(), "positive": texts(), "negative": texts()})
scored = datasets.Dataset.from_dict({"score": [rng.random() for _ in range(ROWS)], "a": texts(), "b": texts()})
margins = datasets.Dataset.from_dict({"query": texts(), "positive": texts(), "negative": texts(), "score": [rng.random() for _ in range(ROWS)]})
several = margins.remove_columns("score").add_column("other", texts()).add_column("label", [[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(ROWS)])
repeated = datasets.Dataset.from_dict({"query": texts(ROWS // 2) * 2, "answer": texts(ROWS // 2) * 2})
taught = datasets.Dataset.from_dict({"sentence": texts(), "label": [[rng.gauss(0, 1) for _ in range(32)] for _ in range(ROWS)]})
lists = datasets.Dataset.from_dict({"query": texts(), "docs": [texts(4) for _ in range(ROWS)], "labels": [[0, 1, 3, 2]] * ROWS})
lazy = datasets.Dataset.from_dict({"i": list(range(ROWS))})
lazy.set_transform(lambda batch: {"anchor": [triplets[i]["anchor"] for i in batch["i"]], "positive": [triplets[i]["positive"] for i in batch["i"]]})


def dense():
    return st.SentenceTransformer("start", device="cpu")


def frozen():
    model = dense()
    for part in (model[0].model.embeddings, model[0].model.encoder.layer[0]):
        part.requires_grad_(False)
    return model


def tied():
    """With frozen embeddings, which are its decoder too, and first have that name."""
    model = st.SparseEncoder("xlm-roberta", device="cpu")
    model[0].model.roberta.embeddings.requires_grad_(False)
    return model


def adapted(trained=True, more=()):
    model = dense()
    for name, module in more:
        model.add_module(name, module)
    model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    if trained:
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.data.normal_(0, 0.1)
    return model


def evaluators():
    """Each with the names that its figures have here."""
    found = [dict(enumerate(triplets["anchor"])), dict(enumerate(triplets["positive"])), {i: {i} for i in range(ROWS)}]
    return [
        (E.InformationRetrievalEvaluator(*found, name="found"), {"found": "cosine_ndcg@10"}),
        (E.InformationRetrievalEvaluator(*found, name="found", truncate_dim=16, corpus_prompt="wind rain: "), {"found-16": "cosine_ndcg@10"}),
        (E.InformationRetrievalEvaluator(*found, name="found", truncate_dim=3), {"found-3": "cosine_ndcg@10"}),
        (E.EmbeddingSimilarityEvaluator(scored["a"], scored["b"], scored["score"], name="pairs"), {"pairs": "spearman_cosine"}),
        (E.TripletEvaluator(*(triplets[c] for c in triplets.column_names), name="pairs", truncate_dim=5), {"pairs-5": "cosine_accuracy"}),
    ]


def of_languages():
    a, b = [*triplets["anchor"], triplets["anchor"][0]], [*triplets["positive"], triplets["positive"][1]]
    return [
        (E.MSEEvaluator(a, b, dense(), name="taught"), {"loss": "negative_mse"}),
        (E.ParaphraseMiningEvaluator(dict(enumerate(a + b)), [(i, i + ROWS + 1) for i in range(ROWS)], add_transitive_closure=True, name="same", truncate_dim=20), {"same": "average_precision"}),
        (E.TranslationEvaluator(a, b, name="both"), {f"both-{way}": f"{way}_accuracy" for way in ("src2trg", "trg2src")}),
    ]


def prompted():
    """With prompts of queries and documents, and one of what is neither."""
    return st.SentenceTransformer("start", prompts={"query": "fish ", "document": "road rain ", "all": "wind wind "}, default_prompt_name="all", device="cpu")


def skipping():
    """That pools without prompts."""
    model = dense()
    model.set_pooling_include_prompt(False)
    return model


def weighed():
    """With queries of weights of tokens alone, which learn at a rate of their own."""
    document = Transformer("start", transformer_task="fill-mask")
    return st.SparseEncoder(modules=[Router.for_query_document([SparseStaticEmbedding(document.tokenizer)], [document, SpladePooling("max")])], similarity_fn_name="dot", device="cpu")


def products():
    """Of a model whose embeddings are compared by dot products."""
    return [(of, {name: key.replace("cosine", "dot") for name, key in names.items()}) for of, names in evaluators()]


def unprompted():
    """Those that embed with other prompts than the trainer's, here too."""
    return [*evaluators()[:3], of_languages()[0]]


def scores(model):
    return {"pairs": L.CoSENTLoss(model, scale=10), "triplets": L.TripletLoss(model, triplet_margin=3)}


# Each a model, its data, its loss and more of its trainer: arguments, and evaluators.
CASES = {
    "matryoshka": (dense, triplets, lambda m: L.MatryoshkaLoss(m, L.MultipleNegativesRankingLoss(m, scale=10), [32, 16]), {"prompts": {"anchor": "star: "}, "batch_sampler": "no_duplicates"}, unprompted),
    "rows made as they are read": (dense, lazy, lambda m: L.MatryoshkaLoss(m, L.CachedMultipleNegativesRankingLoss(m, mini_batch_size=4), [32, 8]), {"weight_decay": 5}, None),
    "repeated rows": (dense, repeated, L.MultipleNegativesRankingLoss, {}, None),
    "guide": (dense, triplets.select_columns(["anchor", "negative"]), lambda m: L.CachedGISTEmbedLoss(m, dense(), mini_batch_size=3), {"prompts": {"anchor": "wind rain: "}}, None),
    "two losses": (dense, {"pairs": scored, "triplets": triplets}, scores, {"multi_dataset_batch_sampler": "round_robin"}, None),
    "angle of triplets": (frozen, triplets, L.AnglELoss, {}, evaluators),
    "embeddings of a teacher": (dense, taught, L.MSELoss, {}, of_languages),
    "margins": (dense, margins, L.MarginMSELoss, {"lr_scheduler_type": "cosine"}, evaluators),
    "margins to several": (dense, several, L.MarginMSELoss, {}, None),
    "measured by products": (lambda: st.SentenceTransformer("start", similarity_fn_name="dot", device="cpu"), triplets, L.MultipleNegativesRankingLoss, {}, products),
    "the model's prompts": (prompted, triplets, L.MultipleNegativesRankingLoss, {"prompts": "river "}, lambda: [*evaluators(), *of_languages()[:2]]),
    "pooling without prompts": (skipping, triplets, L.MultipleNegativesRankingLoss, {"prompts": {"anchor": "fish road ", "negative": "rain "}}, evaluators),
    "rates of names in others": (lambda: st.SentenceTransformer("llama", device="cpu"), triplets, L.MultipleNegativesRankingLoss, {"learning_rate_mapping": {r"\.norm\.": 3e-2}}, None),
    "LoRA": (lambda: adapted(trained=False), triplets, L.MultipleNegativesRankingLoss, {"learning_rate": 1e-9}, None),  # which begins at random
    "LoRA that goes on": (adapted, triplets, L.MultipleNegativesRankingLoss, {}, evaluators),
    "LoRA beside a layer": (lambda: adapted(more=[("2", Dense(32, 20))]), triplets, L.MultipleNegativesRankingLoss, {}, None),
    "reranker's margins": (lambda: st.CrossEncoder("start", num_labels=1, device="cpu"), margins, C.MarginMSELoss, {}, None),
    "lists": (lambda: st.CrossEncoder("start", num_labels=1, device="cpu"), lists, lambda m: C.LambdaLoss(m, C.NDCGLoss2PPScheme(mu=3), k=2), {}, None),
    "sparse": (lambda: st.SparseEncoder("start", device="cpu"), triplets, lambda m: S.SpladeLoss(m, S.SparseMultipleNegativesRankingLoss(m), 0.01, 0.02), {}, None),
    "sparse, documents alone": (tied, scored, lambda m: S.SpladeLoss(m, S.SparseCoSENTLoss(m), 0.02, use_document_regularizer_only=True), {}, None),
    "sparse, queries of weights": (weighed, triplets, lambda m: S.SpladeLoss(m, S.SparseMultipleNegativesRankingLoss(m), 0.01, 0.02), {
        "router_mapping": {"anchor": "query", "positive": "document", "negative": "document"}, "learning_rate_mapping": {r"sub_modules\.query": 1e-1}}, None),
    "multi-vector": (lambda: st.MultiVectorEncoder("start", device="cpu"), triplets, V.MultiVectorMultipleNegativesRankingLoss, {"max_length": {"query": 7, "document": 5}}, None),
}  # fmt: skip

class InOrder(torch.utils.data.BatchSampler):
    def __init__(self, rows, batch_size, drop_last, **_):
        super().__init__(torch.utils.data.SequentialSampler(rows), batch_size, drop_last)

    def set_epoch(self, epoch):
        pass


def train(make, rows, loss, more, evaluator=None):
    """Trains with both, and gives the losses and learning rates of each, and the trainer."""
    torch.manual_seed(3)
    model = make()
    kind = type(model).__name__
    arguments = getattr(st, kind + "TrainingArguments")(**{
        "output_dir": "there", "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True} | more)  # fmt: skip
    trainer = getattr(st, kind + "Trainer")(model, arguments, train_dataset=rows, loss=loss(model), evaluator=evaluator)
    trainer.remove_callback(transformers.PrinterCallback)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer_settings.write(trainer, "moved")
    r = subprocess.run([contraflow, "import", "moved/args.json"], capture_output=True, text=True)
    said = [line for line in r.stderr.splitlines() if not line.startswith(("assumed", "without counterpart: transform"))]
    Path("recipe.yaml").write_text(r.stdout)
    command = [contraflow, "train", "-c", "recipe.yaml", "--set", "save.dir=here", "--set", "train.device=cpu", "--set", "data.shuffle=false"]
    trained = subprocess.run(command, capture_output=True, text=True)
    if r.returncode or said or trained.returncode:
        raise RuntimeError(f"{r.stdout}{said}\n{trained.stderr}")
    trainer.evaluator, trainer.args.batch_sampler = None, InOrder
    trainer.train()
    ours = [(m["loss"], m["lr"]) for m in map(json.loads, open("here/metrics.jsonl")) if "lr" in m]
    return ours, [(m["loss"], m["learning_rate"]) for m in trainer.state.log_history if "loss" in m], trainer


def outputs(model):
    """What a model gives for a few texts."""
    probe = ["river stone bread", "wind", "fish road rain water fire bird wind stone"]
    if isinstance(model, st.CrossEncoder):
        return [torch.as_tensor(model.predict([(a, b) for a in probe for b in probe]))]
    if isinstance(model, st.MultiVectorEncoder):
        return [torch.as_tensor(e) for encode in (model.encode_query, model.encode_document) for e in encode(probe)]
    given = model.encode(probe, convert_to_tensor=True)
    return [given.to_dense() if given.is_sparse else given]


def measures(of, model):
    """An evaluator's, by the names that they have in metrics.jsonl, but for what ties or a sigmoid behind scores let be another number."""
    found = {}
    for key, value in of(model).items():
        if any(of_ties in key for of_ties in ("mcc", "mrr", "precision", "recall", "threshold")) and "average" not in key or isinstance(model, st.CrossEncoder) and "pearson" in key:
            continue
        parts = [p for p in key.removeprefix(f"{of.name}_").split("_") if p not in ("cosine", "dot")]
        found["_".join(parts).replace("maxsim_", "").replace("average_precision", "ap")] = float(value)
    return found


bad = 0
for name, (make, rows, loss, more, evaluate) in CASES.items():
    more = {"per_device_train_batch_size": ROWS, "learning_rate": 1e-3, "warmup_steps": 1, "max_steps": STEPS} | more
    try:
        ours, theirs, trainer = train(make, rows, loss, more, evaluate and E.SequentialEvaluator([of for of, _ in evaluate()]))
    except RuntimeError as e:
        sys.exit(f"{name}: {e}")
    off = drawn.worst(abs(a - b) / abs(b) for (a, _), (b, _) in zip(ours, theirs, strict=True))
    rates = drawn.worst(abs(a - b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    wrong = not (off <= 1e-4 and rates <= 1e-12)
    if evaluate:
        line = [m for m in map(json.loads, open("here/metrics.jsonl")) if "metric" in m][-1]
        figures = {t["name"]: t["value"] for t in line["tasks"]} | ({"loss": -100 * line["loss"]} if "loss" in line else {})
        measured = {name: of(trainer.model)[f"{of.name}_{key}"] for of, names in evaluate() for name, key in names.items()}
        wrong |= figures.keys() != measured.keys() or not all(abs(figures[k] - v) <= 1e-5 * max(1, abs(v)) for k, v in measured.items())
        print(f"{'its evaluators':28} {' '.join(f'{k} {v:.5f}' for k, v in measured.items())}")
    bad += wrong
    print(f"{name:28} {' '.join(f'{a:.5f}' for a, _ in ours)}  off by {off:.1e}{'  WRONG' if wrong else ''}")
    shutil.rmtree("here")
    shutil.rmtree("moved")

first, last = map(int, args.random.split("-"))
for seed in range(first, last + 1):
    draw = drawn.Draw(seed, known)
    model, rows, loss, more, evaluator = draw.trainer()
    try:
        ours, theirs, trainer = train(lambda model=model: model, rows, loss, more, evaluator)
        off = drawn.worst(abs(a - b) / max(abs(b), 1e-3) for (a, _), (b, _) in zip(ours, theirs, strict=True))
        rates = drawn.worst(abs(a - b) for (_, a), (_, b) in zip(ours, theirs, strict=True))
        saved = type(model)("here/model", device="cpu", prompts=trainer.model.prompts)  # a run saves those that train
        given = drawn.worst(float((a - b).abs().max() / b.abs().max()) for a, b in zip(outputs(saved), outputs(trainer.model), strict=True))
        measured, there = [m for m in map(json.loads, open("here/metrics.jsonl")) if "eval" in m][-1]["eval"], measures(evaluator, saved)
        both = [(k, measured[k], there[k]) for k in measured.keys() & there.keys()]
        wrong = not (off <= 3e-4 and rates <= 1e-12 and given <= 3e-4 and both and all(abs(a - b) <= 1e-5 * max(1, abs(b)) for _, a, b in both))
        print(f"{f'seed {seed}, {draw.family}':28} {' '.join(f'{a:.5f}' for a, _ in ours[:6])}  off by {off:.1e}, outputs by {given:.1e}{f'  WRONG {measured} {there}' if wrong else ''}")
    except Exception:
        wrong = True
        traceback.print_exc()
    if wrong:
        print(f"seed {seed}: {draw.kind}, {draw.family}, {type(loss(model))}, {more}\n{Path('recipe.yaml').read_text()}")
    bad += wrong
    shutil.rmtree("here", ignore_errors=True)
    shutil.rmtree("moved", ignore_errors=True)
sys.exit(bad > 0)
