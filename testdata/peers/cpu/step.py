#!/usr/bin/env python3
"""Training steps of all-MiniLM-L6-v2 beside sentence-transformers: the same rows, maximum length and number of threads, in turns.

    python step.py CONTRAFLOW [--data train.parquet] [--quick] [--only mnrl|cached] [--precision f32|bf16]

mnrl    MultipleNegativesRankingLoss, 64 pairs
cached  CachedMultipleNegativesRankingLoss, 1,024 pairs, mini-batches of 32; ours keeps activations of up to 4 GiB

each in f32 and in bf16 (torch.autocast; one step of 64 pairs where the processor has no bf16). A step is all of: tokenization, forward, backward, clipping, AdamW, dropout on.
Exits with 1 if a bar of this machine is broken. Written for sentence-transformers 6.2 and torch 2.15.
"""

import argparse
import sys
import time

import common

LR = 2e-5


def peer(argv):
    """The other side, in a process of its own: its memory is its own too."""
    p = argparse.ArgumentParser()
    for name in ("--kind", "--precision", "--model", "--data"):
        p.add_argument(name)
    for name in ("--batch", "--threads", "--warmup", "--max-length"):
        p.add_argument(name, type=int)
    args = p.parse_args(argv)

    import pyarrow.parquet as pq
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = SentenceTransformer(args.model, device="cpu")
    model.max_seq_length = args.max_length
    model.train()
    if args.kind == "cached":
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=32)
    else:
        loss = losses.MultipleNegativesRankingLoss(model)
    # As its trainer does by default: decay for weights only, the fused optimizer, clipping at 1.
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=LR, fused=True)
    table = pq.read_table(args.data)
    columns = [table["comment"].to_pylist(), table["body"].to_pylist()]
    at = 0

    def step(lo, n):
        start = time.perf_counter()
        features = [model.preprocess([c[i % len(c)] for i in range(lo, lo + n)]) for c in columns]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            value = loss(features, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return {
            "seconds": time.perf_counter() - start, "pairs": n, "tokens": sum(int(f["attention_mask"].sum()) for f in features),
            "computed_tokens": sum(f["input_ids"].numel() for f in features), "loss": float(value.detach()), "peak_resident_bytes": common.peak_resident_bytes(),
        }

    def next_step():
        nonlocal at
        at += args.batch
        return step(at - args.batch, args.batch)

    if args.warmup == 0:
        step(0, 2)  # a small one that takes no row from the measured ones
        model.load_state_dict(SentenceTransformer(args.model, device="cpu").state_dict())
    for _ in range(args.warmup):
        next_step()
    common.serve(next_step)


def measure(args, bars, kind, precision):
    """Both sides' rounds, ours' report."""
    batch, rounds, warmup, alone = {"mnrl": (64, 6, 1, 0), "cached": (1024, 2, 0, 0)}[kind]
    if args.quick:
        batch, rounds, warmup = 16, 2, 1
    if precision == "bf16" and not bars.bf16:
        # PyTorch's bf16 takes minutes for a step of 64 pairs where the processor has no instructions for it.
        batch, rounds, warmup, alone = 4 if args.quick else 64, 1, 0, 0 if args.quick else 4
    rounds = args.rounds or rounds
    data = common.rows(args, batch * (rounds + warmup))
    shared = ["--model", common.minilm(), "--data", data, "--batch", batch, "--precision", precision, "--threads", args.threads, "--warmup", warmup, "--max-length", common.MAX_LENGTH]
    ours = [args.contraflow, "bench", "step", "--paced", "--query", "comment", "--positive", "body", *shared]
    if kind == "cached":
        ours += ["--replay-budget", "4GiB"]
    ours = common.Paced("contraflow bench step", ours)
    peer = common.Paced("sentence-transformers", [sys.executable, __file__, "--peer", "--kind", kind, *shared])
    a, b = common.alternate(ours, peer, rounds)
    peer.finish()
    for _ in range(alone):  # its percent of the peak is a median all the same
        ours.round()
    report = ours.finish()
    for x, y in zip(a, b):
        if x["tokens"] != y["tokens"]:
            sys.exit(f"{kind} {precision}: {x['tokens']} tokens here, {y['tokens']} there: these are not the same rows")
        if abs(x["loss"] - y["loss"]) > 0.15 + 0.25 * y["loss"]:  # different dropout masks
            sys.exit(f"{kind} {precision}: loss {x['loss']} here, {y['loss']} there: these are not the same steps")
    return a, b, report


def run(args, bars):
    """Measures everything; returns a list of results for the table."""
    results = []
    for kind in ("mnrl", "cached"):
        if args.only and args.only != kind or kind == "cached" and args.quick and not args.only:
            continue
        for precision in ("f32", "bf16"):
            if args.precision and args.precision != precision:
                continue
            a, b, report = measure(args, bars, kind, precision)
            r, low, high = common.ratio(a, b, "pairs")
            memory, theirs = a[-1]["peak_resident_bytes"], b[-1]["peak_resident_bytes"]
            result = {
                "kind": kind, "precision": precision, "batch": a[0]["pairs"], "rounds": len(a), "ours": common.rate(a, "pairs"), "peer": common.rate(b, "pairs"),
                "ratio": r, "low": low, "high": high, "percent": report["percent_of_peak"], "memory": memory, "peer_memory": theirs,
                "tokens": sum(x["tokens"] for x in a) / sum(x["pairs"] for x in a), "computed": sum(x["computed_tokens"] for x in b) / sum(x["pairs"] for x in b),
            }
            results.append(result)
            print(
                f"{kind} {precision}, {a[0]['pairs']} pairs: {result['ours']:.2f} pairs/s, sentence-transformers {result['peer']:.2f}: {r:.2f} times ({low:.2f} to {high:.2f}, {len(a)} rounds); "
                f"{report['percent_of_peak']:.1f} % of the {precision} peak on real tokens ({result['tokens']:.0f} a pair, the peer computes {result['computed']:.0f}); "
                f"memory {common.gib(memory)}, {common.gib(theirs)}: 1/{theirs / memory:.1f}; loss {a[0]['loss']:.3f}, {b[0]['loss']:.3f}", flush=True,
            )
            bars.check(f"{kind} {precision}, times the peer", r, 1, quick=True)
            if bars.full or precision == "bf16" and bars.bf16:
                bars.check(f"{kind} {precision}, times the peer", r, {"mnrl": 5, "cached": 5.5 if precision == "f32" else 7}[kind])
            if kind == "mnrl" and not bars.full:
                bars.check(f"{kind} {precision}, percent of the peak", report["percent_of_peak"], 60 if precision == "f32" else 55)
            if kind == "mnrl":
                bars.check(f"{kind} {precision}, the peer's memory by ours", theirs / memory, 6)
    return results


if __name__ == "__main__":
    if "--peer" in sys.argv[1:2]:
        peer(sys.argv[2:])
    else:
        p = common.parser(__doc__)
        p.add_argument("--only", choices=["mnrl", "cached"])
        p.add_argument("--precision", choices=["f32", "bf16"])
        args = p.parse_args()
        bars = common.Bars(args)
        run(args, bars)
        bars.end()
