"""Checks every family of models both ways against sentence-transformers: a random model with a tokenizer of the family's kind,

1. as sentence-transformers saves it, embeds texts in contraflow as it does there;
2. after a few training steps in contraflow, as contraflow saves it, loads in sentence-transformers and embeds as in contraflow.

    python testdata/peers/families.py CONTRAFLOW [FAMILY ...]

Prints a table. Exits with 1 if a cosine is 0.99999 or less, or training changed nothing. Needs sentence-transformers (6.2 was used),
transformers 5.23, pyarrow, and what tokenize/families.py needs.
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
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

contraflow, only = sys.argv[1], sys.argv[2:]
work = Path(tempfile.mkdtemp())
POSITIONS = 200
SMALL, DECODER = small.shape(POSITIONS)

# As published folders name them: these classes build parts of the tokenizer anew, whatever tokenizer.json says.
CLASSES = {
    "wordpiece": "BertTokenizer", "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "mpnet": "MPNetTokenizer", "deberta": "DebertaV2Tokenizer", "qwen2": "Qwen2Tokenizer",
    "qwen3-embedding": "Qwen2Tokenizer", "gemma": "GemmaTokenizer", "t5": "T5Tokenizer",
}  # fmt: skip
T5 = {"d_model": 48, "d_kv": 10, "d_ff": 96, "num_layers": 3, "num_heads": 4, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 60}
ENCODERS = {"T5Config": "T5EncoderModel", "MT5Config": "MT5EncoderModel"}
EOS = {"Llama": {"add_bos_token": True}, "Qwen2": {}}  # families that train with model.eos, and what their tokenizer puts before texts
DEFAULT_PROMPT = ["BERT", "Qwen3"]  # families whose folder has one

# family: config class, its arguments, tokenizer (of tokenize/families.py) and its special tokens, pooling; perhaps Dense modules
FAMILIES = {
    "BERT": ("BertConfig", SMALL, "wordpiece", WP, "cls"),
    "RoBERTa": ("RobertaConfig", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}, "roberta", SPM, "mean"),
    "XLM-RoBERTa": ("XLMRobertaConfig", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}, "xlm-roberta", SPM, "cls"),
    "MPNet": ("MPNetConfig", SMALL, "mpnet", SPM, "mean"),
    "DeBERTa": ("DebertaV2Config", {**SMALL, **small.DEBERTA}, "deberta", WP, "mean"),
    "DeBERTa, own projections": (
        "DebertaV2Config", {**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2}, "deberta-punct", WP, "cls"),
    "DistilBERT": (
        "DistilBertConfig", {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": POSITIONS}, "wordpiece",
        WP, "mean",
    ),
    "ModernBERT": ("ModernBertConfig", {**SMALL, "local_attention": 16}, "modernbert", WP, "mean"),
    "NomicBERT": ("NomicBertConfig", SMALL, "wordpiece", WP, "mean"),
    "GTE v1.5": ("GteConfig", {**SMALL, "hidden_dropout_prob": 0.0}, "xlm-roberta", SPM, "cls"),
    "Llama": (
        "LlamaConfig", {**DECODER, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}, "llama3",
        {"pad_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, "lasttoken",
    ),
    "EuroBERT": ("EuroBertConfig", DECODER, "llama3", {"pad_token": "<|end_of_text|>"}, "mean"),
    "Mistral": ("MistralConfig", {**DECODER, "sliding_window": 24}, "mistral", {"pad_token": "</s>"}, "lasttoken"),
    "Ministral": (
        "MinistralConfig", {**DECODER, "head_dim": 16, "sliding_window": 24, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        "mistral", {"pad_token": "</s>"}, "lasttoken",
    ),
    "Qwen2": ("Qwen2Config", DECODER, "qwen2", BPE, "lasttoken"),
    "Qwen2, bidirectional": ("Qwen2Config", {**DECODER, "is_causal": False}, "qwen2", BPE, "mean"),
    "Qwen3": ("Qwen3Config", {**DECODER, "head_dim": 16}, "qwen3-embedding", BPE, "lasttoken"),
    "Gemma 2": ("Gemma2Config", {**DECODER, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16}, "gemma", SPM, "mean"),
    "Gemma 3": (
        "Gemma3TextConfig", {**DECODER, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16, "sliding_window_pattern": 3}, "gemma", SPM, "mean",
    ),
    "Gemma 3, bidirectional": (
        "Gemma3TextConfig", {**DECODER, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16, "use_bidirectional_attention": True}, "gemma", SPM, "mean",
    ),
    "EmbeddingGemma": (
        "Gemma3TextConfig", {**DECODER, "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 16, "use_bidirectional_attention": True}, "gemma", SPM, "mean",
        [Dense(48, 100, bias=False, activation_function=None), Dense(100, 32, bias=False, activation_function=None)],
    ),
    "LaBSE": ("BertConfig", SMALL, "wordpiece", WP, "cls", [Dense(48, 48)]),
    "ERNIE": ("ErnieConfig", {**SMALL, "use_task_id": True}, "wordpiece", WP, "mean"),
    "ELECTRA": ("ElectraConfig", {**SMALL, "embedding_size": 20}, "wordpiece", WP, "mean"),
    "Sentence-T5": ("T5Config", T5, "t5", SPM, "mean", [Dense(48, 32, bias=False, activation_function=None)]),
    "mT5": ("MT5Config", T5, "t5", SPM, "lasttoken"),
    "Gemma": ("GemmaConfig", {**DECODER, "head_dim": 16}, "gemma", SPM, "lasttoken"),
    "Jina v3": ("JinaEmbeddingsV3Config", {**SMALL, "pad_token_id": 1, "type_vocab_size": 1}, "xlm-roberta", SPM, "mean"),
}  # fmt: skip


def make(name, config, args, tokenizer, special, pooling, dense=()):
    """A folder as sentence-transformers saves it."""
    folder = work / name.replace(" ", "-").replace(",", "")
    kind = getattr(transformers, CLASSES.get(tokenizer, "PreTrainedTokenizerFast"))
    tok = kind.from_pretrained(str(work / tokenizer), model_max_length=POSITIONS - 8, **special)
    torch.manual_seed(len(name))
    cfg = small.config(config, args, tok)
    model = getattr(transformers, ENCODERS[config])(cfg) if config in ENCODERS else transformers.AutoModel.from_config(cfg)
    small.spread(model)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(cfg.hidden_size, pooling), *dense, Normalize()]
    st = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "find: ", "document": ""},
                             default_prompt_name="query" if name in DEFAULT_PROMPT else None)
    st.max_seq_length = POSITIONS - 8
    shutil.rmtree(folder)
    st.save_pretrained(str(folder), create_model_card=False)
    if name == "mT5":  # as base models are: with a decoder
        whole = transformers.MT5ForConditionalGeneration(cfg)
        whole.load_state_dict(model.state_dict(), strict=False)
        whole.save_pretrained(folder)
    return folder


def ours(folder, texts):
    source, out = work / "texts.parquet", work / "embeddings.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    run(contraflow, "embed", "--model", folder, "--input", source, "--output", out)
    return np.array(pq.read_table(out)["embedding"].to_pylist())


def theirs(folder, texts):
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}).encode(texts, batch_size=64, convert_to_numpy=True)


def smallest(name, a, b, texts):
    cos = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    worst = int(cos.argmin())
    if not cos[worst] > 0.99999:
        sys.exit(f"{name}: text {texts[worst][:80]!r} has cosine {cos[worst]}")
    return cos[worst]


lines = small.texts()
texts = lines[:200] + [" ".join(lines[i : i + 40]) for i in range(0, 200, 20)]
small.tokenizers(work, lines)
pq.write_table(pa.table({"query": lines[:256], "positive": lines[-256:]}), work / "train.parquet")
print("family | tokenizer | pooling | smallest cosine as loaded | after training")
for name, spec in FAMILIES.items():
    if only and name not in only:
        continue
    folder = make(name, *spec)
    before = ours(folder, texts)
    if np.median(np.corrcoef(before[:50])[np.triu_indices(50, 1)]) > 0.99:
        sys.exit(f"{name}: most texts are the same to this model: a comparison would say nothing")
    loaded = smallest(f"{name} in contraflow", before, theirs(folder, texts), texts)
    trained = work / "trained"
    shutil.rmtree(trained, ignore_errors=True)
    recipe = {
        "model": {"path": str(folder), **({"eos": True} if name in EOS else {})}, "data": {"train": [{"path": str(work / "train.parquet"), "query": "query", "positive": "positive"}]},
        "batch": {"global_size": 32, "no_duplicates": False}, "optimizer": {"lr": 1e-3}, "train": {"max_steps": 4}, "save": {"dir": str(trained)},
    }  # fmt: skip
    (work / "recipe.yaml").write_text(json.dumps(recipe))
    run(contraflow, "train", "-c", work / "recipe.yaml", "--quiet")
    after = ours(trained / "model", texts)
    if np.abs(after - before).max() < 1e-3:
        sys.exit(f"{name}: training changed nothing: this check would not see a model that is saved as it was loaded")
    if name in EOS:
        ending = transformers.AutoTokenizer.from_pretrained(folder, add_eos_token=True, **EOS[name])
        saved, plain = transformers.AutoTokenizer.from_pretrained(trained / "model"), transformers.AutoTokenizer.from_pretrained(folder)
        for text in texts:
            if not saved(text)["input_ids"] == ending(text)["input_ids"] != plain(text)["input_ids"]:
                sys.exit(f"{name}: the saved tokenizer does not end {text[:80]!r} as add_eos_token=True does")
    cls = getattr(transformers, ENCODERS.get(spec[0], "AutoModel"))
    if spec[0] in ENCODERS and transformers.AutoConfig.from_pretrained(trained / "model").architectures != [ENCODERS[spec[0]]]:
        sys.exit(f"{name}: saved as another class than the encoder's")
    _, info = cls.from_pretrained(trained / "model", output_loading_info=True)
    if len(spec) > 5:
        run(contraflow, "verify-grads", "-c", work / "recipe.yaml", "--replicas", "1,2", "--shards", "1,2", "--accumulate", "1", "--sub-batch", "5")
    missing = [k for k in info["missing_keys"] if not k.startswith("pooler.")]  # embeddings don't use it
    if missing or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"{name}: transformers found {info}")
    saved = smallest(f"{name}, trained by contraflow, in sentence-transformers", after, theirs(trained / "model", texts), texts)
    print(f"{name} | {spec[2]} | {spec[4]} | {loaded:.8f} | {saved:.8f}", flush=True)
shutil.rmtree(work)
