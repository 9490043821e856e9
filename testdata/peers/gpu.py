#!/usr/bin/env python3
"""Cached contrastive training on one GPU beside sentence-transformers: the same model, rows and maximum length, in turns.

    python gpu.py CONTRAFLOW --data rows.parquet [--only minilm|bert] [--parts peer,overlap] [--pairs 16384] [--rounds 3] [--json figures.json]
    python gpu.py CONTRAFLOW --data rows.parquet --device cpu --tiny

Models have random weights and MiniLM-L6's or BERT-base's shape, and a vocabulary of the rows' texts (`contraflow init`). rows.parquet has
columns comment and body, as `contraflow quickstart` leaves in train.parquet; where it has fewer rows than steps take, they come again.

A step is forward, backward, clipping and AdamW of one cached batch in bf16, dropout on. The peer is CachedMultipleNegativesRankingLoss with
SDPA and a model whose forward pass is under torch.autocast, as its trainer makes it, at the mini-batch size at which it is fastest here,
which is looked for first on a quarter of a batch; worker processes tokenize its next batches while it computes, so its steps find them
ready, and ours do too (on a GPU). Between steps the peer's library multiplies large bf16 matrices: our rate is given as a percent of that,
counting real tokens and no replay, and beside it with what is replayed.

Memory is the device's, of allocations alone: the peer's torch.cuda.max_memory_allocated, ours what Alloc has given out at most, at the
smallest replay budget tried at which ours is no slower than the peer.

Then what makes our step fast is turned off, one at a time, and each step is measured beside one that has it.

--tiny is for trying this script: small models, few pairs, no bars; with --device cpu in f32. Exits with 1 if a bar is broken. Written for sentence-transformers 6.0.1
and torch 2.11; needs pyarrow.
"""

import argparse
import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "cpu"))

import common

LR = 2e-5
SHAPES = {"minilm": (384, 6, 12), "bert": (768, 12, 12)}  # hidden size, layers, heads
TINY = {"minilm": (64, 2, 2), "bert": (96, 3, 3)}
NAMES = {"minilm": "MiniLM-L6", "bert": "BERT-base"}
PARTS = ["peer", "graphs", "products", "overlap"]
BUDGETS = ["0", "4GiB", "8GiB", "16GiB", "32GiB", "64GiB"]


def peer(argv):
    """The other side, in a process of its own. Answers each line with a step, or with the large product's rate."""
    p = argparse.ArgumentParser()
    for name in ("--device", "--model", "--data", "--sweep"):
        p.add_argument(name)
    for name in ("--batch", "--max-length", "--workers"):
        p.add_argument(name, type=int)
    args = p.parse_args(argv)

    import inspect

    import pyarrow.parquet as pq
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    if args.workers > 1:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker has a thread
    torch.manual_seed(1)
    cuda = args.device == "cuda"
    if not cuda:
        torch.set_num_threads(1)  # only to try the script
    model = SentenceTransformer(args.model, device="cpu", model_kwargs={"attn_implementation": "sdpa"})
    model.max_seq_length = args.max_length
    table = pq.read_table(args.data)
    columns = [table["comment"].to_pylist(), table["body"].to_pylist()]

    class Batches(torch.utils.data.IterableDataset):
        """Tokenized batches, every worker its own share, in the files' order and again from the start."""

        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            i, by = (worker.id, worker.num_workers) if worker else (0, 1)
            while True:
                at = [j % len(columns[0]) for j in range(i * args.batch, (i + 1) * args.batch)]
                yield [dict(model.preprocess([c[j] for j in at])) for c in columns]
                i += by

    # The workers start before the model is on the GPU: forked from a process that uses CUDA they could not tokenize.
    loader = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=args.workers, pin_memory=cuda, prefetch_factor=2 if args.workers else None)
    batches = iter(loader)
    first = next(batches)
    model.to(args.device)
    model.train()
    start = {k: v.clone() for k, v in model.state_dict().items()}

    def fresh():
        """The optimizer, with the weights as they were at first."""
        model.load_state_dict(start)
        decay = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=LR, fused=True)

    optimizer = fresh()
    sync = torch.cuda.synchronize if cuda else lambda: None

    def in_bf16(forward):
        """What accelerate makes of a model's forward pass. Autocast around the loss would leave out the passes with gradients: the cached
        loss computes them in a hook of backward()."""

        def run(*inputs, **options):
            with torch.autocast(args.device, torch.bfloat16):
                out = forward(*inputs, **options)
            return {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in out.items()}

        return run

    if cuda:
        model.forward = in_bf16(model.forward)
    passes = set()  # what a linear layer gives, in passes without gradients and with them
    linear = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    watch = linear.register_forward_hook(lambda _m, _in, out: passes.add((torch.is_grad_enabled(), out.dtype)))

    def step(loss, features):
        tokens = sum(int(f["attention_mask"].sum()) for f in features)
        computed = sum(f["input_ids"].numel() for f in features)
        sync()
        start = time.perf_counter()
        moved = [{k: v.to(args.device, non_blocking=True) if torch.is_tensor(v) else v for k, v in f.items()} for f in features]
        value = loss(moved, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        sync()
        return {"seconds": time.perf_counter() - start, "pairs": args.batch, "tokens": tokens, "computed_tokens": computed, "loss": float(value.detach())}

    # Its best mini-batch, of so many texts or, where the release has that, of so many tokens.
    tries, best = [], None
    kinds = ["mini_batch_size"]
    if "mini_batch_num_tokens" in inspect.signature(losses.CachedMultipleNegativesRankingLoss.__init__).parameters:
        kinds.append("mini_batch_num_tokens")
    sizes = [int(n) for n in args.sweep.split(",")]
    # Their ratio is the batch's: all but the scores, which are little, is the same work for each text.
    part = [{k: v[: args.batch // 4] if torch.is_tensor(v) else v for k, v in f.items()} for f in first]
    for kind in kinds:
        mine = None
        for n in sizes:
            option = {kind: n if kind == "mini_batch_size" else n * args.max_length}
            try:
                loss = losses.CachedMultipleNegativesRankingLoss(model, **option)
                step(loss, part)
                seconds = step(loss, part)["seconds"]
            except torch.cuda.OutOfMemoryError:
                optimizer.zero_grad()
                torch.cuda.empty_cache()
                break
            tries.append({**option, "seconds": seconds})
            if best is None or seconds < best["seconds"]:
                best = {"option": option, "seconds": seconds}
            if mine and seconds > 1.2 * mine:
                break
            mine = min(mine or seconds, seconds)
    if best is None:
        sys.exit("the peer has no mini-batch size that fits")
    loss = losses.CachedMultipleNegativesRankingLoss(model, **best["option"])
    optimizer = fresh()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step(loss, first)  # the warm-up
    want = {(grad, torch.bfloat16 if cuda else torch.float32) for grad in (False, True)}
    if passes != want:
        sys.exit(f"the peer's linear layers gave {passes} (with gradients or not, type); want {want}")
    watch.remove()
    used = torch.cuda.max_memory_allocated() if cuda else common.peak_resident_bytes()

    def product():
        """TFLOP/s of a large bf16 product of random matrices."""
        n, times, before = (8192, 50, 200) if cuda else (512, 2, 1)
        a, b = (torch.randn(n, n, device=args.device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(before):  # 0.3 s on a GPU, whose clock is low when it has done nothing
            a @ b
        sync()
        start = time.perf_counter()
        for _ in range(times):
            a @ b
        sync()
        return 2 * n**3 * times / (time.perf_counter() - start) / 1e12

    def next_round():
        rate = product()
        return {**step(loss, next(batches)), "peak_device_bytes": used, "product_tflops": rate, "option": best["option"], "tries": tries}

    common.serve(next_round)


class Figures:
    """What was measured, and the bars."""

    def __init__(self, bars, file):
        self.bars, self.rows, self.file = bars, [], file

    def add(self, what, got, unit, want=None, least=True):
        holds = want is None or (got >= want if least else got <= want)
        bar = "" if want is None else f"{'>=' if least else '<='} {want:g}"
        self.rows.append({"what": what, "got": got, "unit": unit, "bar": bar, "holds": holds if self.bars else None})
        if self.file:  # anew each time: what was measured is there when somebody ends the script
            Path(self.file).write_text(json.dumps(self.rows, indent=1))
        verdict = "" if want is None or not self.bars else "holds" if holds else "BROKEN"
        print(f"  {what}: {got:.4g} {unit} {bar} {verdict}".rstrip(), flush=True)


def precision(args):
    return "bf16" if args.device == "cuda" else "f32"  # a processor without bf16 takes PyTorch minutes


def ours(args, model, rows, budget=None, warmup=1, switch="", rounding=None, tokens=None):
    command = ["env", switch] if switch else []
    command += [args.contraflow, "bench", "step", "--paced", "--device", args.device, "--model", model, "--data", rows, "--query", "comment", "--positive", "body",
               "--batch", args.pairs, "--precision", rounding or precision(args), "--max-length", common.MAX_LENGTH, "--warmup", warmup]  # fmt: skip
    command += ["--replay-budget", budget] if budget is not None else []
    command += ["--sub-batch", tokens] if tokens is not None else []
    return common.Paced("contraflow bench step", command)


def memory(answer):
    """A step's bytes: the device's, or where it does not count them, the process's."""
    return answer.get("peak_device_bytes") or answer["peak_resident_bytes"]


def measure(args, figures, name, model, rows):
    shared = ["--device", args.device, "--model", model, "--data", rows, "--batch", args.pairs, "--max-length", common.MAX_LENGTH, "--workers", args.workers, "--sweep", args.sweep]
    other = common.Paced("sentence-transformers", [sys.executable, __file__, "--peer", *shared])
    side = ours(args, model, rows)
    a, b = common.alternate(side, other, args.rounds)
    report = side.finish()
    other.finish()
    title = NAMES[name]
    if [x["tokens"] for x in a] != [x["tokens"] for x in b]:
        sys.exit(f"{title}: {[x['tokens'] for x in a]} tokens here, {[x['tokens'] for x in b]} there: these are not the same rows")
    for x, y in zip(a, b):
        if not abs(x["loss"] - y["loss"]) <= 0.15 + 0.25 * y["loss"]:  # different dropout masks
            sys.exit(f"{title}: loss {x['loss']} here, {y['loss']} there: these are not the same steps")
    r, low, high = common.ratio(a, b, "pairs")
    products = sorted(x["product_tflops"] for x in b)
    product = products[len(products) // 2]
    tokens = sum(x["tokens"] for x in a) / sum(x["pairs"] for x in a)
    print(f"{title}, {args.pairs} pairs of {tokens:.0f} real tokens ({sum(x['computed_tokens'] for x in b) / sum(x['pairs'] for x in b):.0f} computed by the peer), the peer's mini-batch {b[0]['option']} of {b[0]['tries']}")
    figures.add(f"{title}, pairs/s", common.rate(a, "pairs"), "pairs/s")
    figures.add(f"{title}, the peer's pairs/s", common.rate(b, "pairs"), "pairs/s")
    figures.add(f"{title}, times the peer ({low:.2f} to {high:.2f})", r, "times", {"minilm": 4, "bert": 2.5}[name])
    seconds = report["seconds_per_step"]["median"]
    figures.add(f"{title}, a step", seconds, "s", 4 if name == "bert" else None, least=False)
    figures.add(f"{title}, a large bf16 product of the peer's", product, "TFLOP/s")
    share = 100 * report["gflop_per_s"]["median"] / 1e3 / product
    figures.add(f"{title}, of that, real tokens and no replay", share, "%", 45 if name == "bert" else None)
    # A replayed pass is a forward pass, a third of what a token takes.
    replayed = sum(x.get("replayed_tokens", 0) for x in a) / sum(x["tokens"] for x in a)
    figures.add(f"{title}, of that, with the {100 * replayed:.0f} % of tokens that are replayed", share * (1 + replayed / 3), "%")
    theirs = memory(b[-1])
    figures.add(f"{title}, memory at the default budget", memory(a[-1]) / 2**30, "GiB")
    figures.add(f"{title}, the peer's memory", theirs / 2**30, "GiB")
    # The smallest budget at which ours is no slower than the peer.
    peers = common.rate(b, "pairs")
    for budget in BUDGETS:
        side = ours(args, model, rows, budget)
        x = side.round()
        side.finish()
        if x["pairs"] / x["seconds"] >= peers:
            figures.add(f"{title}, memory at a budget of {budget}, where it is {x['pairs'] / x['seconds'] / peers:.2f} times as fast, by the peer's", memory(x) / theirs, "times", 0.5, least=False)
            return
    figures.add(f"{title}, memory where it is as fast as the peer: it never is; by the peer's", float("inf"), "times", 0.5, least=False)


def graphs(args, figures, name, model, rows):
    """CUDA graphs, and the padding that goes with them, on and off in turn: at the default sub-batch and at smaller ones, which have more
    launches. Both keep as much."""
    for tokens in [None, 256] if args.tiny else [None, 4096, 1024]:
        on, off = (ours(args, model, rows, budget="4GiB", warmup=2, tokens=tokens, switch=f"CONTRAFLOW_CUDA_GRAPHS={g}") for g in ("on", "off"))
        a, b = common.alternate(on, off, args.rounds)
        on.finish()
        off.finish()
        r, low, high = common.ratio(a, b, "pairs")
        where = f"sub-batches of {tokens} tokens" if tokens else "default sub-batches"
        figures.add(f"{NAMES[name]}, {where}, with CUDA graphs by without ({low:.2f} to {high:.2f})", r, "times")


def products(args, figures, name, work, model, rows):
    """What is saved by fusing parts of a step with products, and by rounding f32 to TF32: each on and off, in turn. Both keep as much."""

    def side(model, **changes):
        return ours(args, model, rows, budget="4GiB", **changes)

    def compare(what, on, off):
        a, b = common.alternate(on, off, args.rounds)
        on.finish()
        off.finish()
        r, low, high = common.ratio(a, b, "pairs")
        figures.add(f"{NAMES[name]}, {what} ({low:.2f} to {high:.2f})", r, "times")

    off = "CONTRAFLOW_CUDA_FUSE=off"
    compare("embeddings and norms in one pass, by separate passes", side(model), side(model, switch=off))
    compare("gradients of biases by the library beside those of weights, by passes", side(model, switch="CONTRAFLOW_CUDA_SUMS=on"), side(model))
    tanh = work / "tanh"
    shutil.copytree(model, tanh)
    config = json.loads((tanh / "config.json").read_text())
    config["hidden_act"] = "gelu_pytorch_tanh"
    (tanh / "config.json").write_text(json.dumps(config))
    compare("that and the approximated GELU in products, by separate passes", side(tanh), side(tanh, switch=off))
    if args.device == "cuda":
        compare("tf32, by f32", side(model, rounding="tf32"), side(model, rounding="f32"))


def overlap(args, figures, work, model, rows):
    """Two ranks on one device: how much of their communication is hidden. Spans of a GPU's tasks are of issuing them, so it is what
    overlap saves of a step, by what communication takes where nothing is beside it. Gradients travel while a step's last sub-batch goes
    backward: it is a large one, as it would be where communication counts."""

    def train(overlapped):
        """Median seconds of a step, and of its communication."""
        out = work / f"overlap-{overlapped}"
        recipe = {
            "model": {"path": str(model), "max_length": common.MAX_LENGTH}, "data": {"train": [{"path": str(rows), "query": "comment", "positive": "body"}]},
            "batch": {"global_size": args.pairs // 4, "no_duplicates": False, "sub_batch": {"tokens": 65536}, "cache": "always"},
            "mesh": {"replicate": 2, "wire": "bf16", "overlap": overlapped},
            "train": {"device": args.device, "precision": precision(args), "max_steps": 6}, "save": {"dir": str(out)},
        }  # fmt: skip
        path = work / "overlap.yaml"
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
    figures.add("two ranks on one device, a step without overlap", serial, "s")
    figures.add("two ranks on one device, of it communication", communication, "s")
    figures.add("two ranks on one device, communication hidden", 100 * min(1, (serial - overlapped) / communication), "%", 90)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("contraflow", help="the built program")
    p.add_argument("--data", required=True, help="parquet with columns comment and body")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--tiny", action="store_true", help="small models and few pairs, without bars: to try the script")
    p.add_argument("--only", choices=list(SHAPES), help="one model")
    p.add_argument("--parts", default=",".join(PARTS), help="what to measure: peer, ours beside it; graphs, with and without CUDA graphs; products, with and without what is fused; overlap, of two ranks")
    p.add_argument("--pairs", type=int, help="of a batch (16,384; with --tiny 32)")
    p.add_argument("--rounds", type=int, help="measured steps of each side (3; with --tiny 1)")
    p.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that tokenize for the peer")
    p.add_argument("--sweep", help="the peer's mini-batch sizes to try, growing")
    p.add_argument("--json", help="file for the figures")
    args = p.parse_args()
    args.pairs = args.pairs or (32 if args.tiny else 16384)
    args.rounds = args.rounds or (1 if args.tiny else 3)
    args.sweep = args.sweep or ("16" if args.tiny else "32,64,128,256,512,1024,2048,4096")
    if args.pairs < 8 or args.rounds < 1 or args.workers < 0:
        p.error("--pairs wants 8 or more, --rounds 1 or more, --workers 0 or more")
    args.parts = args.parts.split(",")
    if not set(args.parts) <= set(PARTS):
        p.error(f"--parts is {','.join(args.parts)}, want some of {','.join(PARTS)}")
    if args.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit("gpu.py: PyTorch sees no CUDA device here; --device cpu --tiny tries the script without one")
    work = Path(tempfile.mkdtemp(prefix="contraflow-gpu-"))
    atexit.register(shutil.rmtree, work)

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(args.data, columns=["comment", "body"])
    need = args.pairs * (args.rounds + 2)
    order = sorted(range(len(table)), key=lambda i: i * 2654435761 % 2**32)  # a fixed shuffle
    rows = work / "rows.parquet"
    pq.write_table(table.take(pa.array([order[i % len(order)] for i in range(need)])), rows)

    figures = Figures(bars=args.device == "cuda" and not args.tiny, file=args.json)
    models = {}
    for name, (hidden, layers, heads) in (TINY if args.tiny else SHAPES).items():
        if args.only in (None, name):
            models[name] = work / name
            subprocess.run([args.contraflow, "init", "--out", work / name, "--input", args.data, "--column", "comment", "--column", "body", "--hidden", str(hidden), "--layers", str(layers),
                            "--heads", str(heads), "--vocab", "2000" if args.tiny else "30522"], check=True, stderr=subprocess.DEVNULL)  # fmt: skip
            if "peer" in args.parts:
                measure(args, figures, name, work / name, rows)
            if "graphs" in args.parts:
                graphs(args, figures, name, work / name, rows)
    name, path = list(models.items())[-1]
    if "products" in args.parts:
        products(args, figures, name, work, path, rows)
    if "overlap" in args.parts:
        overlap(args, figures, work, path, rows)
    sys.exit(1 if any(r["holds"] is False for r in figures.rows) else 0)


if __name__ == "__main__":
    if "--peer" in sys.argv[1:2]:
        peer(sys.argv[2:])
    else:
        main()
