#!/usr/bin/env python3
"""Compares `contraflow tokenize` with Hugging Face tokenizers on random hostile text. Exits 1 on any difference.

    python compare.py CONTRAFLOW_BINARY MODEL_DIR [--lines 60000] [--seed 1] [--max-length N]

MODEL_DIR has a tokenizer.json, or else a vocab.txt (then transformers' BertTokenizer is the other side). Written for
tokenizers 0.23.3 and transformers 5.23.
"""
import argparse
import json
import os
import subprocess
import sys

from hardtext import lines

parser = argparse.ArgumentParser()
parser.add_argument("binary")
parser.add_argument("model")
parser.add_argument("--lines", type=int, default=60000)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--max-length", type=int, default=0)
args = parser.parse_args()

path = os.path.join(args.model, "tokenizer.json")
if os.path.exists(path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
else:
    from transformers import BertTokenizer

    tokenizer = BertTokenizer.from_pretrained(args.model)._tokenizer
tokenizer.no_padding()
tokenizer.no_truncation()
if args.max_length:
    tokenizer.enable_truncation(args.max_length)

texts = lines(args.seed, args.lines)
command = [args.binary, "tokenize", "--model", args.model, "--json"]
if args.max_length:
    command += ["--max-length", str(args.max_length)]
reply = subprocess.run(command, input="".join(json.dumps(t) + "\n" for t in texts), capture_output=True, text=True)
if reply.returncode:
    sys.exit(f"{' '.join(command)}: exit {reply.returncode}: {reply.stderr}")
got = [json.loads(line) for line in reply.stdout.splitlines()]
if len(got) != len(texts):
    sys.exit(f"{len(texts)} lines in, {len(got)} out")

wrong = tokens = 0
for text, ids, want in zip(texts, got, tokenizer.encode_batch(texts)):
    tokens += len(want.ids)
    if ids != want.ids:
        wrong += 1
        if wrong <= 10:
            print(f"{text!r}\n  want {want.ids}\n  got  {ids}")
print(f"{len(texts)} lines, {tokens} tokens, {wrong} lines differ")
sys.exit(1 if wrong else 0)
