"""Makes ops/*: the truth for single operations, forward and backward, in float64 from torch autograd, torch.optim and
transformers' schedules. Every input is exact in float32.

Needs torch 2.9 and transformers 5. Run: python testdata/golden/ops/make.py (a few seconds; writes only here)
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "goldens"))

import torch
import torch.nn.functional as F
import transformers
from goldens import exact, normal, report, save

SEED = 20261101
G = torch.Generator().manual_seed(SEED)


def leaf(t):
    return t.clone().requires_grad_(True)


def write(name, arrays, cases, about, **meta):
    save(f"ops/{name}", arrays, {"about": about, **meta, "cases": cases}, __file__, SEED, ["transformers"])


def layer_norm():
    arrays, cases = {}, []

    def case(name, x, eps):
        T, C = x.shape
        x, gamma, beta = leaf(x), leaf(normal(G, C, std=0.3, mean=1.0)), leaf(normal(G, C, std=0.5))
        dy = normal(G, T, C)
        y = F.layer_norm(x, (C,), gamma, beta, eps)
        y.backward(dy)
        mean = x.detach().mean(1)
        rstd = 1 / torch.sqrt(x.detach().var(1, unbiased=False) + eps)
        arrays.update({
            f"{name}/x": x, f"{name}/gamma": gamma, f"{name}/beta": beta, f"{name}/dy": dy, f"{name}/y": y,
            f"{name}/mean": mean, f"{name}/rstd": rstd,
            f"{name}/dx": x.grad, f"{name}/dgamma": gamma.grad, f"{name}/dbeta": beta.grad,
        })  # fmt: skip
        cases.append({"name": name, "T": T, "C": C, "eps": eps})

    case("odd", normal(G, 5, 7), 1e-12)
    case("wide", normal(G, 3, 33, std=2.0, mean=-1.0), 1e-5)
    case("one_token", normal(G, 1, 24), 1e-12)
    case("one_feature", normal(G, 4, 1), 1e-5)  # its variance is 0: y is beta
    case("large_mean", normal(G, 3, 19, std=1.0, mean=1000.0), 1e-12)
    constant = normal(G, 3, 9)
    constant[1] = 2.5
    case("constant_row", constant, 1e-5)
    write("layer_norm", arrays, cases, "torch.nn.functional.layer_norm with every gradient")


def activations():
    special = [0.0, 1e-8, -1e-8, 1e-3, -1e-3, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 5.5, -5.5, 12.0, -12.0, 40.0, -40.0]
    x = torch.cat([exact(torch.tensor(special, dtype=torch.float64)), normal(G, 46, std=2.0)])
    dy = normal(G, len(x))
    arrays, cases = {"x": x, "dy": dy}, []
    for name, f in {
        "gelu": F.gelu,
        "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
    }.items():
        v = leaf(x)
        y = f(v)
        y.backward(dy)
        arrays.update({f"{name}/y": y, f"{name}/dx": v.grad})
        cases.append({"name": name})
    write("activations", arrays, cases, "pointwise functions of one x, with dx for one dy")


def attention_cases():
    arrays, cases = {}, []

    def case(name, lengths, H, KV, D, scale, causal=False, window=0, std=1.0, mean=0.0, keys=None):
        T = sum(lengths)
        q, k = leaf(normal(G, T, H * D, std=std, mean=mean)), leaf(normal(G, T, KV * D, std=std, mean=mean))
        v = leaf(normal(G, T, KV * D))
        dctx = normal(G, T, H * D)
        contexts, lses, start = [], [], 0
        for b, n in enumerate(lengths):
            s = slice(start, start + n)
            start += n
            # [heads, n, D]; query head h reads key-value head h // (H / KV), as transformers' repeat_kv does.
            qs = q[s].view(n, H, D).transpose(0, 1)
            ks = k[s].view(n, KV, D).transpose(0, 1).repeat_interleave(H // KV, dim=0)
            vs = v[s].view(n, KV, D).transpose(0, 1).repeat_interleave(H // KV, dim=0)
            i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
            seen = torch.ones(n, n, dtype=torch.bool)
            if causal:
                seen &= j <= i
            if window:
                seen &= (i - j).abs() <= window
            if keys:
                seen &= j < keys[b]
            scores = (qs @ ks.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
            lses.append(torch.logsumexp(scores, dim=2))
            plain = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=seen, scale=scale).transpose(0, 1).reshape(n, H * D)
            if seen.any(dim=1).all():
                contexts.append((torch.softmax(scores, dim=2) @ vs).transpose(0, 1).reshape(n, H * D))
                assert torch.allclose(plain, contexts[-1], atol=1e-12)
            else:  # softmax has no value where a query sees no key; torch's attention has zeros
                contexts.append(plain)
                assert not plain[~seen.any(dim=1)].any()
        ctx = torch.cat(contexts)
        ctx.backward(dctx)
        arrays.update({
            f"{name}/q": q, f"{name}/k": k, f"{name}/v": v, f"{name}/dctx": dctx, f"{name}/ctx": ctx,
            f"{name}/lse": torch.cat(lses, dim=1).nan_to_num(),  # -inf, where a query sees no key, becomes the lowest number: files have finite ones
            f"{name}/dq": q.grad, f"{name}/dk": k.grad, f"{name}/dv": v.grad,
        })  # fmt: skip
        cases.append({
            "name": name, "lengths": lengths, "heads": H, "kv_heads": KV, "head_dim": D, "scale": scale,
            "causal": causal, "window": window, **({"keys": keys} if keys else {}),
        })  # fmt: skip

    return arrays, cases, case


def attention():
    arrays, cases, case = attention_cases()
    lengths = [1, 2, 5, 13, 8]
    case("plain", lengths, 3, 3, 5, 5**-0.5)
    case("one_head", [7], 1, 1, 4, 0.5)
    case("one_token_rows", [1, 1, 1], 2, 2, 3, 0.7)
    case("long", [3, 37, 20], 2, 2, 8, 8**-0.5)
    case("causal", lengths, 3, 3, 5, 5**-0.5, causal=True)
    case("window", lengths, 3, 3, 5, 5**-0.5, window=2)
    case("causal_window", lengths, 2, 2, 5, 0.3, causal=True, window=3)
    case("grouped", lengths, 4, 2, 5, 5**-0.5)
    case("grouped_causal", lengths, 6, 2, 3, 3**-0.5, causal=True)
    case("one_kv_head", lengths, 3, 1, 7, 7**-0.5)
    # exp of these scores, about 144, overflows float32 unless the maximum is taken off first.
    case("large_scores", [4, 9], 2, 2, 4, 1.0, std=0.3, mean=6.0)
    write(
        "attention", arrays, cases,
        "softmax(q k^T * scale) v within each sequence of a packed batch; a query sees key j when not causal or j <= i, "
        "and when window is 0 or |i - j| <= window",
    )  # fmt: skip


def seen():
    """Attention in which only the first keys of each sequence's tokens are keys."""
    arrays, cases, case = attention_cases()
    lengths = [1, 2, 5, 13, 8]
    case("plain", lengths, 2, 2, 5, 5**-0.5, keys=[1, 1, 5, 6, 7])
    case("causal", lengths, 4, 2, 3, 0.6, causal=True, keys=[1, 2, 1, 6, 7])
    case("window", lengths, 2, 1, 5, 0.4, window=4, keys=[1, 1, 1, 9, 5])
    case("blind", lengths, 2, 2, 5, 0.4, window=2, keys=[1, 0, 1, 6, 3])  # some queries see no key
    write(
        "seen", arrays, cases,
        "attention, where key j is seen only when j < keys; a query that sees none has zeros, as torch.nn.functional.scaled_dot_product_attention has it",
    )  # fmt: skip


def rows():
    """Normalization and pooling: what happens between token states and embeddings."""
    arrays, cases = {}, []

    x, dy = leaf(normal(G, 6, 11, std=3.0)), normal(G, 6, 11)
    y = F.normalize(x, dim=1)
    y.backward(dy)
    arrays.update({
        "normalize/x": x, "normalize/dy": dy, "normalize/y": y, "normalize/dx": x.grad,
        "normalize/norm": x.detach().norm(dim=1).clamp_min(1e-12),
    })  # fmt: skip
    cases.append({"name": "normalize", "B": 6, "E": 11})

    # |x| below the floor of 1e-12: y = x / 1e-12, and the norm counts as a constant in the gradient, dx = dy / 1e-12.
    edge = torch.zeros(2, 5, dtype=torch.float64)
    edge[1] = normal(G, 5, std=1e-14)
    x, dy = leaf(edge), normal(G, 2, 5)
    y = F.normalize(x, dim=1)
    y.backward(dy)
    arrays.update({
        "normalize_floor/x": x, "normalize_floor/dy": dy, "normalize_floor/y": y, "normalize_floor/dx": x.grad,
        "normalize_floor/norm": x.detach().norm(dim=1).clamp_min(1e-12),
    })  # fmt: skip
    cases.append({"name": "normalize_floor", "B": 2, "E": 5})

    lengths = [4, 1, 9, 2, 17]
    data, dy = normal(G, sum(lengths), 7), normal(G, len(lengths), 7)
    arrays.update({"pool/x": data, "pool/dy": dy})
    for mode in ("mean", "cls", "last"):
        x = leaf(data)
        pick = {"mean": lambda s: s.mean(0), "cls": lambda s: s[0], "last": lambda s: s[-1]}[mode]
        y = torch.stack([pick(s) for s in x.split(lengths)])
        y.backward(dy)
        arrays.update({f"pool_{mode}/y": y, f"pool_{mode}/dx": x.grad})
        cases.append({"name": f"pool_{mode}", "lengths": lengths, "C": 7})
    write("rows", arrays, cases, "torch.nn.functional.normalize, and pooling of packed sequences")


def embedding():
    V, C, lengths = 11, 5, [6, 1, 10]
    T = sum(lengths)
    ids = torch.randint(1, V - 1, (T,), generator=G)  # id 0 and the last are never used: their gradient is 0
    ids[3] = ids[4] = ids[9]  # repeats within and between rows
    positions = torch.cat([torch.arange(n) for n in lengths])
    types = torch.zeros(T, dtype=torch.int64)
    words, places, kinds = leaf(normal(G, V, C)), leaf(normal(G, max(lengths) + 2, C)), leaf(normal(G, 2, C))
    dy = normal(G, T, C)
    y = F.embedding(ids, words) + F.embedding(positions, places) + F.embedding(types, kinds)
    y.backward(dy)
    arrays = {
        "ids": ids, "positions": positions, "types": types, "dy": dy, "y": y,
        "words": words, "places": places, "kinds": kinds,
        "dwords": words.grad, "dplaces": places.grad, "dkinds": kinds.grad,
    }  # fmt: skip
    write("embedding", arrays, [{"name": "embedding", "lengths": lengths, "V": V, "C": C}],
          "y[t] = words[ids[t]] + places[positions[t]] + kinds[types[t]], and the gradient of each table")  # fmt: skip


def optimizers():
    N, steps = 13, 5

    def gradients():
        g = normal(G, steps, N)
        g[:, 0] = 0.0  # never touched but by weight decay
        g[:, 1] = exact(g[:, 1] * 1e-9)  # eps decides its update
        g[:, 2] = exact(g[:, 2] * 1e4)
        g[1, 3:] = 0.0  # a step without gradient still moves by its momentum
        return g

    def run(make, buffers):
        start, g = normal(G, N), gradients()
        p = leaf(start)
        optimizer, lrs = make(p)
        out = {"p0": start, "g": g, "p": []}
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lrs[step]
            p.grad = g[step].clone()
            optimizer.step()
            out["p"].append(p.detach().clone())
            for ours, theirs in buffers.items():
                out.setdefault(ours, []).append(optimizer.state[p][theirs].clone())
        return {k: torch.stack(v) if isinstance(v, list) else v for k, v in out.items()}

    arrays, cases = {}, []
    constant, varied = [1e-2] * steps, [0.0, 5e-3, 1e-2, 7.5e-3, 2.5e-3]
    for name, lrs, betas, eps, decay in [
        ("adamw", constant, (0.9, 0.999), 1e-8, 0.01),
        ("adamw_no_decay", constant, (0.9, 0.999), 1e-8, 0.0),
        ("adamw_schedule", varied, (0.9, 0.98), 1e-6, 0.1),
        ("adamw_large_eps", constant, (0.8, 0.95), 1e-2, 0.01),
    ]:
        got = run(
            lambda p: (torch.optim.AdamW([p], lr=1.0, betas=betas, eps=eps, weight_decay=decay, foreach=False), lrs),
            {"m": "exp_avg", "v": "exp_avg_sq"},
        )
        arrays.update({f"{name}/{k}": v for k, v in got.items()})
        cases.append({"name": name, "lr": lrs, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": decay})
    write("adamw", arrays, cases, "torch.optim.AdamW, state after each of 5 steps")

    arrays, cases = {}, []
    for name, lrs, momentum, decay in [
        ("sgd", constant, 0.0, 0.0),
        ("sgd_momentum", constant, 0.9, 0.0),
        ("sgd_momentum_decay", varied, 0.9, 0.01),
        ("sgd_decay", varied, 0.0, 0.1),
    ]:
        got = run(
            lambda p: (torch.optim.SGD([p], lr=1.0, momentum=momentum, weight_decay=decay, foreach=False), lrs),
            {"v": "momentum_buffer"} if momentum else {},
        )
        arrays.update({f"{name}/{k}": v for k, v in got.items()})
        cases.append({"name": name, "lr": lrs, "momentum": momentum, "weight_decay": decay})
    write("sgd", arrays, cases, "torch.optim.SGD, state after each of 5 steps")


def clip():
    shapes = [(3, 5), (7,), (1, 2)]
    grads = [normal(G, *s, std=2.0) for s in shapes]
    arrays, cases = {f"g{i}": g for i, g in enumerate(grads)}, []
    total = torch.cat([g.flatten() for g in grads]).norm().item()
    for name, max_norm, factor in [
        ("clipped", 1.0, 1.0),
        ("not_clipped", 1e3, 1.0),
        ("zero", 1.0, 0.0),
        ("at_the_limit", total, 1.0),  # the 1e-6 makes the coefficient less than 1
    ]:
        params = [torch.zeros_like(g, requires_grad=True) for g in grads]
        for p, g in zip(params, grads):
            p.grad = g * factor
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        arrays.update({f"{name}/g{i}": p.grad for i, p in enumerate(params)})
        coefficient = min(1.0, max_norm / (norm.item() + 1e-6))
        for p, g in zip(params, grads):
            assert torch.allclose(p.grad, g * factor * coefficient, rtol=1e-14)
        cases.append({"name": name, "max_norm": max_norm, "factor": factor, "norm": norm.item(), "coefficient": coefficient})
    write("clip", arrays, cases,
          "torch.nn.utils.clip_grad_norm_ of the gradients factor * g0, g1, g2: multiplied by min(1, max_norm / (norm + 1e-6))")  # fmt: skip


def schedules():
    arrays, cases = {}, []

    def add(kind, options, warmup, total, lr=1.0, **kwargs):
        p = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([p], lr=lr)
        schedule = transformers.get_scheduler(
            kind, optimizer, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=kwargs or None
        )
        multipliers = []
        for step in range(total):
            multipliers.append(schedule.lr_lambdas[0](step))
            if lr == 1.0:
                assert schedule.get_last_lr()[0] == multipliers[-1]  # what the optimizer is given
            if step + 1 < total:
                optimizer.step()
                schedule.step()
        key = f"{len(cases)}_{kind}_{warmup}_{total}"
        arrays[key] = torch.tensor(multipliers, dtype=torch.float64)
        cases.append({"name": key, "options": options, "warmup": warmup, "total": total, "kind": kind, "kwargs": kwargs, "lr": lr})

    for warmup, total in [(5, 20), (0, 20), (20, 20), (1, 7), (10, 103)]:
        add("linear", {"Shape": "linear"}, warmup, total)
        add("cosine", {"Shape": "cosine"}, warmup, total)
        add("constant_with_warmup", {"Shape": "constant"}, warmup, total)
        add("inverse_sqrt", {"Shape": "inverse_sqrt"}, warmup, total)
        add("inverse_sqrt", {"Shape": "inverse_sqrt", "Timescale": 7}, warmup, total, timescale=7)
        add("cosine", {"Shape": "cosine", "Waves": 1.5}, warmup, total, num_cycles=1.5)
        for n in (1, 2, 3, 2.5):
            add("cosine_with_restarts", {"Shape": "cosine", "Cycles": n}, warmup, total, num_cycles=n)
        for name, options in [("cosine_with_min_lr", {}), ("cosine_warmup_with_min_lr", {"Ahead": True})]:
            add(name, {"Shape": "cosine", "MinRatio": 0.1, **options}, warmup, total, min_lr_rate=0.1)
            add(name, {"Shape": "cosine", "MinRatio": 2e-6 / 2e-5, **options}, warmup, total, lr=2e-5, min_lr=2e-6)
            add(name, {"Shape": "cosine", "MinRatio": 0.3, "Waves": 1, **options}, warmup, total, min_lr_rate=0.3, num_cycles=1)
        add("cosine_warmup_with_min_lr", {"Shape": "cosine", "MinRatio": 0.1, "Ahead": True, "WarmupFrom": 0.25}, warmup, total,
            min_lr_rate=0.1, warmup_lr_rate=0.25)  # fmt: skip
        add("polynomial", {"Shape": "polynomial", "MinRatio": 1e-7 / 5e-5}, warmup, total, lr=5e-5)
        for power in (1, 2, 0.5):
            options = {"Shape": "polynomial", "Power": power, "MinRatio": 0.05}
            add("polynomial", options, warmup, total, lr=2e-5, lr_end=1e-6, power=power)
        add("polynomial", {"Shape": "polynomial", "Power": 3}, warmup, total, lr_end=0, power=3)
        for decay in (2, 6, 19):
            add("warmup_stable_decay", {"Shape": "cosine", "DecaySteps": decay}, warmup, total, num_decay_steps=decay)
            for kind, start in [("linear", "cosine"), ("cosine", "1-sqrt"), ("1-sqrt", "linear")]:
                add("warmup_stable_decay", {"Shape": kind, "DecaySteps": decay, "MinRatio": 0.2, "WarmupFrom": 0.2, "Warmup": start}, warmup, total,
                    num_decay_steps=decay, decay_type=kind, warmup_type=start, min_lr_ratio=0.2)  # fmt: skip
        for stable in (0, 3):
            add("warmup_stable_decay", {"Shape": "cosine", "DecaySteps": 4, "StableSteps": stable or -1, "MinRatio": 0.1, "WarmupFrom": 0.1, "Waves": 1},
                warmup, total, num_decay_steps=4, num_stable_steps=stable, min_lr_ratio=0.1, num_cycles=1)  # fmt: skip
    assert arrays["0_linear_5_20"][4] == 0.8
    write("schedules", arrays, cases,
          "learning-rate multipliers of transformers' schedules; entry s is used by the step that follows s completed ones; options are those of optim.Curve, "
          "kind and kwargs what get_scheduler was given, lr the optimizer's")  # fmt: skip


for make in (layer_norm, activations, attention, rows, embedding, optimizers, clip, schedules, seen):
    make()
report(__file__)
