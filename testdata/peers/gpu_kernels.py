#!/usr/bin/env python3
"""What Nsight Compute says of the kernels of a training step on a GPU: every kernel above 3 % of the step, attention's share of it at 128
tokens, and attention's rate at 2,048 tokens and heads of 64 features beside a large bf16 product of PyTorch's.

    python gpu_kernels.py CONTRAFLOW --data rows.parquet
    python gpu_kernels.py --csv saved.csv        (only the table, from what ncu --csv --page raw printed)

A step of BERT-base's shape with random weights, one sub-batch, in bf16. ncu runs each kernel alone and several times, so its times sum to
more than a step of the program takes; shares are of that sum. Clocks are left as they are. Exits with 1 if a bar is broken. Needs pyarrow
and torch.
"""

import argparse
import csv
import io
import subprocess
import sys
import tempfile
from pathlib import Path

TIME = "gpu__time_duration.sum"
METRICS = {
    TIME: "time",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
}
SECONDS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1}
PAIRS, LONG, LAYERS, HIDDEN = 96, 2048, 2, 768


def parse(text):
    """ncu's CSV as {kernel: [launches, seconds, {column: time-weighted percent}]}. Before its header there may be the program's output."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if at is None:
        sys.exit(f"ncu printed no table:\n{text[-3000:]}")
    table = list(csv.DictReader(io.StringIO("\n".join(lines[at:]))))
    units, kernels = table[0], {}  # the first line has the units
    for row in table[1:]:
        if not row.get(TIME):
            continue
        seconds = float(row[TIME].replace(",", "")) * SECONDS[units[TIME]]
        k = kernels.setdefault(row["Kernel Name"].split("(")[0].split("<")[0].strip(), [0, 0.0, {}])
        k[0] += 1
        k[1] += seconds
        for metric, name in METRICS.items():
            if metric != TIME and row.get(metric):
                k[2][name] = k[2].get(name, 0) + seconds * float(row[metric].replace(",", ""))
    for k in kernels.values():
        k[2] = {name: v / k[1] for name, v in k[2].items()}
    return kernels


def is_attention(name):
    return name.startswith(("flash", "attention"))


def table(kernels):
    """Prints the kernels above 3 %; returns attention's share in percent."""
    total = sum(k[1] for k in kernels.values())
    print(f"{'kernel':44} {'share':>7} {'launches':>8} {'mean':>10} {'compute':>8} {'memory':>8} {'occupancy':>9}")
    for name, (n, seconds, percent) in sorted(kernels.items(), key=lambda k: -k[1][1]):
        if seconds >= 0.03 * total:
            columns = [f"{percent[c]:.0f} %" if c in percent else "" for c in ("compute", "memory", "occupancy")]
            print(f"{name[:44]:44} {100 * seconds / total:5.1f} % {n:8} {1e6 * seconds / n:7.1f} us {columns[0]:>8} {columns[1]:>8} {columns[2]:>9}")
    return 100 * sum(k[1] for name, k in kernels.items() if is_attention(name)) / total


def run(*command):
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if reply.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {reply.returncode}: {(reply.stdout + reply.stderr)[-3000:]}")
    return reply.stdout


def profile(contraflow, model, rows, pairs, length, sub):
    """ncu over one step."""
    return parse(run(
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join(METRICS), contraflow, "bench", "step", "--device", "cuda", "--model", model,
        "--data", rows, "--query", "comment", "--positive", "body", "--batch", pairs, "--precision", "bf16", "--max-length", length, "--sub-batch", sub, "--warmup", 0, "--steps", 1,
    ))  # fmt: skip


def product():
    """TFLOP/s of a large bf16 product."""
    import torch

    n, times = 8192, 50
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(200):  # 0.3 s: a GPU that has done nothing has a low clock
        a @ b
    start.record()
    for _ in range(times):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return 2 * n**3 * times / (start.elapsed_time(end) / 1e3) / 1e12


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("contraflow", nargs="?", help="the built program")
    p.add_argument("--data", help="parquet with columns comment and body")
    p.add_argument("--csv", help="a file instead of a run")
    args = p.parse_args()
    if args.csv:
        print(f"attention: {table(parse(Path(args.csv).read_text())):.1f} % of the step")
        return
    if not args.contraflow or not args.data:
        p.error("want CONTRAFLOW and --data, or --csv")
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = False
    with tempfile.TemporaryDirectory(prefix="contraflow-gpu-") as work:
        work = Path(work)
        for name, layers, length in (("bert", 12, 512), ("long", LAYERS, LONG)):
            run(args.contraflow, "init", "--out", work / name, "--input", args.data, "--column", "comment", "--column", "body", "--hidden", HIDDEN, "--layers", layers, "--heads", 12, "--vocab", 30522, "--max-length", length)
        share = table(profile(args.contraflow, work / "bert", args.data, PAIRS, 128, 16384))
        print(f"attention forward and backward: {share:.1f} % of the step at 128 tokens, want less than 10")
        broken |= not share < 10
        bodies = pq.read_table(args.data, columns=["body"])["body"].to_pylist()
        text = "\n".join(bodies)[: 8 * 64 * LONG * 16]  # more than enough for each of 8 x 2 texts to be cut
        size = len(text) // 16
        texts = [text[i * size : (i + 1) * size] for i in range(16)]
        pq.write_table(pa.table({"comment": texts[::2], "body": texts[1::2]}), work / "long.parquet")
        kernels = profile(args.contraflow, work / "long", work / "long.parquet", 8, LONG, 16 * LONG)
        table(kernels)
        # 2 products forward and 5 backward, each of 2 n^2 operations for every feature; what kernels compute again does not count.
        operations = 14 * LONG**2 * HIDDEN * LAYERS * len(texts)
        seconds = sum(k[1] for name, k in kernels.items() if is_attention(name))
        rate, peak = operations / seconds / 1e12, product()
        print(f"attention at {LONG} tokens, heads of 64: {rate:.0f} TFLOP/s, {100 * rate / peak:.1f} % of a large product's {peak:.0f}, want 30 or more")
        broken |= not rate >= 0.3 * peak
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
