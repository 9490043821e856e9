"""The global order of the data, said a second time: io/dataset's random.go, order.go, sampler.go and mix.go in plain Python.

    python3 order.py       (Python 3.11, standard library only)

Writes order.json. The sampler is the naive one: for each batch it goes through all waiting rows, oldest first.
"""
import itertools
import json
import os

M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


class Stream:
    def __init__(self, *parts):
        s = 0
        for p in parts:
            s = mix((s + GOLDEN) & M64) ^ p
        self.s = mix((s + GOLDEN) & M64)

    def next(self):
        self.s = (self.s + GOLDEN) & M64
        return mix(self.s)

    def below(self, n):
        while True:
            m = self.next() * n
            if (m & M64) >= (1 << 64) % n:
                return m >> 64

    def permutation(self, n):
        p = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.below(i + 1)
            p[i], p[j] = p[j], p[i]
        return p


BLOCKS, WINDOW, CHOICES, MIXTURE, PARTS, LENGTHS, OTHERS = range(1, 8)


def by_length(window, begin, seed, epoch, w, size, length):
    """A window's rows, from position begin on, in batches of similar length: of 50 batches at a time, but for those that are in two windows."""
    window = list(window)
    at = -begin % size
    for k in range(len(window)):
        n = min(50, (len(window) - at) // size)
        if n < 1:
            break
        s = Stream(seed, LENGTHS, epoch, w, k)
        rows = sorted(window[at:at + n * size], key=length)
        window[at:at + n * size] = [rows[b * size + i] for b in s.permutation(n) for i in s.permutation(size)]
        at += n * size
    return window


def order(rows, sizes, seed, epoch, window_rows, window_bytes, batch=0, length=None):
    """All row ids of an epoch. rows and sizes: of each block."""
    firsts = [sum(rows[:i]) for i in range(len(rows))]
    out, cur, size = [], [], 0

    def shuffle(cur, w):
        cur = [cur[i] for i in Stream(seed, WINDOW, epoch, w).permutation(len(cur))]
        return by_length(cur, len(out), seed, epoch, w, batch, length) if length else cur

    w = 0
    for b in Stream(seed, BLOCKS, epoch).permutation(len(rows)):
        cur += range(firsts[b], firsts[b] + rows[b])
        size += sizes[b]
        if len(cur) >= window_rows or size >= window_bytes:
            out += shuffle(cur, w)
            cur, size, w = [], 0, w + 1
    return out + shuffle(cur, w)


def some(s, a, k):
    """k of a list, in random order."""
    a = list(a)
    for i in range(k):
        j = i + s.below(len(a) - i)
        a[i], a[j] = a[j], a[i]
    return a[:k]


def choose(seed, epoch, row, column, n, k):
    if n == 1:
        return [0] * k
    picked = some(Stream(seed, CHOICES, epoch, row, column), range(n), min(k, n))
    return [picked[i % n] for i in range(k)]


def others(seed, epoch, first, texts, at, k):
    """Documents of other rows for row first + at: texts are of each row its query, its positive, and negatives."""
    own = texts[at]
    candidates = dict.fromkeys(d for t in texts for d in t[1:])
    not_these = {*own, *(t[1] for t in texts if t[0] == own[0])}
    candidates = [d for d in candidates if d not in not_these]
    return candidates if k >= len(candidates) else some(Stream(seed, OTHERS, epoch, first + at), candidates, k)


def batches(ids, texts, size, drop_last):
    """Batches of rows no two of which share a text, and how many rows are left out."""
    waiting, stream, out = [], iter(ids), []
    done = False
    while True:
        batch, used, later = [], set(), []
        for row in waiting:
            if len(batch) < size and not used & texts[row]:
                batch.append(row)
                used |= texts[row]
            else:
                later.append(row)
        while len(batch) < size and not done:
            row = next(stream, None)
            if row is None:
                done = True
            elif used & texts[row]:
                later.append(row)
            else:
                batch.append(row)
                used |= texts[row]
        waiting = later
        if len(batch) < size and (drop_last or not batch):
            return out, len(batch) + len(waiting)
        out.append(batch)


def mixture(kind, weights, parts, seed, size, drop_last, epochs):
    """All batches, as [epoch, dataset, pass over it, rows]. parts: how many rows each dataset has, in blocks of 10."""
    seeds = [Stream(seed, PARTS, i).s if i else seed for i in range(len(parts))]

    def passes(i, p):
        ids = order([10] * (parts[i] // 10), [1] * (parts[i] // 10), seeds[i], p, 20, 1000)
        cut = [ids[k:k + size] for k in range(0, len(ids), size)]
        return [(i, p, b) for b in cut if len(b) == size or not drop_last]

    def forever(i):
        for p in itertools.count():
            yield from passes(i, p)

    going, out = [forever(i) for i in range(len(parts))], []
    for epoch in range(epochs):
        own = [passes(i, epoch) for i in range(len(parts))]
        shares = [len(o) for o in own]
        if kind == "round_robin":
            out += [(epoch, *b) for turn in zip(*own) for b in turn]
            continue
        if kind != "proportional":
            w = weights or [n ** (1 / 2) for n in parts]  # tempered by 2
            exact = [sum(shares) * x / sum(w) for x in w]
            left = sum(shares) - sum(int(x) for x in exact)
            up = sorted(range(len(w)), key=lambda i: int(exact[i]) - exact[i])[:left]
            shares = [int(x) + (i in up) for i, x in enumerate(exact)]
        source = going if kind != "proportional" else [iter(o) for o in own]
        turns = [i for i, n in enumerate(shares) for _ in range(n)]
        out += [(epoch, *next(source[turns[k]])) for k in Stream(seed, MIXTURE, epoch).permutation(len(turns))]
    return out


s = Stream(1, 2, 3)
out = {"stream": [s.next() for _ in range(5)], "below": [], "orders": [], "choices": [], "others": [], "samplers": [], "lengths": [], "mixtures": []}
s = Stream(7)
out["below"] = [s.below(n) for n in (1, 2, 3, 10, 1000, 1 << 40)]
for rows, sizes, seed, epoch, wr, wb in [
    ([5], [1], 1, 0, 100, 100),
    ([4, 4, 4, 4, 3], [10] * 5, 1, 0, 8, 1000),
    ([4, 4, 4, 4, 3], [10] * 5, 1, 1, 8, 1000),
    ([4, 4, 4, 4, 3], [10] * 5, 2, 0, 8, 20),
    ([1, 7, 2, 9, 30, 1], [5, 70, 1, 1, 300, 9], 1 << 63, 12, 10, 60),
]:
    out["orders"].append({"rows": rows, "bytes": sizes, "seed": seed, "epoch": epoch, "window_rows": wr, "window_bytes": wb,
                          "ids": order(rows, sizes, seed, epoch, wr, wb)})
for seed, epoch, row, column, n, k in [(1, 0, 0, 1, 1, 3), (1, 0, 0, 1, 5, 1), (1, 0, 1, 1, 5, 5), (1, 1, 1, 2, 5, 12), (9, 3, 1 << 40, 2, 1000, 7)]:
    out["choices"].append({"args": [seed, epoch, row, column, n, k], "picks": choose(seed, epoch, row, column, n, k)})
for seed, epoch, first, rows, kinds, k in [(1, 0, 0, 6, 100, 3), (1, 1, 0, 6, 100, 3), (2, 0, 40, 9, 12, 4), (1 << 63, 5, 1 << 40, 30, 20, 6), (3, 0, 0, 4, 6, 50)]:
    t = Stream(rows, kinds)
    texts = [[t.below(kinds) for _ in range(2 + t.below(3))] for _ in range(rows)]
    out["others"].append({"seed": seed, "epoch": epoch, "first": first, "texts": texts, "n": k, "drawn": [others(seed, epoch, first, texts, i, k) for i in range(rows)]})
for n, texts, size, drop in [(60, 40, 4, True), (60, 40, 4, False), (60, 7, 3, False), (60, 7, 3, True), (90, 300, 10, True), (40, 1000, 7, False)]:
    # Row i has three texts out of a few: which ones is a stream's business too.
    t = Stream(texts, size)
    sets = [[t.below(texts) for _ in range(3)] for _ in range(n)]
    ids = order([10] * (n // 10), [1] * (n // 10), 5, 1, 20, 1000)
    got, dropped = batches(ids, [set(x) for x in sets], size, drop)
    out["samplers"].append({"texts": sets, "size": size, "drop_last": drop, "batches": got, "dropped": dropped})
for size, window in [(2, 237), (7, 100)]:
    out["lengths"].append({"size": size, "window_rows": window, "ids": order([12] * 40, [1] * 40, 5, 1, window, 1000, size, lambda row: mix(row) % 7)})
for kind, weights, drop in [("proportional", None, False), ("round_robin", None, True), ("weighted", [1, 2.5, 0.5], False), ("tempered", None, True)]:
    out["mixtures"].append({"kind": kind, "weights": weights, "drop_last": drop, "batches": mixture(kind, weights, [90, 20, 50], 5, 7, drop, 2)})
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "order.json"), "w") as f:
    json.dump(out, f, separators=(",", ":"))
