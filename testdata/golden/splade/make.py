"""Makes splade/*: for each family's head for masked language modelling a small random model as transformers saves it, and in float64 what
sentence-transformers' SpladePooling makes of its logits: sparse embeddings, and the gradient of sum(embedding * r) with respect to every
parameter.

How float64 is made of models that compute parts in float32, and what weights and gradients are stored as, is told in families/make.py.

encoder is a SparseEncoder with a tokenizer, as sentence-transformers saves it, and the embeddings that it makes of texts.

Needs torch 2.9, transformers 5.23 and sentence-transformers 6.2. Run: python testdata/golden/splade/make.py [NAME ...] (20 s; writes only here)
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
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling

SEED = 20261127
LENGTHS = [3, 11, 6, 2]
VOCAB, PAD = 70, 1  # more than one tile of 64 where tiles are small
SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 20}
BERT = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "pad_token_id": PAD}
MODERN = {**SMALL, "pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2, "local_attention": 4}

# name: configuration, model class, activation_function of SpladePooling
HEADS = {
    "bert": ("Bert", {**BERT, "type_vocab_size": 2}, "relu"),
    "bert-untied": ("Bert", {**BERT, "type_vocab_size": 2, "tie_word_embeddings": False, "hidden_act": "relu"}, "log1p_relu"),
    "xlm-roberta": ("XLMRoberta", {**BERT, "type_vocab_size": 1, "hidden_act": "silu"}, "relu"),
    "mpnet": ("MPNet", {**BERT}, "log1p_relu"),
    "distilbert": (
        "DistilBert",
        {"vocab_size": VOCAB, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 20, "dropout": 0.0,
         "attention_dropout": 0.0, "pad_token_id": PAD, "activation": "gelu"},
        "relu",
    ),
    "modernbert": ("ModernBert", MODERN, "relu"),
    "modernbert-bias": ("ModernBert", {**MODERN, "classifier_bias": True, "classifier_activation": "silu", "norm_bias": True, "decoder_bias": False}, "log1p_relu"),
    "nomic-bert": ("NomicBert", {**BERT, "type_vocab_size": 2}, "relu"),
    "gte": ("Gte", {**BERT, "type_vocab_size": 1, "hidden_act": "silu"}, "log1p_relu"),
    "jina": ("JinaEmbeddingsV3", {**BERT, "type_vocab_size": 1, "hidden_act": "silu"}, "relu"),
    "ernie": ("Ernie", {**BERT, "type_vocab_size": 2, "use_task_id": True}, "relu"),
    "jina-v2": ("Bert", {**BERT, "type_vocab_size": 2, "position_embedding_type": "alibi", "feed_forward_type": "reglu"}, "log1p_relu"),
}  # fmt: skip


def embeddings(model, rows, activation):
    """One row at a time: nothing is padded."""
    pooling = SpladePooling("max", activation).train()
    out = []
    for row in rows:
        mask = torch.ones(1, len(row), dtype=torch.int64)
        logits = model(input_ids=row[None], attention_mask=mask).logits
        out.append(pooling({"token_embeddings": logits, "attention_mask": mask})["sentence_embedding"][0])
    return torch.stack(out)


def build(name, config):
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config.dtype = torch.get_default_dtype()
    if getattr(config, "position_embedding_type", None) == "alibi":
        return families.JinaV2ForMaskedLM(config)
    return getattr(transformers, name + "ForMaskedLM")(config)


def wanted(name):
    return not sys.argv[1:] or name in sys.argv[1:]


def tidy(folder):
    for file in folder.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
        if file.name in ("generation_config.json", "README.md"):
            file.unlink()


for number, (label, (name, args, activation)) in enumerate(HEADS.items()):
    if not wanted(label):
        continue
    seed = SEED + number
    generator = torch.Generator().manual_seed(seed)
    config = getattr(transformers, name + "Config")(**args)
    rows = [torch.randint(3, VOCAB, (n,), generator=generator) for n in LENGTHS]
    folder, scratch = HERE / label, HERE / "scratch"
    model = build(name, config)
    families.randomize(model, generator, torch.bfloat16)
    model.tie_weights()
    shutil.rmtree(folder, ignore_errors=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tidy(folder)
    r = torch.randn(len(rows), VOCAB, generator=generator)

    def gradients(m):
        m.zero_grad()
        e = embeddings(m, rows, activation)
        (e * r.to(e.dtype)).sum().backward()
        return e.detach(), families.gradients(m, scratch)

    narrow, narrow_grads = gradients(model)
    with families.in_double():
        wide = build(name, config)
        wide.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
        e, grads = gradients(wide)
    largest = max(g.abs().max().item() for g in grads.values())
    off = max(error(narrow_grads[n], g, floor=1e-4 * largest) for n, g in grads.items() if g.abs().max() > 1e-12 * largest)
    assert error(narrow, e) < 1e-5 and off < 2e-4, (label, error(narrow, e), off)
    arrays = {"ids": torch.cat(rows), "lengths": torch.tensor(LENGTHS), "r": r.double(), "embeddings": e}
    for n, g in grads.items():
        arrays["grad/" + n] = g.float()
    save(f"splade/{label}", arrays, {"about": f"a random {name}ForMaskedLM; gradients are those of sum(embedding * r)", "activation": activation}, __file__, seed,
         ["transformers", "sentence_transformers"])  # fmt: skip
    active = (e > 0).double().mean().item()
    print(f"{label}: torch's float32 is off by {error(narrow, e):.1e}, in gradients by {off:.1e}; {active:.0%} of features are active", file=sys.stderr)
    assert 0.1 < active < 0.9


def encoder():
    """A SparseEncoder with a tokenizer: what encode makes of texts, cut where they are too long."""
    tiny = HERE.parent / "bert" / "minilm-tiny"
    tok = transformers.AutoTokenizer.from_pretrained(tiny, model_max_length=24)
    generator = torch.Generator().manual_seed(SEED + 100)
    folder = HERE / "encoder"
    model = build("Bert", transformers.BertConfig(**{**BERT, "vocab_size": len(tok), "max_position_embeddings": 48, "type_vocab_size": 2, "pad_token_id": 0}))
    families.randomize(model, generator, torch.bfloat16)
    model.tie_weights()
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    tok.save_pretrained(folder)
    module = Transformer(str(folder), transformer_task="fill-mask", model_kwargs={"dtype": torch.float32})
    sparse = SparseEncoder(modules=[module, SpladePooling("max")], device="cpu", prompts={"query": "find: "}, default_prompt_name=None)
    shutil.rmtree(folder)
    sparse.save_pretrained(str(folder), create_model_card=False)
    copy.deepcopy(sparse[0].model).to(torch.bfloat16).save_pretrained(folder)
    tidy(folder)
    texts = json.loads((HERE.parent / "bert" / "minilm-tiny.json").read_text())["texts"]
    texts.append(" ".join(texts))
    vectors = sparse.encode(texts, convert_to_sparse_tensor=False, convert_to_tensor=True)
    queries = sparse.encode(texts, convert_to_sparse_tensor=False, convert_to_tensor=True, prompt_name="query")
    save("splade/encoder", {"embeddings": vectors.float(), "queries": queries.float()},
         {"about": "a random SparseEncoder", "texts": texts}, __file__, SEED + 100, ["transformers", "sentence_transformers"])  # fmt: skip


if wanted("encoder"):
    encoder()
shutil.rmtree(HERE / "scratch", ignore_errors=True)
report(__file__)
