"""Token ids as contraflow prep writes them beside texts, in every form that pyarrow can give them.

    python ids.py        (pyarrow)

Writes ids_FORM.parquet and ids.json: what pyarrow reads back, the same rows of each form. Rows without ids are in ids_empty alone;
ids_null and ids_null_list have what must be refused, in row 25.
"""
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
random.seed(13)
N = 40


def ids(n):
    return [2] + [min(random.randint(0, 9999), random.randint(0, 9999)) for _ in range(n - 2)] + [3]


def halves():
    return [random.randint(-2**63, 2**63 - 1), random.randint(-2**63, 2**63 - 1)]


rows = []
for i in range(N):
    docs = [ids(random.randint(2, 9)) for _ in range(random.choice([1, 1, 2, 3]))]
    rows.append({
        "query": f"q{i}", "query_hash": halves(), "query_ids": ids(300 if i == 17 else random.randint(2, 30)),
        "pos": [f"p{i}.{k}" for k in range(len(docs))], "pos_hash": [h for _ in docs for h in halves()],
        "pos_ids": [t for d in docs for t in d], "pos_id_counts": [len(d) for d in docs],
    })


def schema(nullable):
    numbers = lambda t: pa.list_(pa.field("element", t, nullable=nullable))
    field = lambda name, t: pa.field(name, t, nullable=nullable)
    return pa.schema([
        field("query", pa.string()), field("query_hash", numbers(pa.int64())), field("query_ids", numbers(pa.int32())),
        field("pos", pa.list_(pa.string())), field("pos_hash", numbers(pa.int64())), field("pos_ids", numbers(pa.int32())), field("pos_id_counts", numbers(pa.int32())),
    ], metadata={"contraflow.tokens": json.dumps({"tokenizer": "golden", "query": {"max_length": 300}, "document": {"max_length": 9}})})


def write(form, rows=rows, nullable=True, **kw):
    path = os.path.join(here, f"ids_{form}.parquet")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema(nullable)), path, write_page_checksum=True, **kw)
    assert pq.read_table(path).to_pylist() == rows


columns = [c + ".list.element" for c in ("query_hash", "query_ids", "pos_hash", "pos_ids", "pos_id_counts")]
tiny = dict(data_page_size=1, write_batch_size=7)  # 7 levels a page: most rows go on in the next
write("snappy", row_group_size=23)
write("plain", use_dictionary=False, compression="none", **tiny)
write("dictionary", compression="none", **tiny)
write("zstd_v2", compression="zstd", data_page_version="2.0", write_page_index=True, **tiny)
write("delta", compression="gzip", use_dictionary=False, column_encoding={c: "DELTA_BINARY_PACKED" for c in columns}, **tiny)
write("split", compression="lz4", use_dictionary=False, column_encoding={c: "BYTE_STREAM_SPLIT" for c in columns}, data_page_version="2.0")
write("required", nullable=False, compression="none", data_page_version="2.0", dictionary_pagesize_limit=400, data_page_size=200, write_batch_size=50)  # goes from dictionary to plain

empty = [dict(r, query_ids=[] if i % 3 == 0 else r["query_ids"]) for i, r in enumerate(rows)]
write("empty", empty, compression="none", **tiny)
write("null", [dict(r, query_ids=[2, None, 3] if i == 25 else r["query_ids"]) for i, r in enumerate(rows)], row_group_size=20)
write("null_list", [dict(r, query_ids=None if i == 25 else r["query_ids"]) for i, r in enumerate(rows)], row_group_size=20)

with open(os.path.join(here, "ids.json"), "w") as f:
    json.dump({"rows": rows, "empty": [r["query_ids"] for r in empty]}, f, separators=(",", ":"))
