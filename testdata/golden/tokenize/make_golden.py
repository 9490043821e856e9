#!/usr/bin/env python3
"""Writes the golden files of package tokenize: what Hugging Face says. Made with tokenizers 0.23.3, transformers 5.23.0,
Python 3.11 (whose modules' docstrings are part of the text that vocabularies are trained on).

    python make_golden.py

uncased/, cased/   BERT tokenizers with small vocabularies, as tokenizer.json
lines.jsonl        hard lines, and their ids with both
variants.jsonl     other pipelines (normalizers, pre-tokenizers, added tokens, ...) around uncased's model
normalizers.jsonl  what each normalizer makes of a line
pairs.jsonl        pairs of texts, truncated in each way
vocabtxt/          a folder without tokenizer.json, and ids of transformers' BertTokenizer
train.json         words with their counts, and the vocabulary that WordPieceTrainer makes of them
"""
import json
import os
import pkgutil
import random
import shutil
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import Tokenizer
from tokenizers import models as M
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P
from tokenizers import processors as PP
from tokenizers import trainers as T

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "../../peers/tokenize"))
import hardtext  # noqa: E402

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
print("tokenizers", tokenizers.__version__, "transformers", transformers.__version__)


def write(name, rows):
    with open(HERE / name, "w", encoding="utf-8", newline="\n") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def corpus():
    texts = hardtext.lines(100, 4000)
    for name in ["json", "argparse", "logging", "random", "heapq", "asyncio", "collections", "statistics"]:
        module = __import__(name)
        texts += [d for v in vars(module).values() if isinstance(d := getattr(v, "__doc__", None), str)]
    return texts


def bert(lowercase, vocab_size):
    t = Tokenizer(M.WordPiece(unk_token="[UNK]"))
    t.normalizer = N.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer = P.BertPreTokenizer()
    t.train_from_iterator(corpus(), T.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=2, limit_alphabet=900, special_tokens=SPECIALS, show_progress=False))
    ids = {s: t.token_to_id(s) for s in ("[CLS]", "[SEP]")}
    t.post_processor = PP.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items()))
    return t


bare = {}
for name, lowercase in (("uncased", True), ("cased", False)):
    os.makedirs(HERE / name, exist_ok=True)
    if not (HERE / name / "tokenizer.json").exists():  # training breaks ties by chance: keep what there is
        bert(lowercase, 4000).save(str(HERE / name / "tokenizer.json"), pretty=False)
    bare[name] = Tokenizer.from_file(str(HERE / name / "tokenizer.json"))

# Lines.
lines = hardtext.lines(1, 3300)
write("lines.jsonl", ({"text": s, **{name: t.encode(s).ids for name, t in bare.items()}} for s in lines))

# Variants.
rng = random.Random(2)
base = json.loads((HERE / "uncased/tokenizer.json").read_text())
ADDED = ["the", "Übermaß", "naïve", " of ", " x", "\n", "中", "the of", "[DAY]", "a", "é", "\u0301x", "of\u3000", "##ing", "不", "İ", "o", "1"]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]


def normalizer(depth=0):
    kind = rng.randrange(9 if depth else 10)
    if kind < 4:
        return {"type": "BertNormalizer", "clean_text": rng.random() < 0.5, "handle_chinese_chars": rng.random() < 0.5,
                "strip_accents": rng.choice([None, True, False]), "lowercase": rng.random() < 0.5}
    if kind == 4 and not depth:
        return {"type": "Sequence", "normalizers": [normalizer(1) for _ in range(rng.randrange(4))]}
    if kind == 9:
        return None
    return {"type": rng.choice(["NFD", "NFC", "NFKD", "NFKC", "Lowercase", "StripAccents"])}


def pre_tokenizer(depth=0):
    kind = rng.randrange(6 if depth else 8)
    if kind < 2:
        return {"type": "BertPreTokenizer"}
    if kind == 2:
        return {"type": "Whitespace"}
    if kind == 3:
        return {"type": "WhitespaceSplit"}
    if kind < 6:
        return {"type": "Punctuation",
                "behavior": rng.choice(["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"])}
    if kind == 6:
        return {"type": "Sequence", "pretokenizers": [pre_tokenizer(1) for _ in range(rng.randrange(4))]}
    return None


variants = []
while len(variants) < 70:
    added = rng.sample(ADDED, rng.randrange(5)) + rng.choice([[], [], ["the", "the of the", "the of", "of"]])
    config = {
        "normalizer": normalizer(), "pre_tokenizer": pre_tokenizer(),
        "post_processor": rng.choice([None, base["post_processor"], {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}]),
        "added_tokens": (base["added_tokens"] if rng.random() < 0.7 else [])
        + [{"id": 0, "content": s, **{flag: rng.random() < 0.45 for flag in FLAGS}} for s in added],
        "model": {"unk_token": "[UNK]", "continuing_subword_prefix": rng.choice(["##", "##", "##", "", "x", "zzzz"]),
                  "max_input_chars_per_word": rng.choice([100, 100, 100, 10, 0])},
    }
    whole = {**base, **config, "model": {**base["model"], **config["model"]}}
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    limit = rng.choice([0, 0, 5, 17])
    if limit:
        tokenizer.enable_truncation(limit)
    seed = rng.randrange(1 << 30)
    texts = hardtext.lines(seed, 12, added) + [" ".join(hardtext.lines(seed + 1, 20, added))]
    cases = []
    for text in texts:
        try:
            cases.append([text, tokenizer.encode(text).ids])
        except BaseException as e:  # some combinations of lstrip and rstrip panic
            print("left out:", e)
    variants.append({**config, "max_length": limit, "cases": cases})
write("variants.jsonl", variants)

# Normalizers.
forms = {"NFD": N.NFD(), "NFC": N.NFC(), "NFKD": N.NFKD(), "NFKC": N.NFKC(), "Lowercase": N.Lowercase(), "StripAccents": N.StripAccents(),
         "Bert": N.BertNormalizer(), "BertCased": N.BertNormalizer(lowercase=False), "BertAccents": N.BertNormalizer(clean_text=False, strip_accents=True, lowercase=False)}
write("normalizers.jsonl", ({"text": s, **{name: f.normalize_str(s) for name, f in forms.items()}} for s in hardtext.lines(3, 200)))

# Pairs.
rng = random.Random(4)
rows = []
texts = hardtext.lines(5, 260)
for a, b in zip(texts[::2], texts[1::2]):
    how, limit = rng.choice(["longest_first", "longest_first", "only_first", "only_second"]), rng.choice([0, 3, 4, 8, 9, 16, 17, 31])
    tokenizer = Tokenizer.from_file(str(HERE / "uncased/tokenizer.json"))
    if limit:
        tokenizer.enable_truncation(limit, strategy=how)
    row = {"a": a, "b": b, "how": how, "max_length": limit}
    try:
        e = tokenizer.encode(a, b)
        row |= {"ids": e.ids, "types": e.type_ids}
    except Exception as e:
        assert "too short" in str(e)
        row["error"] = True
    rows.append(row)
write("pairs.jsonl", rows)

# vocab.txt: line ends, spaces at the end, a token twice, no [CLS] of its own.
folder = HERE / "vocabtxt"
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir()
tokens = [t for t, _ in sorted(bare["cased"].get_vocab().items(), key=lambda x: x[1]) if t != "[CLS]"][:1500]
tokens[10] += " \u3000"
tokens[20] = tokens[30]
(folder / "vocab.txt").write_bytes("".join(t + ("\r\n" if i % 7 == 0 else "\n") for i, t in enumerate(tokens)).encode())
(folder / "tokenizer_config.json").write_text(json.dumps({
    "do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False, "model_max_length": int(1e30), "cls_token": "<s>",
    "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False},
    "added_tokens_decoder": {"1700": {"content": "[DAY]", "lstrip": False, "rstrip": True, "normalized": True, "single_word": False, "special": False}},
    "additional_special_tokens": ["the of"]}, indent=2) + "\n")
tokenizer = transformers.BertTokenizer.from_pretrained(folder)._tokenizer
texts = hardtext.lines(6, 200, ["<mask>", " <mask>", "[DAY]", "the of", "<s>", "[day]"])
write("vocabtxt/lines.jsonl", ({"text": s, "ids": tokenizer.encode(s).ids} for s in texts))

# Training. Ties are broken by chance there, so the texts are such that no tie matters: 20 runs must agree.
rng = random.Random(7)
words = ["".join(rng.choice("abcdeéж") for _ in range(rng.randrange(1, 9))) for _ in range(150)]
counts = [[w, rng.randrange(1, 400)] for w in words]
counts += [["QQQ", 1], ["eQd", 1]]  # a rare letter, beyond the alphabet's limit
texts = [" ".join([w] * n) for w, n in counts]


def train(size):
    t = Tokenizer(M.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = N.BertNormalizer(lowercase=False), P.BertPreTokenizer()
    t.train_from_iterator(texts, T.WordPieceTrainer(
        vocab_size=size, min_frequency=3, limit_alphabet=7, special_tokens=SPECIALS, show_progress=False))
    return sorted(t.get_vocab())


stable = [n for n in range(50, 400, 10) if len({tuple(train(n)) for _ in range(20)}) == 1]
print("stable sizes", stable)
write("train.json", [{"words": counts, "min_frequency": 3, "alphabet_limit": 7, "vocabularies": [
    {"vocab_size": n, "tokens": train(n)} for n in (stable[len(stable) // 4], stable[len(stable) // 2], stable[-1])]}])
