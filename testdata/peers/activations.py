"""Plots peak activation memory against the number of layers, without and with activation checkpointing, as `contraflow bench layers`
measures it, beside lines that grow with n and with its square root.

    python testdata/peers/activations.py CONTRAFLOW PICTURE.svg [--layers 4,16,64] [--lora RANK]

Prints the figures. Exits with 1 if memory without activation checkpointing does not grow as n, or with it faster than the square root of
n, if a prediction is off, or if it takes more than 1.35 times as long. Needs nothing beyond Python.
"""

import argparse
import json
import math
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("contraflow")
parser.add_argument("picture")
parser.add_argument("--layers", default="4,16,64")
parser.add_argument("--lora", default="0")
args = parser.parse_args()

reply = subprocess.run([args.contraflow, "bench", "layers", "--layers", args.layers, "--lora", args.lora, "--json"], stdout=subprocess.PIPE, check=True)
report = json.loads(reply.stdout)
depths = report["depths"]
lines = {"without": [(d["layers"], d["plain"]["peak_bytes"] / 2**20) for d in depths],
         "with": [(d["layers"], d["activation_checkpointing"]["peak_bytes"] / 2**20) for d in depths]}  # fmt: skip

# Logarithmic axes: a power of n is a line.
WIDTH, HEIGHT, MARGIN = 640, 420, 60
xs = [math.log2(n) for n, _ in lines["with"]]
ys = [math.log2(m) for points in lines.values() for _, m in points]
low, high = math.floor(min(ys)), math.ceil(max(ys))


def place(n, mib):
    x = MARGIN + (math.log2(n) - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - 2 * MARGIN)
    y = HEIGHT - MARGIN - (math.log2(mib) - low) / (high - low) * (HEIGHT - 2 * MARGIN)
    return f"{x:.1f},{y:.1f}"


def text(x, y, words, anchor="middle"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-family="sans-serif" font-size="12">{words}</text>'


svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"><rect width="100%" height="100%" fill="white"/>']
for power in range(low, high + 1):
    x, y = place(2 ** xs[0], 2**power).split(",")
    svg += [f'<line x1="{x}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="#ddd"/>', text(float(x) - 6, float(y) + 4, f"{2**power} MiB", "end")]
for n, _ in lines["with"]:
    x, _ = place(n, 2**low).split(",")
    svg.append(text(float(x), HEIGHT - MARGIN + 18, n))
for label, colour, power in (("without", "#c33", 1), ("with", "#36c", 0.5)):
    points = lines[label]
    first_n, first = points[0]
    guide = [place(n, min(2**high, first * (n / first_n) ** power)) for n, _ in points]
    svg.append(f'<polyline points="{" ".join(guide)}" fill="none" stroke="{colour}" stroke-dasharray="3 4" opacity="0.5"/>')
    svg.append(f'<polyline points="{" ".join(place(*p) for p in points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
    svg += [f'<circle cx="{place(*p).split(",")[0]}" cy="{place(*p).split(",")[1]}" r="3" fill="{colour}"/>' for p in points]
    x, y = map(float, place(*points[-1]).split(","))
    svg.append(text(x, y - 8, f"{label}, dashed: {'n' if power == 1 else '√n'}", "end"))
svg += [text(WIDTH / 2, HEIGHT - 16, "layers"), text(WIDTH / 2, 24, f"peak activations of {report['rows']} rows of {report['tokens']} tokens, activation checkpointing"), "</svg>"]
with open(args.picture, "w", encoding="utf-8") as f:
    f.write("\n".join(svg))

wrong = []
for d in depths:
    plain, saving = d["plain"], d["activation_checkpointing"]
    print(f"{d['layers']:3d} layers: {plain['peak_bytes'] / 2**20:8.1f} MiB without, {saving['peak_bytes'] / 2**20:8.1f} MiB with (segments of "
          f"{d['layers_per_segment']}), time x {d['time_ratio']:.2f}")  # fmt: skip
    wrong += [f"{d['layers']} layers: predicted {p['predicted_bytes']}, took {p['peak_bytes']}" for p in (plain, saving) if not p["peak_bytes"] <= p["predicted_bytes"] <= 1.1 * p["peak_bytes"]]
    if d["time_ratio"] > 1.35:
        wrong.append(f"{d['layers']} layers take {d['time_ratio']:.2f} times as long")
grown = depths[-1]["layers"] / depths[0]["layers"]
without, with_it = (points[-1][1] / points[0][1] for points in lines.values())
print(f"{grown:.0f} times the layers: {without:.1f} times the memory without, {with_it:.1f} times with")
if without < 0.8 * grown:
    wrong.append("memory without activation checkpointing does not grow as n")
if with_it > 1.25 * math.sqrt(grown):
    wrong.append("memory with activation checkpointing grows faster than the square root of n")
sys.exit("\n".join(wrong) or 0)
