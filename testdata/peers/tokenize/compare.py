#!/usr/bin/env python3
"""Compares `contraflow tokenize` with Hugging Face tokenizers on random hostile text. Exits 1 on any difference.

    python compare.py CONTRAFLOW_BINARY MODEL_DIR [--lines 60000] [--seed 1] [--max-length N]
    python compare.py CONTRAFLOW_BINARY --families [--lines 20000] [--seed 1] [--vocab 16000] [--megabytes 6]
    python compare.py CONTRAFLOW_BINARY --trained 200 [--lines 60] [--seed 1]
    python compare.py CONTRAFLOW_BINARY --code-points

MODEL_DIR has a tokenizer.json, or else a vocab.txt (then transformers' BertTokenizer is the other side). --families trains
tokenizers of all model families (see families.py) in a temporary folder. --trained makes so many random tokenizers (see trained.py); what
contraflow does not have is counted. --code-points asks about each Unicode code point
in several surroundings, for each normalizer and pre-tokenizer (about 15 minutes). Written for tokenizers 0.23.3,
transformers 5.23, sentencepiece 0.2.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from hardtext import lines

parser = argparse.ArgumentParser()
parser.add_argument("binary")
parser.add_argument("model", nargs="?")
parser.add_argument("--families", action="store_true")
parser.add_argument("--trained", type=int)
parser.add_argument("--code-points", action="store_true")
parser.add_argument("--lines", type=int)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--max-length", type=int, default=0)
parser.add_argument("--vocab", type=int, default=16000)
parser.add_argument("--megabytes", type=float, default=6)
args = parser.parse_args()


def compare(name, model, tokenizer, texts, max_length=0):
    """Prints a line about it and returns how many texts differ."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length:
        tokenizer.enable_truncation(max_length)
    command = [args.binary, "tokenize", "--model", str(model), "--json"]
    if max_length:
        command += ["--max-length", str(max_length)]
    reply = subprocess.run(command, input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(command)}: exit {reply.returncode}: {reply.stderr}")
    got = reply.stdout.splitlines()
    if len(got) != len(texts):
        sys.exit(f"{name}: {len(texts)} lines in, {len(got)} out")
    wrong = tokens = 0
    for text, ids, want in zip(texts, got, tokenizer.encode_batch_fast(texts)):
        tokens += len(want.ids)
        if json.loads(ids) != want.ids:
            wrong += 1
            if wrong <= 10:
                print(f"{ascii(text)[:1000]}\n  want {want.ids[:200]}\n  got  {ids[:1000]}")
    print(f"{name}: {len(texts)} lines, {tokens} tokens, {wrong} lines differ", flush=True)
    return wrong


def one_model():
    path = os.path.join(args.model, "tokenizer.json")
    if os.path.exists(path):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
    else:
        from transformers import BertTokenizer

        tokenizer = BertTokenizer.from_pretrained(args.model)._tokenizer
    return compare(args.model, args.model, tokenizer, lines(args.seed, args.lines or 60000), args.max_length)


def all_families():
    import families
    from tokenizers import Tokenizer

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in families.build(folder, args.vocab, args.megabytes):
            model = os.path.join(folder, name)
            tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
            added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
            count = args.lines or 20000
            texts = lines(args.seed, count // 2) + lines(args.seed + 1, count - count // 2, added)
            # Long texts go through the pipeline in chunks.
            texts += [" ".join(texts[i:i + 200]) for i in range(0, len(texts), 200)]
            wrong += compare(name, model, tokenizer, texts)
            wrong += compare(f"{name}, 17 tokens", model, tokenizer, texts[::7], 17)
    return wrong


def trained_ones():
    """Prints what differs. Not compared: texts with which Hugging Face panics, and added tokens that normalize to one text, of which it takes any."""
    import collections
    import itertools
    import random

    import families
    import trained
    from tokenizers import Tokenizer

    rng = random.Random(args.seed)
    refused, wrong, compared = collections.Counter(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(itertools.islice(trained.files(args.seed), args.trained)):
            text = json.dumps(file)
            try:
                tokenizer = Tokenizer.from_str(text)
            except Exception as e:
                sys.exit(f"tokenizers refuses file {number}: {e}: {text[:2000]}")
            added = [t["content"] for t in file["added_tokens"]]
            normal = [tokenizer.normalizer.normalize_str(t["content"]) if tokenizer.normalizer else t["content"] for t in file["added_tokens"] if t["normalized"]]
            if len(set(normal)) < len(normal):
                continue
            families.write(folder, file)
            texts = hardtext_lines(rng, added)
            limit = rng.choice([0, 0, 5, 9, 16])
            if limit:
                tokenizer.enable_truncation(limit)
            command = [args.binary, "tokenize", "--model", folder, "--json"] + (["--max-length", str(limit)] if limit else [])
            reply = subprocess.run(command, input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True, text=True)
            if reply.returncode:
                if "not supported yet" not in reply.stderr and "normalizes to nothing" not in reply.stderr:
                    print(f"file {number}: exit {reply.returncode}: {reply.stderr}")
                    wrong += 1
                refused[reply.stderr.split("tokenizer.json: ")[-1].split(" is not supported")[0].strip()[:80]] += 1
                continue
            for line, ids in zip(texts, reply.stdout.splitlines(), strict=True):
                try:
                    want = tokenizer.encode(line).ids
                except BaseException as e:
                    if type(e).__name__ != "PanicException":
                        raise
                    continue
                compared += 1
                if json.loads(ids) != want:
                    wrong += 1
                    print(f"file {number}, limit {limit}: {json.dumps(file | {'model': file['model'] | {'vocab': 0, 'merges': 0}})[:3000]}\n{ascii(line)[:1000]}\n  want {want[:200]}\n  got  {ids[:1000]}")
                    break
    for what, count in refused.most_common():
        print(f"{count:5} not supported: {what}")
    print(f"{args.trained} tokenizers, {compared} texts, {wrong} tokenizers differ")
    return wrong


def hardtext_lines(rng, added):
    """Lines, some with added tokens in them, and a long one that goes through in chunks."""
    count = args.lines or 60
    texts = lines(rng.randrange(1 << 30), count // 2) + lines(rng.randrange(1 << 30), count - count // 2, added)
    return texts + ["", " ", "\0", "a\0b", "\ufffd", "e" + "\u0301" * 50, " ".join(texts)]


def code_points():
    """Bytes are tokens, so that ids tell the normalized text; each piece of a pre-tokenizer gets a space before it."""
    import families
    from tokenizers import Tokenizer
    from tokenizers import pre_tokenizers as P

    model = families.bpe({letter: i for i, letter in enumerate(sorted(P.ByteLevel.alphabet()))}, [])
    prefix = families.byte_level(prefix=True, regex=False)

    def file(normalizer, pre_tokenizer=None):
        parts = [pre_tokenizer, prefix] if pre_tokenizer else [prefix]
        return {"version": "1.0", "added_tokens": [], "normalizer": normalizer,
                "pre_tokenizer": families.sequence("Sequence", "pretokenizers", *parts), "model": model}

    files = {kind: file({"type": kind}) for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents")}
    files["BertNormalizer"] = file({"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True})
    files["nmt_nfkc"] = file(families.nmt_nfkc())
    files |= {name: file(None, families.regex_split(regex)) for name, regex in families.REGEXES.items()}
    files |= {kind: file(None, {"type": kind}) for kind in ("WhitespaceSplit", "Whitespace", "BertPreTokenizer", "Punctuation")}
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]

    def surroundings(c):
        return (c, f"e{c}\u0301", f"\u1100{c}\u11A8", f"\u0915{c}\u0915\u0301", f"\u00A9{c}\u200D\u00A9\u0301", f"{c}a1", f" '{c}'", f"A{c}b{c}\n")

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = os.path.join(folder, name)
            families.write(path, content)
            tokenizer = Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
            for first in range(0, len(every), 200000):
                some = every[first:first + 200000]
                texts = ["|".join(s for c in some[i:i + 64] for s in surroundings(c)) for i in range(0, len(some), 64)]
                wrong += compare(f"{name} from U+{ord(some[0]):04X}", path, tokenizer, texts)
    return wrong


if args.families:
    differences = all_families()
elif args.trained:
    differences = trained_ones()
elif args.code_points:
    differences = code_points()
elif args.model:
    differences = one_model()
else:
    parser.error("give a MODEL_DIR, --families, --trained or --code-points")
sys.exit(1 if differences else 0)
