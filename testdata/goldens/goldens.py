"""What the scripts under testdata/golden share: how a golden is written. goldens.go beside this file reads them.

A golden NAME is NAME.safetensors (float64, float32, int64 and int32 arrays by name) and NAME.json (who made it, with
which versions and seed, and whatever a test needs to make sense of the arrays). Files come out byte-equal on every run
with the same versions on the same kind of processor.
"""

import importlib
import json
import os
import platform
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here downloads
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from safetensors.numpy import save_file

torch.set_num_threads(1)  # one order of summation
torch.use_deterministic_algorithms(True)

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def versions(*modules):
    """The versions that a golden's JSON states."""
    found = {name: importlib.import_module(name).__version__ for name in ("torch", "numpy", *modules)}
    return {"python": platform.python_version(), **found}


def save(name, arrays, meta, script, seed, modules=()):
    """Writes GOLDEN/name.safetensors and .json. Arrays are torch tensors or numpy arrays."""
    out = {}
    for key, value in arrays.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        value = np.ascontiguousarray(value)
        if value.dtype not in (np.float64, np.float32, np.int64, np.int32):
            raise TypeError(f"{name}: {key} is {value.dtype}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ValueError(f"{name}: {key} has values that are not finite")
        out[key] = value
    path = GOLDEN / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(out, str(path) + ".safetensors")
    os.chmod(str(path) + ".safetensors", 0o644)
    head = {
        "made_by": str(Path(script).resolve().relative_to(GOLDEN.parents[1])),
        "versions": versions(*modules),
        "seed": seed,
    }
    Path(str(path) + ".json").write_text(dumps({**head, **meta}) + "\n")


def dumps(value, depth=0):
    """JSON with one line per innermost list or object, so that a diff can be read."""
    flat = json.dumps(value)
    if len(flat) < 360 and depth > 0 or not isinstance(value, (dict, list)):
        return flat
    pad = " " * (depth + 1)
    if isinstance(value, list):
        if value and all(isinstance(v, (int, float)) for v in value):
            return flat
        inner = [pad + dumps(v, depth + 1) for v in value]
        return "[\n" + ",\n".join(inner) + "\n" + " " * depth + "]"
    inner = [f"{pad}{json.dumps(k)}: {dumps(v, depth + 1)}" for k, v in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def exact(tensor):
    """Rounds to float32 and returns float64: an input that a float32 program can hold exactly."""
    return tensor.to(torch.float32).to(torch.float64)


def normal(generator, *shape, std=1.0, mean=0.0):
    """Normal float64 values that float32 holds exactly."""
    return exact(torch.randn(*shape, generator=generator, dtype=torch.float64) * std + mean)


def error(got, want, floor=0.0):
    """The project's error measure for one tensor: max |difference| / max(its max |value|, floor)."""
    scale = max(want.abs().max().item(), floor)
    worst = (got.double() - want.double()).abs().max().item()
    return worst / scale if scale > 0 else worst


def report(script):
    """Prints how large the files beside a script are."""
    folder = Path(script).resolve().parent
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
    print(f"{folder.relative_to(GOLDEN.parents[1])}: {total / 1e6:.2f} MB", file=sys.stderr)
