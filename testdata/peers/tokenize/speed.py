#!/usr/bin/env python3
"""Compares the speed of package tokenize with that of Hugging Face tokenizers, on one thread each, in turns, for the
tokenizers of all model families. Exits 1 if one is less than 1.5 times as fast (WordPiece: 5 times).

    python speed.py [--rounds 3] [--vocab 30000] [--megabytes 8] [FAMILY ...]

Three kinds of text: Python sources in pieces of 20 lines, which no vocabulary was trained on (20 MB); words of 13 scripts, hard
lines. Each side loads the tokenizer anew and goes through the texts once, so that no cache knows them, and keeps all ids: here as
slices, there as Encodings, by encode_batch_fast. Loading, and freeing what was kept, is not timed. Of each side the best round counts.
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


def sources(megabytes):
    """Python's and its packages' sources."""
    texts, size = [], 0
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        if size > megabytes * 1e6:
            break
        lines = path.read_text(encoding="utf-8", errors="ignore").replace("\0", "").split("\n")
        texts += ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
        size += path.stat().st_size
    return texts


scripts = [t for t in families.corpus(20) if not t.isascii()][-20000:]
kinds = {"Python": sources(20), "scripts": scripts, "hard": hardtext.lines(5, 5000)}
slow = []
with tempfile.TemporaryDirectory() as folder:
    binary = os.path.join(folder, "tokenize.test")
    subprocess.run(["go", "test", "-c", "-o", binary, "."], cwd=PACKAGE, check=True)
    names = families.build(folder, args.vocab, args.megabytes)
    print(f"{'MB/s':16} {'Hugging Face':>14} {'here':>8}   ratio, for each of: {', '.join(kinds)}")
    for name in args.names or names:
        model = os.path.join(folder, name)
        line = f"{name:16}"
        for kind, some in kinds.items():
            path = os.path.join(folder, kind + ".jsonl")
            Path(path).write_text("".join(json.dumps(t) + "\n" for t in some))
            size = sum(len(t.encode()) for t in some) / 1e6
            theirs = ours = 0
            for _ in range(args.rounds):
                tokenizer = Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
                start = time.perf_counter()
                kept = tokenizer.encode_batch_fast(some)
                theirs = max(theirs, size / (time.perf_counter() - start))
                del kept
                reply = subprocess.run(
                    [binary, "-test.run", "xxx", "-test.bench", "Given", "-test.benchtime", "1x"], cwd=PACKAGE, check=True,
                    capture_output=True, text=True, env=os.environ | {"CONTRAFLOW_BENCH_MODEL": model, "CONTRAFLOW_BENCH_TEXTS": path})
                ours = max(ours, float(re.search(r"([\d.]+) MB/s", reply.stdout)[1]))
            line += f" {theirs:8.2f} {ours:8.1f} {ours / theirs:7.1f}"
            if ours < theirs * (5 if name == "mpnet" else 1.5):
                slow.append(f"{name}, {kind}")
        print(line, flush=True)
if slow:
    sys.exit("too slow: " + "; ".join(slow))
