#!/usr/bin/env python3
"""Products of matrices beside torch.matmul, in turns: the layers of MiniLM and BERT-base, f32 and bf16, on one thread and on all.

    python gemm.py CONTRAFLOW [--quick]

Best of the rounds of each side, of which there are more as long as either side's still get faster, by the geometric mean: neighbours of a
virtual machine only ever take time away, from one side or the other. Exits with 1 if a bar is broken: percents of the machine's own
peak, and the scaling from one thread to all by the probe's. Written for torch 2.15.
"""

import argparse
import statistics
import sys
import time

import common


def peer(argv):
    p = argparse.ArgumentParser()
    p.add_argument("--shapes")
    p.add_argument("--threads", type=int)
    p.add_argument("--precisions")
    args = p.parse_args(argv)

    import torch

    cases = []
    for shape in args.shapes.split(" "):
        m, n, k = map(int, shape.split("x"))
        for precision in args.precisions.split(" "):
            dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
            x, y, w = (torch.rand(a, b).sub(0.5).mul(0.04).to(dtype) for a, b in ((m, k), (m, n), (n, k)))
            wn = w.reshape(k, n)
            products = {
                "NN": lambda x=x, w=wn, out=torch.empty_like(y): torch.matmul(x, w, out=out),
                "NT": lambda x=x, w=w, out=torch.empty_like(y): torch.matmul(x, w.T, out=out),
                "TN": lambda x=x, y=y, out=torch.empty_like(w): torch.matmul(y.T, x, out=out),
            }
            for form, run in products.items():
                for threads in sorted({1, args.threads}):
                    cases.append({"key": f"{shape} {form} {precision} {threads}", "threads": threads, "gflop": 2e-9 * m * n * k, "run": run, "took": None, "best": 0.0})

    def next_round():
        for c in cases:
            if c["took"] and c["took"] > 1:
                continue  # hopeless: once is enough
            torch.set_num_threads(c["threads"])
            if c["took"] is None:
                start = time.perf_counter()
                c["run"]()
                c["took"] = time.perf_counter() - start
                c["best"] = c["gflop"] / c["took"]
                if c["took"] > 1:
                    continue
            times = int(0.005 / c["took"]) + 1
            start = time.perf_counter()
            for _ in range(times):
                c["run"]()
            c["took"] = (time.perf_counter() - start) / times
            c["best"] = max(c["best"], c["gflop"] / c["took"])
        return {c["key"]: c["best"] for c in cases}

    common.serve(next_round)


def rounds(ours, peer, precisions, exactly, few=10, most=100):
    """Both sides' best after exactly so many rounds; or after a few in which both got less than one percent faster, or the most."""
    mine = theirs = None
    before = 0, 0
    for _ in range(0, most, few):
        a, b = common.alternate(ours, peer, exactly or few)
        mine, theirs = a[-1], b[-1]
        compared = [at["gflop_per_s"] for c in mine["cases"] if c["precision"] in precisions for at in c["at"]]
        now = [statistics.geometric_mean(best) for best in (compared, theirs.values())]
        if exactly or all(n < 1.01 * was for n, was in zip(now, before)):
            break
        before = now
    return mine, theirs


def run(args, bars):
    shapes = ["4096x1536x384"] if args.quick else ["4096x384x384", "4096x1536x384", "4096x384x1536", "2048x3072x768"]
    # Where the processor has no bf16, PyTorch takes seconds for a product: CI does without.
    precisions = ["f32"] if args.quick and not bars.full else ["f32", "bf16"]
    ours = [args.contraflow, "bench", "gemm", "--paced", "--threads", args.threads]
    for s in shapes:
        ours += ["--shape", s.replace("x", ",")]
    ours = common.Paced("contraflow bench gemm", ours)
    peer = common.Paced("torch", [sys.executable, __file__, "--peer", "--shapes", " ".join(shapes), "--threads", args.threads, "--precisions", " ".join(precisions)])
    mine, theirs = rounds(ours, peer, precisions, args.rounds)
    ours.finish()
    peer.finish()
    results = []
    for c in mine["cases"]:
        if c["precision"] not in precisions:
            continue
        name = f"{c['shape']} {c['form']} {c['precision']}"
        want = {"f32": {"TN": 75}, "bf16": {"TN": 70}}[c["precision"]].get(c["form"], 85 if c["precision"] == "f32" else 80)
        for at in c["at"]:
            torchs = theirs[f"{name} {at['threads']}"]
            r = at["gflop_per_s"] / torchs
            results.append({**c, **at, "peer": torchs, "ratio": r})
            print(f"{name}, {at['threads']} threads: {at['gflop_per_s']:.0f} GFLOP/s of {at['peak_gflop_per_s']:.0f}, torch {torchs:.0f}: {r:.2f} times", flush=True)
            bars.check(f"{name}, {at['threads']} threads, percent of the peak", at["percent_of_peak"], want)
        if "scaling" in c:
            bars.check(f"{name}, scaling by the probe's", c["scaling"] / c["scaling_of_probe"], 0.95)
    for precision in precisions:
        each = [r["ratio"] for r in results if r["precision"] == precision]
        # Two programs near the same peak differ by chance, one case at a time.
        bars.check(f"products in {precision}, times torch (geometric mean; least {min(each):.2f})", statistics.geometric_mean(each), 0.9, quick=True)
    return results


if __name__ == "__main__":
    if "--peer" in sys.argv[1:2]:
        peer(sys.argv[2:])
    else:
        args = common.parser(__doc__).parse_args()
        bars = common.Bars(args)
        run(args, bars)
        bars.end()
