"""contraflow prep over real text: rows/s and peak memory.

    python testdata/peers/prep.py CONTRAFLOW_PREP [--rows 1000000] [--threads 2] [--tokenize MODEL] [--runner local]

The rows are doc comments and functions of the installed Go sources, and sections of this machine's man pages, over and over until there are
enough: after the first time a quarter as they are, the others with one to eight words changed, so that dedupe has work. Needs pyarrow.
"""

import argparse
import gzip
import os
import random
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

args = argparse.ArgumentParser()
args.add_argument("prep")
args.add_argument("--rows", type=int, default=1_000_000)
args.add_argument("--threads", type=int, default=2)
args.add_argument("--tokenize", default="")
args.add_argument("--runner", default="local")
args = args.parse_args()
random.seed(1)

goroot = Path(subprocess.run(["go", "env", "GOROOT"], check=True, capture_output=True, text=True).stdout.strip())
function = re.compile(r"((?:^//[^\n]*\n)+)^func [^\n]*\n((?:^[^}\n][^\n]*\n|^\n)*)^}", re.M)
pairs = []
for path in sorted((goroot / "src").rglob("*.go")):
    if not path.is_file():
        continue
    for comment, body in function.findall(path.read_text(errors="replace")):
        comment = re.sub(r"^// ?", "", comment, flags=re.M)
        if comment.strip() and body.strip():
            pairs.append((comment, body[:4000]))
for path in sorted(Path("/usr/share/man").glob("man*/*.gz")):
    text = re.sub(r"^[.'].*?(?=[A-Z]|$)", "", gzip.open(path, "rt", errors="replace").read(), flags=re.M).replace("\\", "")
    sections = [s for s in re.split(r"\n{2,}|\n(?=[A-Z]{4,})", text) if len(s.split()) > 8]
    pairs += [(f"{path.stem}: " + " ".join(s.split()[:8]), s) for s in sections[:20]]
print(f"{len(pairs)} pairs of real text")


def edited(text):
    words = text.split(" ")
    for _ in range(random.randint(1, 8)):
        words[random.randrange(len(words))] = random.choice(pairs)[0].split(" ")[0]
    return " ".join(words)


with tempfile.TemporaryDirectory() as work:
    raw = f"{work}/raw.parquet"
    schema = pa.schema([("query", pa.string()), ("positive", pa.string())])
    size = 0
    with pq.ParquetWriter(raw, schema) as w:
        done = 0
        while done < args.rows:
            part = []
            for i in range(done, min(args.rows, done + 50_000)):
                q, d = pairs[i % len(pairs)]
                if i >= len(pairs) and random.random() > 0.25:
                    q, d = edited(q), edited(d)
                part.append((q, d))
            w.write_table(pa.table({"query": [q for q, _ in part], "positive": [d for _, d in part]}, schema=schema))
            done += len(part)
            size += sum(len(q) + len(d) for q, d in part)
    config = f"{work}/prep.yaml"
    Path(config).write_text(
        f"input: [{{path: {raw}, query: query, positive: positive}}]\noutput: {{dir: {work}/out}}\nnormalize: {{html: false}}\n"
        f"filter: {{query: {{min: 2}}, document: {{min: 3, max: 2000}}}}\ndedupe: {{exact: row, near: {{column: positive}}}}\nsplit: {{dev: 0.01}}\n"
        + (f"tokenize: {{model: {args.tokenize}}}\n" if args.tokenize else "")
    )
    begun = time.perf_counter()
    subprocess.run([args.prep, "-c", config, "--runner", args.runner], check=True, env={**os.environ, "GOMAXPROCS": str(args.threads)})
    took = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"{args.rows} rows, {size / 1e6:.0f} MB of text, {args.threads} threads, {args.runner}: {args.rows / took:.0f} rows/s, {peak / 1024:.0f} MiB at most")
