"""Checks every kind of reranker both ways against sentence-transformers' CrossEncoder and transformers: a random model with a tokenizer,

1. as CrossEncoder (or transformers) saves it, scores pairs in contraflow as it does there, pairs that are cut among them;
2. after a few training steps in contraflow, as contraflow saves it, loads there and scores as in contraflow.

    python testdata/peers/rerankers.py CONTRAFLOW [NAME ...]

Prints a table. Exits with 1 if scores differ by 1e-5 of the largest or more, or training changed nothing. Needs sentence-transformers (6.2
was used), transformers 5.23, pyarrow, and what tokenize/families.py needs.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import small  # first: it sets the environment
from small import BPE, SPM, WP, run

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from sentence_transformers import CrossEncoder
from transformers import PreTrainedTokenizerFast

contraflow, only = sys.argv[1], sys.argv[2:]
work = Path(tempfile.mkdtemp())
POSITIONS, LENGTH, LONG = 520, 120, 480  # LONG with a template, which is 200 tokens of these vocabularies
SMALL, DECODER = small.shape(POSITIONS)
SMALL = {**SMALL, "num_labels": 1}

QWEN = ("<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "
        '"yes" or "no".<|im_end|>\n<|im_start|>user\n', "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

# name: class, configuration, tokenizer (of tokenize/families.py) and its special tokens, what it is: a classifier, a language model scored by
# CrossEncoder, or one scored as its model card does, with a template
KINDS = {
    "BERT": ("Bert", SMALL, "wordpiece", WP, "classifier"),
    "BERT, no types": ("Bert", SMALL, "wordpiece", WP, "classifier"),
    "RoBERTa": ("Roberta", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}, "roberta", SPM, "classifier"),
    "XLM-RoBERTa": ("XLMRoberta", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}, "xlm-roberta", SPM, "classifier"),
    "MPNet": ("MPNet", SMALL, "mpnet", SPM, "classifier"),
    "DeBERTa": ("DebertaV2", {**SMALL, **small.DEBERTA}, "deberta", WP, "classifier"),
    "DistilBERT": (
        "DistilBert", {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": POSITIONS, "num_labels": 1}, "wordpiece", WP, "classifier"),
    "ELECTRA": ("Electra", {**SMALL, "embedding_size": 20, "hidden_act": "relu"}, "wordpiece", WP, "classifier"),
    "ModernBERT": ("ModernBert", {**SMALL, "local_attention": 16}, "modernbert", WP, "classifier"),
    "ModernBERT, mean": ("ModernBert", {**SMALL, "local_attention": 16, "classifier_pooling": "mean"}, "modernbert", WP, "classifier"),
    "Qwen3, last token": ("Qwen3", {**DECODER, "head_dim": 16, "num_labels": 1}, "qwen2", BPE, "classifier"),
    "Llama, last token": ("Llama", {**DECODER, "num_labels": 1}, "llama3", {"pad_token": "<|end_of_text|>"}, "classifier"),
    "Mistral, padding ends texts": ("Mistral", {**DECODER, "num_labels": 1}, "mistral", {"pad_token": "</s>"}, "classifier"),
    "Qwen3, yes/no": ("Qwen3", {**DECODER, "head_dim": 16, "tie_word_embeddings": True}, "qwen2", BPE, "tokens"),
    "Qwen3-Reranker": ("Qwen3", {**DECODER, "head_dim": 16, "tie_word_embeddings": True}, "qwen2", BPE, "qwen3"),
    "FlagEmbedding, Gemma 2": (
        "Gemma2", {**DECODER, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16}, "gemma", {**SPM, "bos_token": "<bos>"}, "bge"),
}  # fmt: skip


def make(name, cls, args, tokenizer, special, kind):
    folder = work / name.replace(" ", "-").replace(",", "").replace("/", "-")
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if name == "BERT" else {}
    side = "right" if kind == "classifier" else "left"  # what is set later is not saved
    tok = PreTrainedTokenizerFast(tokenizer_file=str(work / tokenizer / "tokenizer.json"), model_max_length=LENGTH, padding_side=side, **special, **names)
    words = ["yes", "no", "Yes"] if kind != "classifier" else []
    tok.add_tokens([w for w in words if w not in tok.get_vocab()])
    torch.manual_seed(len(name))
    cfg = small.config(cls + "Config", args, tok)
    model = getattr(transformers, cls + ("ForSequenceClassification" if kind == "classifier" else "ForCausalLM"))(cfg)
    small.spread(model)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    if kind in ("classifier", "tokens"):
        encoder = CrossEncoder(str(folder), device="cpu")
        shutil.rmtree(folder)
        encoder.save_pretrained(str(folder), create_model_card=False)
    return folder


def ours(folder, pairs, *more):
    source, out = work / "pairs.parquet", work / "scores.parquet"
    pq.write_table(pa.table({"query": [a for a, _ in pairs], "document": [b for _, b in pairs]}), source)
    run(contraflow, "rerank", "--model", folder, "--input", source, "--output", out, *more)
    return np.array(pq.read_table(out)["score"].to_pylist())


def by_hand(folder, pairs, kind):
    """As Qwen3-Reranker's card and FlagEmbedding's BaseLLMReranker do, one pair at a time."""
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    plain = lambda text: tok(text, add_special_tokens=False)["input_ids"]
    scores = []
    for query, document in pairs:
        if kind == "qwen3":
            before, after = plain(QWEN[0]), plain(QWEN[1])
            body = plain(f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}")
            ids = before + body[: LONG - len(before) - len(after)] + after
        else:
            prompt = plain("Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a prediction of either 'Yes' or 'No'.")
            sep = plain("\n")
            bos = [tok.bos_token_id] if tok.bos_token_id is not None and tok.bos_token_id != tok.pad_token_id else []
            item = tok.prepare_for_model if hasattr(tok, "prepare_for_model") else None
            head, second = bos + plain("A: " + query), sep + plain("B: " + document)
            ids = head + second[: max(len(sep), LONG - len(prompt) - len(sep) - len(head))] + sep + prompt
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        find = lambda token: tok.convert_tokens_to_ids(token)
        scores.append((logits[find("yes")] - logits[find("no")]).item() if kind == "qwen3" else logits[plain("Yes")[0]].item())
    return np.array(scores)


def theirs(folder, pairs, kind):
    if kind in ("qwen3", "bge"):
        return by_hand(folder, pairs, kind)
    encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    return encoder.predict(pairs, activation_fn=torch.nn.Identity(), batch_size=1).astype(np.float64)


def off(name, got, want):
    error = np.abs(got - want).max() / np.abs(want).max()
    if not error < 1e-5:
        worst = int(np.abs(got - want).argmax())
        sys.exit(f"{name}: pair {worst} has {got[worst]}, want {want[worst]}: off by {error:.3g} of the largest")
    return error


lines = small.texts()
short = [t for t in lines if 3 < len(t) < 40][:60]
pairs = list(zip(lines[:60], lines[100:160])) + [(" ".join(lines[i : i + 2]), " ".join(lines[i : i + 60])) for i in range(0, 60, 20)]
clean = [(a, " ".join(lines[i : i + 9])) for i, a in enumerate(short[:30])]
small.tokenizers(work, lines)
pq.write_table(pa.table({"query": lines[:64], "positive": lines[64:128], "negative": lines[128:192]}), work / "train.parquet")
print("reranker | tokenizer | error as loaded | after training")
for name, spec in KINDS.items():
    if only and name not in only:
        continue
    folder, kind = make(name, *spec), spec[4]
    template = ["--template", kind] if kind in ("qwen3", "bge") else []
    # Templates cut the document alone: queries are short there.
    some = clean if template else pairs
    if template:
        template += ["--max-length", LONG]
    before = ours(folder, some, *template)
    if np.std(before) < 1e-3 * np.abs(before).max():
        sys.exit(f"{name}: all pairs are the same to this model: a comparison would say nothing")
    loaded = off(f"{name} in contraflow", before, theirs(folder, some, kind))
    trained = work / "trained"
    shutil.rmtree(trained, ignore_errors=True)
    recipe = {
        "model": {"path": str(folder), "kind": "reranker", "max_length": LONG if template else LENGTH, **({"template": kind} if template else {})},
        "data": {"train": [{"path": str(work / "train.parquet"), "query": "query", "positive": "positive", "negatives": ["negative"]}]},
        "batch": {"global_size": 16}, "optimizer": {"lr": 1e-3}, "train": {"max_steps": 4}, "save": {"dir": str(trained)},
    }  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    after = ours(trained / "model", some)
    if np.abs(after - before).max() < 1e-3 * np.abs(before).max():
        sys.exit(f"{name}: training changed nothing: this check would not see a model that is saved as it was loaded")
    auto = transformers.AutoModelForSequenceClassification if kind == "classifier" else transformers.AutoModelForCausalLM
    _, info = auto.from_pretrained(trained / "model", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"{name}: transformers found {info}")
    saved = off(f"{name}, trained by contraflow, in the peer", after, theirs(trained / "model", some, kind))
    if kind == "qwen3":  # CrossEncoder reads the template that was saved with the model
        saved = max(saved, off(f"{name}, trained by contraflow, in CrossEncoder", after, theirs(trained / "model", some, "tokens")))
    print(f"{name} | {spec[2]} | {loaded:.1e} | {saved:.1e}", flush=True)
shutil.rmtree(work)
