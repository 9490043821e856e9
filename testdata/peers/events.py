"""Reads a run's event files with TensorBoard's own reader: python events.py CONTRAFLOW RUN

Trains RUN's recipe for some steps with log.tensorboard, stops it, goes on from its checkpoint, and compares every scalar with metrics.jsonl.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

binary, run = sys.argv[1:]
out = os.path.join(tempfile.mkdtemp(), "run")
for steps, more in [(6, []), (10, ["--resume"])]:
    subprocess.run([binary, "train", "-c", os.path.join(run, "recipe.yaml"), "--out", out, "--quiet", "--set", "log.tensorboard=true", "--set", "save.every=6",
                    "--set", "eval.every=5", "--set", "batch.global_size=32", "--set", "train.epochs=1", "--set", f"train.max_steps={steps}", *more], check=True)
files = os.listdir(os.path.join(out, "tensorboard"))
assert len(files) == 2, files

events = EventAccumulator(os.path.join(out, "tensorboard"))
events.Reload()
tags = {"train/loss": "loss", "train/grad_norm": "grad_norm", "train/lr": "lr", "speed/pairs_per_s": "pairs_per_s", "memory/peak_bytes": "peak_mem_bytes"}
lines = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"))]
compared = 0
for tag, key in tags.items():
    have = {e.step: e.value for e in events.Scalars(tag)}
    want = {m["step"]: m[key] for m in lines if "loss" in m}
    assert sorted(have) == sorted(want) == list(range(1, 11)), (tag, have, want)
    for step in want:
        assert math.isclose(have[step], want[step], rel_tol=1e-6), (tag, step, have[step], want[step])
        compared += 1
for m in lines:
    if "metric" in m:
        have = [e.value for e in events.Scalars("eval/" + m["metric"]) if e.step == m["step"]]
        assert have and math.isclose(have[-1], m["value"], rel_tol=1e-6), (m, have)
        compared += 1

# The losses of several datasets.
both = os.path.join(os.path.dirname(out), "both")
source = "{path: '%s', query: comment, positive: body}" % os.path.join(run, "train.parquet")
subprocess.run([binary, "train", "-c", os.path.join(run, "recipe.yaml"), "--out", both, "--quiet", "--set", "log.tensorboard=true", "--set", f"data.train=[{source}, {source}]",
                "--set", "data.mixing=round_robin", "--set", "batch.global_size=32", "--set", "batch.accumulate=2", "--set", "eval={}", "--set", "train.max_steps=2"], check=True)
events = EventAccumulator(os.path.join(both, "tensorboard"))
events.Reload()
for m in map(json.loads, open(os.path.join(both, "metrics.jsonl"))):
    if "loss" in m:
        assert sorted(m["losses"]) == ["0", "1"], m
        for k, want in m["losses"].items():
            have = [e.value for e in events.Scalars(f"train/loss/data.train[{k}]") if e.step == m["step"]]
            assert len(have) == 1 and math.isclose(have[0], want, rel_tol=1e-6), (m, have)
            compared += 1
print(f"ok: {compared} values of {len(files)} event files")
