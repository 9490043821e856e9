"""Makes rerank/*: for each kind of head that scores a pair of texts a small random model as transformers saves it, and in float64 what
transformers makes of it: scores, and the gradient of sum(score * r) with respect to every parameter.

The scores of classifiers are their only logit. Those of language models are the logit of one token after the last one, or the difference
of two tokens' logits, as LogitScore of sentence-transformers and FlagEmbedding's decoders have them. How float64 is made of models that
compute parts in float32, and what weights and gradients are stored as, is told in families/make.py.

cross is a cross-encoder with a tokenizer and what sentence-transformers' CrossEncoder makes of texts.

Needs torch 2.9, transformers 5.23 and sentence-transformers 6.2. Run: python testdata/golden/rerank/make.py [NAME ...] (20 s; writes only here)
"""

import copy
import importlib.util
import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "goldens"))
spec = importlib.util.spec_from_file_location("families", HERE.parent / "families" / "make.py")
families = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)

import torch
import transformers
from goldens import error, report, save
from sentence_transformers import CrossEncoder

SEED = 20261121
LENGTHS = [3, 11, 6, 2]
VOCAB, PAD = 40, 1
SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 20}
BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD, "num_labels": 1}
DECODER = {**SMALL, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}

# name: configuration, model class, whether tokens have types, tokens whose logits are the score; perhaps a seed of its own
HEADS = {
    "bert": ("Bert", {**BERT, "type_vocab_size": 2}, "ForSequenceClassification", True, None),
    "xlm-roberta": ("XLMRoberta", {**BERT, "type_vocab_size": 1}, "ForSequenceClassification", False, None),
    "mpnet": ("MPNet", {**BERT}, "ForSequenceClassification", False, None),
    "distilbert": (
        "DistilBert",
        {"vocab_size": VOCAB, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 20, "dropout": 0.0,
         "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "pad_token_id": PAD, "num_labels": 1},
        "ForSequenceClassification", False, None,
    ),
    "modernbert-cls": (
        "ModernBert",
        {**SMALL, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 4, "num_labels": 1,
         "classifier_pooling": "cls"},
        "ForSequenceClassification", False, None,
    ),
    "modernbert-mean": (
        "ModernBert",
        {**SMALL, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 4, "num_labels": 1,
         "classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "silu", "norm_bias": True},
        "ForSequenceClassification", False, None,
    ),
    "deberta-v2": (
        "DebertaV2",
        {**BERT, "relative_attention": True, "position_buckets": 4, "max_relative_positions": 20, "norm_rel_ebd": "layer_norm", "share_att_key": True,
         "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "pooler_hidden_act": "gelu_new"},
        "ForSequenceClassification", False, None, 100,
    ),
    "qwen3-score": ("Qwen3", {**DECODER, "num_labels": 1}, "ForSequenceClassification", False, None),
    "qwen3-yes-no": ("Qwen3", {**DECODER, "tie_word_embeddings": True}, "ForCausalLM", False, [7, 9]),
    "llama-yes-no": ("Llama", {**DECODER, "tie_word_embeddings": False}, "ForCausalLM", False, [7, 9]),
    "gemma2-yes": ("Gemma2", {**DECODER, "sliding_window": 4, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}, "ForCausalLM", False, [7]),
    "electra": ("Electra", {**BERT, "embedding_size": 6, "type_vocab_size": 2, "hidden_act": "relu"}, "ForSequenceClassification", True, None),
    "ernie": ("Ernie", {**BERT, "type_vocab_size": 2, "use_task_id": True}, "ForSequenceClassification", True, None),
    "jina": ("JinaEmbeddingsV3", {**BERT, "type_vocab_size": 1}, "ForSequenceClassification", False, None),
    "gemma-yes": ("Gemma", DECODER, "ForCausalLM", False, [7]),
    "jina-v2": ("Bert", {**BERT, "type_vocab_size": 2, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}, "ForSequenceClassification", True, None),
}  # fmt: skip


def scores(model, rows, kinds, tokens):
    """One row at a time: nothing is padded."""
    out = []
    for row, kind in zip(rows, kinds):
        more = {"token_type_ids": kind[None]} if kind is not None else {}
        logits = model(input_ids=row[None], attention_mask=torch.ones(1, len(row), dtype=torch.int64), **more).logits
        if tokens is None:
            out.append(logits[0, 0])
        elif len(tokens) == 1:
            out.append(logits[0, -1, tokens[0]])
        else:
            out.append(logits[0, -1, tokens[0]] - logits[0, -1, tokens[1]])
    return torch.stack(out)


def build(name, config, kind):
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.get_default_dtype()
    if getattr(config, "position_embedding_type", None) == "alibi":
        return families.JinaV2ForSequenceClassification(config)
    return getattr(transformers, name + kind)(config)


only = sys.argv[1:]
number = -1
for label, (name, args, kind, typed, tokens, *own) in HEADS.items():
    number += not own
    seed = SEED + (own[0] if own else number)
    if only and label not in only:
        continue
    generator = torch.Generator().manual_seed(seed)
    config = getattr(transformers, name + "Config")(**args)
    rows = [torch.randint(3, VOCAB, (n,), generator=generator) for n in LENGTHS]
    kinds = [(torch.arange(n) >= n // 2).long() if typed else None for n in LENGTHS]
    folder, scratch = HERE / label, HERE / "scratch"
    model = build(name, config, kind)
    families.randomize(model, generator, torch.bfloat16)
    if args.get("tie_word_embeddings", name.startswith("Gemma")):
        model.tie_weights()
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    for file in folder.rglob("*"):
        file.chmod(0o644)
        if file.name == "generation_config.json":
            file.unlink()
    r = torch.randn(len(rows), generator=generator)

    def gradients(m):
        m.zero_grad()
        s = scores(m, rows, kinds, tokens)
        (s * r.to(s.dtype)).sum().backward()
        return s.detach(), families.gradients(m, scratch, None)

    narrow, narrow_grads = gradients(model)
    with families.in_double():
        wide = build(name, config, kind)
        wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        s, grads = gradients(wide)
    largest = max(g.abs().max().item() for g in grads.values())
    off = max(error(narrow_grads[n], g, floor=1e-4 * largest) for n, g in grads.items() if g.abs().max() > 1e-12 * largest)
    assert error(narrow, s) < 1e-5 and off < 2e-4, (label, error(narrow, s), off)
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r.double(), "scores": s}
    if typed:
        arrays["kinds"] = torch.cat(kinds)
    for n, g in grads.items():
        arrays["grad/" + n] = g.float()
    save(f"rerank/{label}", arrays, {"about": f"a random {name}{kind}; gradients are those of sum(score * r)", "tokens": tokens or []}, __file__, seed, ["transformers"])
    print(f"{label}: torch's float32 is off by {error(narrow, s):.1e}, in gradients by {off:.1e}", file=sys.stderr)

if only:
    sys.exit()

# A cross-encoder with a tokenizer, texts and all: what CrossEncoder makes of pairs, cut where they are too long.
tiny = HERE.parent / "bert" / "minilm-tiny"
tok = transformers.AutoTokenizer.from_pretrained(tiny, model_max_length=24)
generator = torch.Generator().manual_seed(SEED + 100)
folder = HERE / "cross"
model = build("Bert", transformers.BertConfig(**{**BERT, "vocab_size": len(tok), "max_position_embeddings": 48, "type_vocab_size": 2, "pad_token_id": 0}), "ForSequenceClassification")
families.randomize(model, generator, torch.bfloat16)
shutil.rmtree(folder, ignore_errors=True)
model.to(torch.bfloat16).save_pretrained(folder)
tok.save_pretrained(folder)
encoder = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
shutil.rmtree(folder)
encoder.save_pretrained(str(folder), create_model_card=False)
copy.deepcopy(encoder.model).to(torch.bfloat16).save_pretrained(folder)
for file in folder.rglob("*"):
    file.chmod(0o644)
texts = json.loads((HERE.parent / "bert" / "minilm-tiny.json").read_text())["texts"]
pairs = [[a, b] for i, a in enumerate(texts) for b in (texts[(i + 1) % len(texts)], texts[(i + 5) % len(texts)])]
pairs.append([" ".join(texts), " ".join(texts[::-1])])
pairs.append(["", texts[0]])
logits = encoder.predict(pairs, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
assert len({tuple(p) for p in pairs}) > 10 and logits.std() > 0.05
save("rerank/cross", {"scores": logits.double()}, {"about": "CrossEncoder.predict without its activation", "pairs": pairs}, __file__, SEED + 100, ["transformers", "sentence_transformers"])
report(__file__)
