#!/usr/bin/env python3
"""Cached contrastive training on one GPU beside sentence-transformers: the same model, rows and maximum length, in turns.

    python gpu.py CONTRAFLOW --data rows.parquet [--only minilm|bert] [--parts peer,gemm] [--pairs 16384] [--figures FILE]
    python gpu.py CONTRAFLOW --data rows.parquet --device cpu --tiny

Models have random weights and MiniLM-L6's or BERT-base's shape, and a vocabulary of the rows' texts (`contraflow init`). rows.parquet has
columns comment and body, as `contraflow quickstart` leaves in train.parquet; where it has fewer rows than steps take, they come again.

A step is forward, backward, clipping and AdamW of one cached batch in bf16, dropout on.

peer     Turns: the peer, ours, the peer, ours. Each turn is a process of its own, which starts when the one before has ended, so each has
         the whole GPU: our replay budget is the default, which goes by the memory that is free. The budget, and the share of sub-batches
         that were kept, stand beside the speed. A turn starts from the same weights and takes the same batches: 2 steps to warm up, then
         2 that are measured. The peer is CachedMultipleNegativesRankingLoss with SDPA and a model whose forward pass is under
         torch.autocast, as its trainer makes it, at the mini-batch at which it is fastest here; its first turn looks for that on an eighth of
         a batch. All its batches are tokenized before its steps, which no number of workers can better; ours come from tokenization
         that runs ahead of the GPU, as in a training.
         Memory is the device's, of allocations alone: the peer's torch.cuda.max_memory_allocated, ours what Alloc has given out at most.
         At last ours runs at growing replay budgets, each in a process of its own, until it is no slower than the peer.
gemm     Turns of PyTorch, which multiplies large bf16 matrices, and of ours at the default budget: its rate in percent of that, counting
         real tokens and no replay, and with what is replayed.
graphs   CUDA graphs on and off.
fusions  What is fused with products on and off, and f32 rounded to TF32 or not.
sizes    Larger sub-batches beside the default ones.
overlap  Two ranks on one device: how much of their communication is hidden.

Of graphs, fusions and sizes both sides are there at once and take steps in turn, of a quarter of a batch at a budget that leaves room for both.

--tiny is for trying this script: small models without dropout, few pairs, no bars, and the losses of both sides have to be the same but for
rounding; with --device cpu in f32. Exits with 3 if a bar is broken. For sentence-transformers 6.0 to 6.2 and torch 2.9 to 2.15; needs pyarrow.
"""

import argparse
import atexit
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "cpu"))

import common

LR = 2e-5
TURNS, WARMUP, ROUNDS = 2, 2, 2
SHAPES = {"minilm": (384, 6, 12), "bert": (768, 12, 12)}  # hidden size, layers, heads
TINY = {"minilm": (64, 2, 2), "bert": (96, 3, 3)}
NAMES = {"minilm": "MiniLM-L6", "bert": "BERT-base"}
BUDGETS = ["0", "4GiB", "8GiB", "16GiB", "32GiB"]

# The parts, and the figures of each.
PARTS = {
    "peer": ["pairs/s", "the peer's", "times the peer", "a step", "replay budget", "sub-batches kept", "memory", "the peer's memory", "memory by the peer's, where it is as fast"],
    "gemm": ["a large bf16 product of PyTorch's", "of that, real tokens and no replay", "with what is replayed"],
    "graphs": ["CUDA graphs by none, default sub-batches", "CUDA graphs by none, sub-batches of 4096 tokens", "CUDA graphs by none, sub-batches of 1024 tokens"],
    "fusions": [
        "embeddings and norms in one pass, by separate passes", "gradients of biases by the library beside those of weights, by passes",
        "that and the approximated GELU in products, by separate passes", "tf32, by f32",
    ],
    "sizes": ["sub-batches of 32768 tokens by the default ones", "sub-batches of 65536 tokens by the default ones"],
    "overlap": ["a step without overlap", "of it communication", "communication hidden"],
}  # fmt: skip


def peer(argv):
    """A turn of the other side. Answers each line with a step."""
    p = argparse.ArgumentParser()
    for name in ("--device", "--model", "--data", "--sweep", "--option"):
        p.add_argument(name)
    for name in ("--batch", "--max-length"):
        p.add_argument(name, type=int)
    args = p.parse_args(argv)

    import pyarrow.parquet as pq
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(1)
    cuda = args.device == "cuda"
    if not cuda:
        torch.set_num_threads(1)  # only to try the script
    model = SentenceTransformer(args.model, device=args.device, model_kwargs={"attn_implementation": "sdpa"})
    model.max_seq_length = args.max_length
    model.train()
    table = pq.read_table(args.data)
    columns = [table[c].to_pylist() for c in ("comment", "body")]

    def tokenized(lo):
        """A batch, a dictionary for each column."""
        features = [model.preprocess(c[lo : lo + args.batch]) for c in columns]
        return [{k: v.pin_memory() if cuda and torch.is_tensor(v) else v for k, v in f.items()} for f in features]

    batches = iter([tokenized(i * args.batch) for i in range(WARMUP + ROUNDS)])
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def fresh():
        """The optimizer, with the weights as they were at first."""
        model.load_state_dict(start)
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=LR, fused=True)

    optimizer = fresh()
    sync = torch.cuda.synchronize if cuda else lambda: None
    computed = 0  # tokens, padding included

    def in_bf16(forward):
        """What accelerate makes of a model's forward pass. Autocast around the loss would leave out the passes with gradients: the cached
        loss computes them in a hook of backward()."""

        def run(features, *more, **options):
            nonlocal computed
            computed += features["input_ids"].numel()
            with torch.autocast(args.device, torch.bfloat16, enabled=cuda):
                out = forward(features, *more, **options)
            return {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in out.items()}

        return run

    model.forward = in_bf16(model.forward)
    passes = set()  # what a linear layer gives, in passes without gradients and with them
    linear = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    watch = linear.register_forward_hook(lambda _m, _in, out: passes.add((torch.is_grad_enabled(), out.dtype)))

    def step(loss, features):
        nonlocal computed
        computed = 0
        sync()
        start = time.perf_counter()
        moved = [{k: v.to(args.device, non_blocking=True) if torch.is_tensor(v) else v for k, v in f.items()} for f in features]
        value = loss(moved, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        sync()
        return {
            "seconds": time.perf_counter() - start, "pairs": args.batch, "tokens": sum(int(f["attention_mask"].sum()) for f in features),
            "computed_tokens": computed // 2, "loss": float(value.detach()), "bytes": torch.cuda.max_memory_allocated() if cuda else common.peak_resident_bytes(),
        }  # fmt: skip

    def of(option):
        return losses.CachedMultipleNegativesRankingLoss(model, **option)

    first, tries = next(batches), []
    if args.option:
        best = json.loads(args.option)
    else:
        # Mini-batches of so many texts, growing until they are slower; then of so many tokens, as many as such texts would have at most.
        part = [{k: v[: args.batch // 8] if torch.is_tensor(v) else v for k, v in f.items()} for f in first]

        def attempt(option):
            try:
                loss = of(option)
                step(loss, part)
                tries.append({**option, "seconds": round(step(loss, part)["seconds"], 3)})
                return tries[-1]["seconds"]
            except RuntimeError as e:  # no room for a tensor, or for what a library needs for itself
                if not isinstance(e, torch.cuda.OutOfMemoryError) and not re.search("ALLOC_FAILED|NOT_INITIALIZED", str(e)):
                    raise
                return float("inf")
            finally:
                optimizer.zero_grad()
                if cuda:
                    torch.cuda.empty_cache()

        fastest = float("inf")
        for n in map(int, args.sweep.split(",")):
            seconds = attempt({"mini_batch_size": n})
            fastest = min(fastest, seconds)
            if seconds > 1.2 * fastest or seconds == float("inf"):
                break
        if not tries:
            sys.exit("the peer has no mini-batch size that fits")
        size = min(tries, key=lambda t: t["seconds"])["mini_batch_size"]
        for n in (size // 2, size):
            attempt({"mini_batch_size": n, "mini_batch_num_tokens": n * args.max_length})
        best = {k: v for k, v in min(tries, key=lambda t: t["seconds"]).items() if k != "seconds"}
        optimizer = fresh()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
    loss = of(best)
    step(loss, first)
    want = {(grad, torch.bfloat16 if cuda else torch.float32) for grad in (False, True)}
    if passes != want:
        sys.exit(f"the peer's linear layers gave {passes} (with gradients or not, type); want {want}")
    watch.remove()
    for _ in range(WARMUP - 1):
        step(loss, next(batches))
    common.serve(lambda: {**step(loss, next(batches)), "option": best, "tries": tries})


def product(argv):
    """A turn of PyTorch. Answers each line with the TFLOP/s of a large bf16 product of random matrices."""
    import torch

    (device,) = argv
    cuda = device == "cuda"
    sync = torch.cuda.synchronize if cuda else lambda: None
    n, times, before = (8192, 50, 200) if cuda else (512, 2, 1)
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))

    def rate():
        for _ in range(before):  # 0.3 s on a GPU, whose clock is low when it has done nothing
            a @ b
        sync()
        start = time.perf_counter()
        for _ in range(times):
            a @ b
        sync()
        return 2 * n**3 * times / (time.perf_counter() - start) / 1e12

    common.serve(rate)


class Figures:
    """What was measured, and the bars."""

    def __init__(self, args):
        self.bars, self.file, self.broken, self.seen = args.device == "cuda" and not args.tiny, args.figures, False, set()

    def add(self, part, model, what, got, unit, note="", want=None, least=True):
        assert what in PARTS[part], f"{what} is not a figure of {part}"
        self.seen.add(what)
        line = f"{NAMES[model]}, {what}: {got:.4g} {unit}" + (f" ({note})" if note else "")
        if want is not None and self.bars:
            holds = got >= want if least else got <= want
            self.broken |= not holds
            line += f", want {'at least' if least else 'at most'} {want:g}: {'holds' if holds else 'BROKEN'}"
        print(line, flush=True)
        if self.file:  # at once: it is there when somebody ends the script
            with open(self.file, "a") as f:
                print(line, file=f)


def precision(args):
    return "bf16" if args.device == "cuda" else "f32"  # a processor without bf16 takes PyTorch minutes


def ours(args, model, rows, pairs=None, warmup=WARMUP, budget=None, tokens=None, rounding=None, switch=""):
    command = ["env", switch] if switch else []
    command += [args.contraflow, "bench", "step", "--paced", "--device", args.device, "--model", model, "--data", rows, "--query", "comment", "--positive", "body",
                "--batch", pairs or args.pairs, "--precision", rounding or precision(args), "--max-length", common.MAX_LENGTH, "--warmup", warmup]  # fmt: skip
    command += ["--replay-budget", budget] if budget is not None else []
    command += ["--sub-batch", tokens] if tokens is not None else []
    return common.Paced("contraflow bench step", command)


def turn(side, rounds=ROUNDS):
    """A process's rounds, and what it says at its end."""
    answers = [side.round() for _ in range(rounds)]
    return answers, side.finish()


def our_turn(args, model, rows):
    """Steps at the default budget, and that budget's bytes."""
    steps, report = turn(ours(args, model, rows))
    budget = report.get("replay_budget_bytes", 0)
    print(f"  contraflow: {seconds(steps)}, a budget of {common.gib(budget)}, {kept(steps):.0f} % of sub-batches kept, {kept(steps, 'lean_sub_batches'):.0f} % lean, losses {losses_of(steps)}", flush=True)
    return steps, budget


def seconds(steps):
    return ", ".join(f"{x['seconds']:.3f}" for x in steps) + " s a step"


def losses_of(steps):
    return ", ".join(f"{x['loss']:.5f}" for x in steps)


def kept(steps, which="kept_sub_batches"):
    """Percent of sub-batches whose activations were kept, or the smaller part of them."""
    return 100 * sum(x.get(which, 0) for x in steps) / sum(x["sub_batches"] for x in steps)


def memory(answer):
    """A step's bytes: the device's, or where it does not count them, the process's."""
    return answer.get("peak_device_bytes") or answer["peak_resident_bytes"]


def tolerance(args, loss):
    """How far a step's losses may be from each other: but for --tiny, dropout has different masks."""
    if not args.tiny:
        return 0.15 + 0.25 * loss
    return loss * (1e-4 if precision(args) == "f32" else 2e-2)


def measure(args, figures, name, model, rows):
    title = NAMES[name]
    a, b, budgets, option = [], [], [], ""
    for _ in range(TURNS):
        shared = ["--device", args.device, "--model", model, "--data", rows, "--batch", args.pairs, "--max-length", common.MAX_LENGTH, "--sweep", args.sweep, "--option", option]
        steps, _ = turn(common.Paced("sentence-transformers", [sys.executable, __file__, "--peer", *shared]))
        if not option:
            print(f"  the peer's mini-batches: {steps[0]['tries']}")
        option = json.dumps(steps[0]["option"])
        print(f"  sentence-transformers: {seconds(steps)}, {option}, losses {losses_of(steps)}", flush=True)
        b += steps
        steps, budget = our_turn(args, model, rows)
        a += steps
        budgets.append(budget)
    if [x["tokens"] for x in a] != [x["tokens"] for x in b]:
        sys.exit(f"{title}: {[x['tokens'] for x in a]} tokens here, {[x['tokens'] for x in b]} there: these are not the same rows")
    for x, y in zip(a, b):
        if not abs(x["loss"] - y["loss"]) <= tolerance(args, y["loss"]):
            sys.exit(f"{title}: loss {x['loss']} here, {y['loss']} there: these are not the same steps")

    def add(*figure, **options):
        figures.add("peer", name, *figure, **options)

    pairs = sum(x["pairs"] for x in a)
    peers, theirs = common.rate(b, "pairs"), max(x["bytes"] for x in b)
    r, low, high = common.ratio(a, b, "pairs")
    add("pairs/s", common.rate(a, "pairs"), "pairs/s", f"{args.pairs} a step, {sum(x['tokens'] for x in a) / pairs:.0f} real tokens each")
    add("the peer's", peers, "pairs/s", f"{sum(x['computed_tokens'] for x in b) / pairs:.0f} tokens each; {option}")
    add("times the peer", r, "times", f"{low:.2f} to {high:.2f}", want={"minilm": 4, "bert": 2.5}[name])
    add("a step", statistics.median(x["seconds"] for x in a), "s", want=4 if name == "bert" else None, least=False)
    add("replay budget", min(budgets) / 2**30, "GiB", "the default")
    add("sub-batches kept", kept(a), "%", f"{kept(a, 'lean_sub_batches'):.0f} % lean")
    add("memory", max(memory(x) for x in a) / 2**30, "GiB")
    add("the peer's memory", theirs / 2**30, "GiB")
    # The smallest budget at which ours is no slower than the peer.
    for budget in BUDGETS[:1] if args.tiny else BUDGETS:
        (x,), _ = turn(ours(args, model, rows, warmup=1, budget=budget), 1)
        times = x["pairs"] / x["seconds"] / peers
        if times >= 1 or args.tiny:
            add("memory by the peer's, where it is as fast", memory(x) / theirs, "times", f"a budget of {budget}, {times:.2f} times as fast", want=0.5, least=False)
            return
    add("memory by the peer's, where it is as fast", float("inf"), "times", "it never is", want=0.5, least=False)


def gemm(args, figures, name, model, rows):
    steps, products = [], []
    for _ in range(TURNS):
        rates, _ = turn(common.Paced("PyTorch", [sys.executable, __file__, "--product", args.device]))
        print(f"  PyTorch: {', '.join(f'{x:.4g}' for x in rates)} TFLOP/s", flush=True)
        products += rates
        steps += our_turn(args, model, rows)[0]
    large = statistics.median(products)
    share = 100 * statistics.median(x["gflop"] / x["seconds"] for x in steps) / 1e3 / large
    # A replayed pass is a forward pass, a third of what a token takes.
    replayed = sum(x.get("replayed_tokens", 0) for x in steps) / sum(x["tokens"] for x in steps)
    figures.add("gemm", name, "a large bf16 product of PyTorch's", large, "TFLOP/s")
    figures.add("gemm", name, "of that, real tokens and no replay", share, "%", f"{statistics.median(x['seconds'] for x in steps):.3f} s a step", want=45 if name == "bert" else None)
    figures.add("gemm", name, "with what is replayed", share * (1 + replayed / 3), "%", f"{100 * replayed:.0f} % of tokens")


def compare(args, figures, part, name, what, on, off):
    """Steps of two of ours, in turn."""
    a, b = common.alternate(on, off, 2 * ROUNDS)
    on.finish()
    off.finish()
    r, low, high = common.ratio(a, b, "pairs")
    figures.add(part, name, what, r, "times", f"{low:.2f} to {high:.2f}")


def graphs(args, figures, name, model, rows):
    """CUDA graphs, and the padding that goes with them, on and off in turn: at the default sub-batch and at smaller ones, which have more
    launches. Both keep as much."""
    for what, tokens in zip(PARTS["graphs"], (None, 4096, 1024)):
        on, off = (ours(args, model, rows, args.pairs // 4, budget="4GiB", tokens=tokens, switch=f"CONTRAFLOW_CUDA_GRAPHS={g}") for g in ("on", "off"))
        compare(args, figures, "graphs", name, what, on, off)


def sizes(args, figures, name, model, rows):
    """Larger sub-batches and the default ones, in turn. Both keep as much: of BERT-base's activations about what a whole batch keeps of its own at the
    default budget, of MiniLM's all."""
    budget = both_keep(args)
    for what, tokens in zip(PARTS["sizes"], (32768, 65536)):
        compare(args, figures, "sizes", name, what, *(ours(args, model, rows, args.pairs // 4, budget=budget, tokens=t) for t in (tokens, None)))


def both_keep(args):
    """A budget for each of two sides that are on a GPU at once, one with sub-batches of 65,536 tokens, of which BERT-base's passes take 14 GiB more: 30 GiB
    of an H200, 17 of an H100."""
    if args.device != "cuda":
        return "4GiB"
    import torch

    return f"{max(1, round(0.215 * torch.cuda.get_device_properties(0).total_memory / 2**30))}GiB"


def fusions(args, figures, name, model, rows):
    """What is saved by fusing parts of a step with products, and by rounding f32 to TF32: each on and off, in turn. Both keep as much."""

    def side(model=model, **changes):
        return ours(args, model, rows, args.pairs // 4, budget="4GiB", **changes)

    passes, sums, approximated, tf32 = PARTS["fusions"]
    off = "CONTRAFLOW_CUDA_FUSE=off"
    compare(args, figures, "fusions", name, passes, side(), side(switch=off))
    compare(args, figures, "fusions", name, sums, side(switch="CONTRAFLOW_CUDA_SUMS=on"), side())
    tanh = model.with_name("tanh")
    shutil.copytree(model, tanh)
    configure(tanh, hidden_act="gelu_pytorch_tanh")
    compare(args, figures, "fusions", name, approximated, side(tanh), side(tanh, switch=off))
    if args.device == "cuda":
        compare(args, figures, "fusions", name, tf32, side(rounding="tf32"), side(rounding="f32"))


def overlap(args, figures, name, model, rows):
    """Two ranks on one device: how much of their communication is hidden. Spans of a GPU's tasks are of issuing them, so it is what
    overlap saves of a step, by what communication takes where nothing is beside it. Gradients travel while a step's last sub-batch goes
    backward: it is a large one, as it would be where communication counts. A step has few of them, so that communication is much of it."""

    def train(overlapped):
        """Median seconds of a step, and of its communication."""
        out = model.with_name(f"overlap-{overlapped}")
        recipe = {
            "model": {"path": str(model), "max_length": common.MAX_LENGTH}, "data": {"train": [{"path": str(rows), "query": "comment", "positive": "body"}]},
            "batch": {"global_size": args.pairs // 8, "no_duplicates": False, "sub_batch": {"tokens": 65536}, "cache": "always"},
            "mesh": {"replicate": 2, "wire": "bf16", "overlap": overlapped},
            "train": {"device": args.device, "precision": precision(args), "max_steps": 14}, "save": {"dir": str(out)},
        }  # fmt: skip
        path = model.with_name("overlap.yaml")
        path.write_text(json.dumps(recipe))
        reply = subprocess.run([args.contraflow, "train", "-c", path], capture_output=True, text=True)
        if reply.returncode:
            sys.exit(f"training with two ranks: {(reply.stdout + reply.stderr)[-3000:]}")
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [x for x in lines if x.get("comm_s") and x.get("step", 0) > 2]  # the first ones warm up
        if not steps:
            sys.exit("training with two ranks: metrics.jsonl has no communication")
        return statistics.median(x["pairs"] / x["pairs_per_s"] for x in steps), statistics.median(x["comm_s"] for x in steps)

    (serial, communication), (overlapped, _) = train(False), train(True)
    figures.add("overlap", name, "a step without overlap", serial, "s")
    figures.add("overlap", name, "of it communication", communication, "s")
    figures.add("overlap", name, "communication hidden", 100 * min(1, (serial - overlapped) / communication), "%", f"{overlapped:.4g} s a step with overlap", want=90)


def configure(model, **changes):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("contraflow", help="the built program")
    p.add_argument("--data", required=True, help="parquet with columns comment and body")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--tiny", action="store_true", help="small models and few pairs, without bars: to try the script")
    p.add_argument("--only", choices=list(SHAPES), help="one model (all parts but peer, graphs and sizes are of BERT-base alone)")
    p.add_argument("--parts", default=",".join(PARTS), help="what to measure, of %(default)s")
    p.add_argument("--pairs", type=int, help="of a batch (16,384; with --tiny 32)")
    p.add_argument("--figures", help="a file to which the figures are added, one a line")
    args = p.parse_args()
    args.pairs = args.pairs or (32 if args.tiny else 16384)
    args.sweep = "8,16" if args.tiny else "64,128,256,512,1024,2048"
    if args.pairs < 32:
        p.error("--pairs wants 32 or more")
    args.parts = args.parts.split(",")
    if not set(args.parts) <= set(PARTS):
        p.error(f"--parts is {','.join(args.parts)}, want some of {','.join(PARTS)}")
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit("gpu.py: PyTorch sees no CUDA device here; --device cpu --tiny tries the script without one")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("gpu.py: ended from outside"))  # with the programs that it has started
    work = Path(tempfile.mkdtemp(prefix="contraflow-gpu-"))
    atexit.register(shutil.rmtree, work)

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(args.data, columns=["comment", "body"])
    need = args.pairs * (WARMUP + ROUNDS)
    order = sorted(range(len(table)), key=lambda i: i * 2654435761 % 2**32)  # a fixed shuffle
    rows = work / "rows.parquet"
    pq.write_table(table.take(pa.array([order[i % len(order)] for i in range(need)])), rows)

    figures, ran = Figures(args), set()
    for name, (hidden, layers, heads) in (TINY if args.tiny else SHAPES).items():
        if args.only not in (None, name):
            continue
        model = work / name / "model"
        subprocess.run([args.contraflow, "init", "--out", model, "--input", args.data, "--column", "comment", "--column", "body", "--hidden", str(hidden), "--layers", str(layers),
                        "--heads", str(heads), "--vocab", "2000" if args.tiny else "30522"], check=True, stderr=subprocess.DEVNULL)  # fmt: skip
        if args.tiny:
            configure(model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        for part, run in (("peer", measure), ("gemm", gemm), ("graphs", graphs), ("fusions", fusions), ("sizes", sizes), ("overlap", overlap)):
            if part in args.parts and (part in ("peer", "graphs", "sizes") or name == "bert"):
                print(f"{part}, {NAMES[name]}", flush=True)
                run(args, figures, name, model, rows)
                ran.add(part)
    if not ran:
        sys.exit(f"gpu.py: {', '.join(args.parts)} is of BERT-base alone")
    missing = {what for part in ran for what in PARTS[part]} - figures.seen - ({"tf32, by f32"} if args.device == "cpu" else set())
    if missing:
        sys.exit(f"gpu.py: no figure: {', '.join(sorted(missing))}")
    sys.exit(3 if figures.broken else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2:])
    elif sys.argv[1:2] == ["--product"]:
        product(sys.argv[2:])
    else:
        main()
