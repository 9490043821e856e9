"""Runs several of these scripts one after the other, each in a process that has loaded the peers: loading them takes longer than most comparisons.

    python testdata/peers/forked.py SCRIPT [ARGUMENT ...] [, SCRIPT [ARGUMENT ...]] ...

SCRIPT is a file of this folder, and "," stands between two of them. Each begins as `python testdata/peers/SCRIPT ARGUMENT ...` does, in a fork of a
process that has done nothing but import, so that none sees what another one has set. Exits with 1 when one fails, which it names, and then runs no more.
"""

import os
import runpy
import sys
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


def run(script, arguments):
    """The script's exit status, of a process of its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
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
for script, *arguments in scripts:
    if status := run(script, arguments):
        sys.exit(f"forked.py: {' '.join([script, *arguments])}: exit {status}")
