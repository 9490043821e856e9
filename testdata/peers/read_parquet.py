"""Reading texts from parquet: contraflow and pyarrow, on one thread each and on all each, on the same files, in turns.

    python testdata/peers/read_parquet.py CONTRAFLOW [--rows 300000] [--rounds 5]

Files are pairs of strings and pairs with a list of strings, snappy and zstd. contraflow decodes and checks every text ('bench read', blocks in
order); pyarrow decodes batches of 4,096 rows (iter_batches). Prints million rows/s, best of the rounds, and their ratio. Needs pyarrow.
"""

import argparse
import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

args = argparse.ArgumentParser()
args.add_argument("contraflow")
args.add_argument("--rows", type=int, default=300_000)
args.add_argument("--rounds", type=int, default=5)
args = args.parse_args()
work = tempfile.TemporaryDirectory()
random.seed(1)
words = ["".join(random.choices("etaoinshrdlucmfwypvbgkjqxz", k=random.randint(2, 9))) for _ in range(20_000)]


def text(n):
    return " ".join(random.choices(words, k=random.randint(n // 2, n)))


queries, documents = [text(10) for _ in range(args.rows)], [text(50) for _ in range(args.rows)]
shapes = {
    "texts": {"query": queries, "positive": documents},
    "lists": {"query": queries[: args.rows // 4], "positive": [[documents[4 * i + k] for k in range(4)] for i in range(args.rows // 4)]},
}


def pyarrow(path, threads):
    pa.set_cpu_count(threads)
    begun = time.perf_counter()
    n = sum(b.num_rows for b in pq.ParquetFile(path).iter_batches(4096, use_threads=threads > 1))
    return n / (time.perf_counter() - begun)


def ours(path, threads):
    env = {"GOMAXPROCS": str(threads), "PATH": ""}
    out = subprocess.run([args.contraflow, "bench", "read", "--data", path, "--seconds", "2", "--json"], check=True, capture_output=True, env=env)
    ways = json.loads(out.stdout)["ways"]
    return next(w for w in ways if w["way"] == "blocks in order" and w["threads"] == threads)["rows_per_s"]["max"]


print(f"{'':27}contraflow   pyarrow   ratio    (million rows/s, best of {args.rounds})")
for name, columns in shapes.items():
    for codec in ["snappy", "zstd"]:
        path = f"{work.name}/{name}.parquet"
        pq.write_table(pa.table(columns), path, compression=codec)
        for threads in {1: 0, os.cpu_count(): 0}:
            a = b = 0
            for _ in range(args.rounds):
                a, b = max(a, ours(path, threads)), max(b, pyarrow(path, threads))
            print(f"{f'{name}, {codec}, threads: {threads}':27}{a / 1e6:10.2f}{b / 1e6:10.2f}{a / b:8.2f}", flush=True)
