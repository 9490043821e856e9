#!/usr/bin/env python3
"""Compares the speed of package tokenize with that of Hugging Face tokenizers, on one thread each, in turns, for the
tokenizers of all model families. Exits 1 if one is less than 1.5 times as fast (WordPiece: 5 times).

    python speed.py [--rounds 3] [--vocab 30000] [--megabytes 8] [FAMILY ...]

Three kinds of text: Go sources in pieces of 20 lines, words of 13 scripts, hard lines. Of each side the best round counts.
Run it from the repository, on a machine that does nothing else. Written for tokenizers 0.23.3.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["GOMAXPROCS"] = "1"

from tokenizers import Tokenizer  # noqa: E402

import families  # noqa: E402
import hardtext  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("names", nargs="*")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--vocab", type=int, default=30000)
parser.add_argument("--megabytes", type=float, default=8)
args = parser.parse_args()

PACKAGE = Path(__file__).resolve().parents[3] / "tokenize"
texts = families.corpus(1)
kinds = {"Go": [t for t in texts if "\n" in t and ("func" in t or "//" in t)], "scripts": texts[-200:], "hard": hardtext.lines(5, 1500)}
slow = []
with tempfile.TemporaryDirectory() as folder:
    binary = os.path.join(folder, "tokenize.test")
    subprocess.run(["go", "test", "-c", "-o", binary, "."], cwd=PACKAGE, check=True)
    names = families.build(folder, args.vocab, args.megabytes)
    print(f"{'MB/s':16} {'Hugging Face':>14} {'here':>8}   ratio, for each of: {', '.join(kinds)}")
    for name in args.names or names:
        model = os.path.join(folder, name)
        tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
        line = f"{name:16}"
        for kind, some in kinds.items():
            path = os.path.join(folder, kind + ".jsonl")
            Path(path).write_text("".join(json.dumps(t) + "\n" for t in some))
            size = sum(len(t.encode()) for t in some) / 1e6
            theirs = ours = 0
            for _ in range(args.rounds):
                start = time.perf_counter()
                tokenizer.encode_batch_fast(some)
                theirs = max(theirs, size / (time.perf_counter() - start))
                reply = subprocess.run(
                    [binary, "-test.run", "xxx", "-test.bench", "Given", "-test.benchtime", "0.3s"], cwd=PACKAGE, check=True,
                    capture_output=True, text=True, env=os.environ | {"CONTRAFLOW_BENCH_MODEL": model, "CONTRAFLOW_BENCH_TEXTS": path})
                ours = max(ours, float(re.search(r"([\d.]+) MB/s", reply.stdout)[1]))
            line += f" {theirs:8.2f} {ours:8.1f} {ours / theirs:7.1f}"
            if ours < theirs * (5 if name == "mpnet" else 1.5):
                slow.append(f"{name}, {kind}")
        print(line, flush=True)
if slow:
    sys.exit("too slow: " + "; ".join(slow))
