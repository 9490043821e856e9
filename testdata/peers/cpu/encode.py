#!/usr/bin/env python3
"""Embedding a corpus with all-MiniLM-L6-v2 beside SentenceTransformer.encode: the same texts, maximum length and threads, in turns.

    python encode.py CONTRAFLOW [--data train.parquet] [--quick]

A round is some function bodies, tokenization included. Exits with 1 if a bar of this machine is broken. Written for
sentence-transformers 6.2 and torch 2.15.
"""

import argparse
import sys
import time

import common


def peer(argv):
    p = argparse.ArgumentParser()
    for name in ("--model", "--data", "--precision"):
        p.add_argument(name)
    for name in ("--batch", "--threads", "--warmup", "--max-length"):
        p.add_argument(name, type=int)
    args = p.parse_args(argv)

    import pyarrow.parquet as pq
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(args.threads)
    model = SentenceTransformer(args.model, device="cpu")
    model.max_seq_length = args.max_length
    if args.precision == "bf16":
        model.bfloat16()
    texts = pq.read_table(args.data)["body"].to_pylist()
    at = 0

    def next_round():
        nonlocal at
        some = [texts[i % len(texts)] for i in range(at, at + args.batch)]
        at += args.batch
        start = time.perf_counter()
        model.encode(some)
        seconds = time.perf_counter() - start
        tokens = int(model.preprocess(some)["attention_mask"].sum())
        return {"seconds": seconds, "texts": len(some), "tokens": tokens, "peak_resident_bytes": common.peak_resident_bytes()}

    for _ in range(args.warmup):
        next_round()
    common.serve(next_round)


def run(args, bars):
    """Measures f32, and bf16 where the processor has it; returns a result for each."""
    batch, rounds = (128, 3) if args.quick else (1024, 6)
    rounds = args.rounds or rounds
    data = common.rows(args, batch * (rounds + 1))
    results = []
    for precision in ("f32", "bf16") if bars.bf16 else ("f32",):
        shared = ["--model", common.minilm(), "--data", data, "--batch", batch, "--threads", args.threads, "--warmup", 1, "--max-length", common.MAX_LENGTH, "--precision", precision]
        ours = common.Paced("contraflow bench step --embed", [args.contraflow, "bench", "step", "--embed", "--paced", "--query", "comment", "--positive", "body", *shared])
        peer = common.Paced("sentence-transformers", [sys.executable, __file__, "--peer", *shared])
        a, b = common.alternate(ours, peer, rounds)
        report = ours.finish()
        peer.finish()
        if [x["tokens"] for x in a] != [x["tokens"] for x in b]:
            sys.exit(f"{[x['tokens'] for x in a]} tokens here, {[x['tokens'] for x in b]} there: these are not the same texts")
        r, low, high = common.ratio(a, b, "texts")
        memory, theirs = a[-1]["peak_resident_bytes"], b[-1]["peak_resident_bytes"]
        ours_rate, peer_rate = common.rate(a, "texts"), common.rate(b, "texts")
        print(
            f"embedding {batch} texts of {report['tokens_per_text']:.0f} tokens, {precision}: {ours_rate:.1f} texts/s, SentenceTransformer.encode {peer_rate:.1f}: {r:.2f} times ({low:.2f} to {high:.2f}, {rounds} rounds); "
            f"{report['percent_of_peak']:.1f} % of the {precision} peak; memory {common.gib(memory)}, {common.gib(theirs)}", flush=True,
        )
        bars.check(f"embedding {precision}, times the peer", r, 1, quick=True)
        if bars.full:
            bars.check(f"embedding {precision}, times the peer", r, 4)
        results.append({
            "precision": precision, "batch": batch, "rounds": rounds, "ours": ours_rate, "peer": peer_rate, "ratio": r, "low": low, "high": high, "percent": report["percent_of_peak"],
            "memory": memory, "peer_memory": theirs, "tokens": report["tokens_per_text"],
        })
    return results


if __name__ == "__main__":
    if "--peer" in sys.argv[1:2]:
        peer(sys.argv[2:])
    else:
        args = common.parser(__doc__).parse_args()
        bars = common.Bars(args)
        run(args, bars)
        bars.end()
