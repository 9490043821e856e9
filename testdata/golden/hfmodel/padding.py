"""Goldens for hfmodel.Folder.PadsLeft: on which side transformers' AutoTokenizer pads, by what a folder's files say: python padding.py (in this folder).

Made with transformers 5.23.0, tokenizers, Python 3.11. padding.json has for each folder the model_type and the tokenizer_class of config.json, what
tokenizer_config.json says of tokenizer_class and padding_side, whether tokenizer.json works on bytes, its padding's direction, and whether the
tokenizer pads on the left.
"""

import itertools
import json
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

transformers.utils.logging.set_verbosity_error()
VOCAB = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<mask>", "▁", *map(chr, range(97, 123))])}


def case(model, named=None, config=None, side=None, byte=False, direction=None):
    tok = Tokenizer(models.BPE(vocab=VOCAB, merges=[], unk_token="<unk>"))
    if named and named.startswith("XLNet"):
        tok = Tokenizer(models.Unigram([(t, -1.0) for t in VOCAB], unk_id=0))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel() if byte else pre_tokenizers.Metaspace()
    if direction:
        tok.enable_padding(direction=direction, pad_id=3, pad_token="<pad>")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        tok.save(str(folder / "tokenizer.json"))
        settings = {"pad_token": "<pad>"} | ({"tokenizer_class": named} if named else {}) | ({"padding_side": side} if side else {})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps({"model_type": model} | ({"tokenizer_class": config} if config else {})))
        left = transformers.AutoTokenizer.from_pretrained(str(folder)).padding_side == "left"
    out = {"model": model, "class": named, "config_class": config, "side": side, "byte": byte, "direction": direction, "left": left}
    return {k: v for k, v in out.items() if v}


CLASSES = ["PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "CodeLlamaTokenizerFast", "CohereTokenizerFast", "Siglip2Tokenizer", "XLNetTokenizerFast"]
MODELS = ["bert", "eurobert", "gemma", "gemma2", "gemma3_text", "llama", "minicpm", "ministral", "mistral", "modernbert", "qwen2", "qwen3", "roberta"]
cases = [case(m, c, byte=b) for m, c, b in itertools.product(MODELS, CLASSES, (False, True))]
cases += [case(m) for m in MODELS]
cases += [case(m, config=c) for m, c in itertools.product(["gemma", "llama", "mistral", "bert"], ["LlamaTokenizer", "GemmaTokenizerFast"])]
cases += [case("gemma", "GemmaTokenizer", config="PreTrainedTokenizerFast"), case("gemma", "PreTrainedTokenizerFast", config="GemmaTokenizer")]
cases += [case(m, c, side=s, direction=d) for m, c, s, d in itertools.product(["llama", "mistral"], ["LlamaTokenizer", "TokenizersBackend"], (None, "left", "right"), (None, "left", "right"))]
Path("padding.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
print(len(cases), "folders,", sum("left" in c for c in cases), "on the left")
