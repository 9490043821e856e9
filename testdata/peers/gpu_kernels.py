#!/usr/bin/env python3
"""What Nsight Compute says of the kernels of a training step on a GPU: every kernel above 3 % of the step, attention's share of it at 128
tokens, and attention's rate at 2,048 tokens and heads of 64 features beside a large bf16 product of PyTorch's.

    python gpu_kernels.py CONTRAFLOW --data rows.parquet [--figures FILE] [--keep FOLDER]
    python gpu_kernels.py --csv bert.csv        (only the table, of what ncu --csv --page raw printed; --keep leaves such files)

A step of BERT-base's shape with random weights, one sub-batch, in bf16, without CUDA graphs, which start the same kernels. ncu runs each
kernel alone, so its times sum to more than a step of the program takes; shares are of that sum. Clocks are left as they
are. Exits with 3 if a bar is broken. Needs pyarrow and torch.
"""

import argparse
import csv
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TIME = "gpu__time_duration.sum"
METRICS = {
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "smsp__issue_active.avg.per_cycle_active": "issue",
}
# Why a warp issues nothing, in clocks for each instruction that its scheduler issues.
WAITS = "smsp__average_warps_issue_stalled_%s_per_issue_active.ratio"
REASONS = ["barrier", "branch_resolving", "dispatch_stall", "gmma", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "mio_throttle", "no_instruction", "short_scoreboard", "wait"]
SCALE = {"smsp__issue_active.avg.per_cycle_active": 100}  # to percent
METRICS |= {WAITS % reason: reason for reason in REASONS}
SECONDS = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1, "s": 1}
PAIRS, LONG, LAYERS, HIDDEN = 96, 2048, 2, 768


def number(text):
    """A cell's number; None of "n/a" and of nothing."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def parse(text):
    """ncu's CSV as {kernel: [launches, seconds, {column: time-weighted mean}]}. Before its header there are ncu's other lines."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if at is None:
        return {}
    table = list(csv.DictReader(io.StringIO("\n".join(lines[at:]))))
    units, kernels = table[0], {}  # the first line has the units
    for row in table[1:]:
        seconds = number(row.get(TIME))
        if seconds is None:
            continue
        seconds *= SECONDS[units[TIME]]
        name = re.sub("^void |cutlass::Kernel2?<", "", row["Kernel Name"])  # of the library's, what tells them apart
        k = kernels.setdefault(re.split("[(<>]", name)[0].strip(), [0, 0.0, {}])
        k[0] += 1
        k[1] += seconds
        for metric, name in METRICS.items():
            if (percent := number(row.get(metric))) is not None:
                total, weight = k[2].get(name, (0.0, 0.0))
                k[2][name] = total + seconds * percent * SCALE.get(metric, 1), weight + seconds
    for k in kernels.values():
        k[2] = {name: total / weight for name, (total, weight) in k[2].items()}
    return kernels


def is_attention(name):
    return name.startswith(("flash", "attention"))


def attention(kernels):
    """Its seconds."""
    return sum(k[1] for name, k in kernels.items() if is_attention(name))


def table(kernels):
    """Lines of the kernels above 3 %."""
    total = sum(k[1] for k in kernels.values())
    yield f"{'kernel':44} {'share':>7} {'launches':>8} {'mean':>10} {'compute':>8} {'memory':>8} {'occupancy':>9} {'issue':>6} waits for"
    for name, (n, seconds, percent) in sorted(kernels.items(), key=lambda k: -k[1][1]):
        if seconds >= 0.03 * total:
            columns = [f"{percent[c]:.0f} %" if c in percent else "" for c in ("compute", "memory", "occupancy", "issue")]
            waits = ", ".join(f"{reason} {percent[reason]:.1f}" for reason in sorted(REASONS, key=lambda r: -percent.get(r, 0))[:3] if reason in percent)
            line = f"{name[:44]:44} {100 * seconds / total:5.1f} % {n:8} {1e6 * seconds / n:7.1f} us {columns[0]:>8} {columns[1]:>8} {columns[2]:>9} {columns[3]:>6} {waits}"
            yield line.rstrip()


def share(kernels):
    """Attention's, forward and backward, in percent of the step."""
    return 100 * attention(kernels) / sum(k[1] for k in kernels.values())


def profile(contraflow, model, rows, pairs, length, sub, out, metrics=()):
    """ncu over one step: each kernel's time, and metrics, for which it replays kernels and saves all memory before; out is the file for what it says."""
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--metrics", ",".join([TIME, *metrics]), "--log-file", out,
        contraflow, "bench", "step", "--device", "cuda", "--model", model, "--data", rows, "--query", "comment", "--positive", "body",
        "--batch", pairs, "--precision", "bf16", "--max-length", length, "--sub-batch", sub, "--warmup", 0, "--steps", 1,
    ]  # fmt: skip
    reply = subprocess.run([str(c) for c in command], capture_output=True, text=True, env={**os.environ, "CONTRAFLOW_CUDA_GRAPHS": "off"})
    text = out.read_text() if out.exists() else ""
    kernels = parse(text)
    if reply.returncode or not kernels:
        sys.exit(f"ncu: exit {reply.returncode}, {len(kernels)} kernels measured:\n{text[-3000:]}\n{(reply.stdout + reply.stderr)[-3000:]}")
    return kernels


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
    p.add_argument("--figures", help="a file to which the figures are added, one a line")
    p.add_argument("--keep", type=Path, help="a folder for what ncu says")
    p.add_argument("--csv", type=Path, help="such a file instead of a run")
    args = p.parse_args()
    if args.csv:
        kernels = parse(args.csv.read_text())
        print(*table(kernels), f"attention forward and backward: {share(kernels):.1f} % of the step", sep="\n")
        return
    if not args.contraflow or not args.data:
        p.error("want CONTRAFLOW and --data, or --csv")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu_kernels.py: ended from outside"))  # with ncu
    import pyarrow as pa
    import pyarrow.parquet as pq

    broken = False

    def figure(line, holds):
        nonlocal broken
        broken |= not holds
        say(f"{line}: {'holds' if holds else 'BROKEN'}")

    def say(line):
        print(line, flush=True)
        if args.figures:  # at once: it is there when somebody ends the script
            with open(args.figures, "a") as f:
                print(" ".join(line.split()), file=f)

    with tempfile.TemporaryDirectory(prefix="contraflow-gpu-") as work:
        work = Path(work)
        keep = args.keep or work
        for name, layers, length in (("bert", 12, 512), ("short", 1, 512), ("long", LAYERS, LONG)):
            subprocess.run([args.contraflow, "init", "--out", work / name, "--input", args.data, "--column", "comment", "--column", "body", "--hidden", str(HIDDEN), "--layers", str(layers),
                            "--heads", "12", "--vocab", "30522", "--max-length", str(length)], check=True, stderr=subprocess.DEVNULL)  # fmt: skip
        kernels = profile(args.contraflow, work / "bert", args.data, PAIRS, 128, 16384, keep / "bert.csv")
        percent = share(kernels)
        figure(f"attention forward and backward: {percent:.1f} % of BERT-base's step at 128 tokens, want less than 10", percent < 10)
        # Percents come from one layer, whose kernels are those of twelve.
        one = profile(args.contraflow, work / "short", args.data, PAIRS, 128, 16384, keep / "short.csv", METRICS)
        for name, k in kernels.items():
            k[2].update(one[name][2] if name in one else {})
        for line in table(kernels):
            say(line)
        bodies = pq.read_table(args.data, columns=["body"])["body"].to_pylist()
        text = "\n".join(bodies)[: 8 * 64 * LONG * 16]  # more than enough for each of 8 x 2 texts to be cut
        size = len(text) // 16
        texts = [text[i * size : (i + 1) * size] for i in range(16)]
        pq.write_table(pa.table({"comment": texts[::2], "body": texts[1::2]}), work / "long.parquet")
        kernels = profile(args.contraflow, work / "long", work / "long.parquet", 8, LONG, 16 * LONG, keep / "long.csv")
        print(*table(kernels), sep="\n")
        # 2 products forward and 5 backward, each of 2 n^2 operations for every feature; what kernels compute again does not count.
        operations = 14 * LONG**2 * HIDDEN * LAYERS * len(texts)
        rate, peak = operations / attention(kernels) / 1e12, product()
        figure(f"attention at {LONG} tokens, heads of 64: {rate:.0f} TFLOP/s, {100 * rate / peak:.1f} % of a large product's {peak:.0f}, want at least 30", rate >= 0.3 * peak)
    sys.exit(3 if broken else 0)


if __name__ == "__main__":
    main()
