"""Runs several of these scripts, as many at a time as there are cores, each in a process that has loaded the peers: loading them takes longer than
most comparisons.

    python testdata/peers/forked.py SCRIPT [ARGUMENT ...] [, SCRIPT [ARGUMENT ...]] ...

SCRIPT is a file of this folder, and "," stands between two of them. Each begins as `python testdata/peers/SCRIPT ARGUMENT ...` does, in a fork of a
process that has done nothing but import, so that none sees what another one has set. What it prints comes when it has ended, and how long that took.
Exits with 1 when one fails, which it names, and then starts no more.
"""

import os
import runpy
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # as these scripts set it, before the libraries read it

# What more than one script imports. OMP_NUM_THREADS=1 keeps it from starting threads, which a fork would not have; pyarrow's allocator starts its one anew.
import FlagEmbedding.finetune.embedder.encoder_only.base.modeling  # noqa: F401
import peft  # noqa: F401
import pyarrow.parquet  # noqa: F401
import scipy.stats  # noqa: F401
import sentence_transformers  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch  # noqa: F401
import transformers  # noqa: F401

here = Path(__file__).resolve().parent


def start(script, *arguments):
    """The process that runs a script, and the file of what it prints."""
    printed = tempfile.TemporaryFile()
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child, printed
    status = 1
    try:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        sys.argv, sys.path[0] = [str(here / script), *arguments], str(here)
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            status = int(e.code or 0)
        else:  # what sys.exit("words") prints
            print(e.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


scripts = [[]]
for word in sys.argv[1:]:
    if word == ",":
        scripts.append([])
    else:
        scripts[-1].append(word)
running, failed = {}, []
while running or scripts and not failed:
    while scripts and not failed and len(running) < len(os.sched_getaffinity(0)):
        words = scripts.pop(0)
        child, printed = start(*words)
        running[child] = " ".join(words), printed, time.monotonic()
    child, ended = os.wait()
    script, printed, began = running.pop(child)
    print(f"-- {script}: {time.monotonic() - began:.0f} s", flush=True)
    printed.seek(0)
    shutil.copyfileobj(printed, sys.stdout.buffer)
    sys.stdout.flush()
    if status := os.waitstatus_to_exitcode(ended):
        failed.append(f"forked.py: {script}: exit {status}")
if failed:
    sys.exit("\n".join(failed))
