#!/usr/bin/env python3
"""The loss alone, forward and backward, of 65,536 pairs of 384 numbers: time, and memory below 1 GiB. It has no peer: one that keeps
the matrix of scores would need 16 GiB for it.

    python loss.py CONTRAFLOW [--quick]

--quick has 8,192 pairs. Exits with 1 if it takes more memory.
"""

import json
import subprocess

import common


def run(args, bars):
    rows = 8192 if args.quick else 65536
    command = [args.contraflow, "bench", "ops", "--only", "loss", "--rows", rows, "--threads", args.threads, "--seconds", 0, "--json"]
    report = json.loads(subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE).stdout)
    op = report["ops"][0]
    result = {"rows": rows, "seconds": op["ms"]["median"] / 1e3, "percent": op["percent_of_peak"], "memory": report["peak_resident_bytes"]}
    print(f"loss of {rows} pairs: {result['seconds']:.1f} s, {result['percent']:.1f} % of the f32 peak, memory {common.gib(result['memory'])} for the whole process", flush=True)
    bars.check("loss, 1 GiB by its memory", 2**30 / result["memory"], 1, quick=True)
    return result


if __name__ == "__main__":
    args = common.parser(__doc__).parse_args()
    bars = common.Bars(args)
    run(args, bars)
    bars.end()
