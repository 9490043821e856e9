"""Makes the parquet forms that pyarrow reads but does not write, and old_forms.json: what it reads from them.

    python3 old_forms.py   (pyarrow 26.0.1)

Lists of two levels (old Hive, Avro) and of one (protobuf), and V1 pages that end in the middle of a row (old parquet-mr).
A parquet writer of 60 lines: plain encoding, no compression, pages cut after a given number of slots.
"""
import json
import os
import struct

import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
BYTE_ARRAY, UTF8, LIST = 6, 0, 3


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def i(n):  # zigzag
    return 5, varint(n << 1)


def i64(n):
    return 6, varint(n << 1)


def s(text):
    b = text.encode()
    return 8, varint(len(b)) + b


def lst(kind, items):
    return 9, bytes([min(len(items), 15) << 4 | kind]) + (varint(len(items)) if len(items) > 14 else b"") + b"".join(items)


def st(fields):
    out, last = b"", 0
    for fid, (kind, body) in sorted(fields.items()):
        assert fid - last < 16
        out += bytes([fid - last << 4 | kind]) + body
        last = fid
    return 12, out + b"\0"


def element(name, repetition=None, children=None, converted=None, leaf=False):
    f = {4: s(name)}
    if leaf:
        f[1] = i(BYTE_ARRAY)
    if repetition is not None:
        f[3] = i(repetition)
    if children is not None:
        f[5] = i(children)
    if converted is not None:
        f[6] = i(converted)
    return st(f)[1]


def levels(list_of_levels, most):
    """RLE runs of one."""
    if most == 0:
        return b""
    runs = b"".join(varint(1 << 1) + bytes([v]) for v in list_of_levels)
    return struct.pack("<I", len(runs)) + runs


def write(path, schema, rows, columns, page_slots):
    """columns: (path in schema, max rep, max def, slots of (rep, def, text))."""
    out = b"PAR1"
    chunks = []
    for where, max_rep, max_def, slots in columns:
        start = len(out)
        for at in range(0, len(slots), page_slots):
            page = slots[at:at + page_slots]
            body = levels([x[0] for x in page], max_rep) + levels([x[1] for x in page], max_def)
            for _, d, text in page:
                if d == max_def:
                    body += struct.pack("<I", len(text.encode())) + text.encode()
            header = st({1: i(0), 2: i(len(body)), 3: i(len(body)), 5: st({1: i(len(page)), 2: i(0), 3: i(3), 4: i(3)})})[1]
            out += header + body
        size = len(out) - start
        meta = st({1: i(BYTE_ARRAY), 2: lst(5, [i(0)[1], i(3)[1]]), 3: lst(8, [s(p)[1] for p in where]), 4: i(0), 5: i64(len(slots)), 6: i64(size), 7: i64(size), 9: i64(start)})
        chunks.append((st({2: i64(start), 3: meta})[1], size))
    group = st({1: lst(12, [c for c, _ in chunks]), 2: i64(sum(n for _, n in chunks)), 3: i64(rows)})[1]
    footer = st({1: i(1), 2: lst(12, schema), 3: i64(rows), 4: lst(12, [group]), 6: s("old_forms.py")})[1]
    with open(path, "wb") as f:
        f.write(out + footer + struct.pack("<I", len(footer)) + b"PAR1")


ROWS = [[f"text {r}.{k}" for k in range([1, 3, 2, 5, 1, 4][r % 6])] for r in range(20)]
flat = [(0, 1, f"query {r}") for r in range(len(ROWS))]


def slots(max_def):
    return [(min(k, 1), max_def, t) for row in ROWS for k, t in enumerate(row)]


query = element("query", OPTIONAL, leaf=True, converted=UTF8)
three = [element("pos", OPTIONAL, 1, LIST), element("list", REPEATED, 1), element("element", OPTIONAL, leaf=True, converted=UTF8)]
bag = [element("pos", REQUIRED, 1, LIST), element("bag", REPEATED, 1), element("array_element", OPTIONAL, leaf=True, converted=UTF8)]
two = [element("pos", OPTIONAL, 1, LIST), element("array", REPEATED, leaf=True, converted=UTF8)]
one = [element("pos", REPEATED, leaf=True, converted=UTF8)]
expected = {}
for name, list_schema, where, max_def, page in [
    ("split_rows", three, ["pos", "list", "element"], 3, 4),
    ("split_rows_1", three, ["pos", "list", "element"], 3, 1),
    ("bag", bag, ["pos", "bag", "array_element"], 2, 7),
    ("two_levels", two, ["pos", "array"], 2, 7),
    ("one_level", one, ["pos"], 1, 100),
]:
    file = os.path.join(here, name + ".parquet")
    schema = [element("schema", children=2), query, *list_schema]
    write(file, schema, len(ROWS), [(["query"], 0, 1, flat), (where, 1, max_def, slots(max_def))], page)
    got = pq.read_table(file).to_pylist()
    assert got == [{"query": f"query {r}", "pos": row} for r, row in enumerate(ROWS)], got
    expected[name] = got
with open(os.path.join(here, "old_forms.json"), "w") as f:
    json.dump(expected, f, separators=(",", ":"))
