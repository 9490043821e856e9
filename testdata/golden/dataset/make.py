"""Makes the files beside this script, and expected.json: what pyarrow and Hugging Face datasets read from them.

    python3 make.py        (pyarrow 26.0.1, datasets 5.2.0, xxhash 4.1.0, Python 3.11)

The same rows are written in every form that is known to go wrong in some reader: list elements of other names, levels
that are optional or required, dictionaries, page versions, codecs, encodings, pages that end in the middle of a row,
with and without an index and checksums.
"""
import gzip
import json
import os
import random
import tempfile

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

here = os.path.dirname(os.path.abspath(__file__))
random.seed(3)

WORDS = "gradient cache Größe naïve 日本語 данные 🙂 tab\tnew\nline \"quoted\" back\\slash \u2028 e\u0301 long".split(" ")


def text(lo, hi):
    return " ".join(random.choice(WORDS) for _ in range(random.randint(lo, hi)))


N = 61
rows = []
for i in range(N):
    rows.append({
        "query": text(1, 6) + f" {i % 17}",  # repeats: dictionaries
        "positive": text(3, 9) + f" {i}",
        "negative": text(2, 5),
        "pos": [text(1, 3) for _ in range(random.randint(1, 3))],
        "neg": [text(1, 3) for _ in range(random.choice([1, 1, 2, 5, 9]))],
        "three": [text(1, 2) for _ in range(3)],
        "weight": random.choice([0.0, 0.25, 1.0, 2.5]),
        "count": random.randint(-3, 1000),
        "flag": random.random() < 0.5,
        "doc": {"title": text(1, 3), "body": {"text": text(2, 4)}, "parts": [text(1, 2) for _ in range(random.randint(1, 2))]},
    })
table = pa.Table.from_pylist(rows)
expected = {"rows": rows}


def write(name, t=table, **kw):
    pq.write_table(t, os.path.join(here, name), **kw)
    got = pq.read_table(os.path.join(here, name)).to_pylist()
    assert len(got) == t.num_rows


small = table.select(["query", "positive", "pos", "neg", "three", "weight"])
tiny_pages = dict(data_page_size=1, write_batch_size=7, row_group_size=37)

write("default.parquet")
write("v1_none.parquet", small, compression="none", use_dictionary=False)
write("v2_zstd.parquet", small, compression="zstd", data_page_version="2.0", write_page_checksum=True)
write("v2_none.parquet", small, compression="none", data_page_version="2.0", **tiny_pages)
write("gzip.parquet", small, compression="gzip", row_group_size=20)
write("brotli.parquet", small, compression="brotli")
write("lz4.parquet", small, compression="lz4")
write("item.parquet", small, use_compliant_nested_type=False)
write("tiny_pages.parquet", small, **tiny_pages)
write("tiny_pages_plain.parquet", small, use_dictionary=False, write_page_checksum=True, **tiny_pages)
write("page_index.parquet", small, write_page_index=True, **tiny_pages)
write("checksums.parquet", small, write_page_checksum=True, compression="snappy")
write("checksums_dictionary.parquet", small.select(["query", "positive"]), write_page_checksum=True, compression="none")
write("many_groups.parquet", small, row_group_size=11)
write("no_arrow_schema.parquet", small, store_schema=False, version="1.0")
write("delta.parquet", small.append_column("count", table["count"]), use_dictionary=False, column_encoding={
    "query": "DELTA_BYTE_ARRAY", "positive": "DELTA_LENGTH_BYTE_ARRAY", "pos.list.element": "DELTA_BYTE_ARRAY",
    "neg.list.element": "DELTA_LENGTH_BYTE_ARRAY", "three.list.element": "PLAIN", "weight": "BYTE_STREAM_SPLIT", "count": "DELTA_BINARY_PACKED"})

large = pa.schema([("query", pa.large_string()), ("positive", pa.large_string()), ("pos", pa.large_list(pa.large_string())), ("neg", pa.list_(pa.large_string())), ("three", pa.list_(pa.string(), 3)), ("weight", pa.float32())])
write("large.parquet", small.cast(large))
write("dictionary_type.parquet", pa.table({
    "query": small["query"].combine_chunks().dictionary_encode(), "positive": small["positive"].cast(pa.string_view()),
    "pos": small["pos"], "neg": small["neg"], "three": small["three"], "weight": small["weight"].cast(pa.float32())}))
required = pa.schema([pa.field("query", pa.string(), nullable=False), pa.field("positive", pa.string(), nullable=False),
                      pa.field("pos", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
                      pa.field("neg", pa.list_(pa.field("element", pa.string(), nullable=True)), nullable=False),
                      pa.field("three", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=True),
                      pa.field("weight", pa.float64(), nullable=False)])
write("required.parquet", pa.table(small.to_pydict(), schema=required))
write("binary.parquet", small.set_column(0, "query", small["query"].cast(pa.binary())))

hf = datasets.Dataset.from_list(rows)
hf.to_parquet(os.path.join(here, "hf.parquet"))
hf.select_columns(["query", "pos", "neg", "weight"]).to_json(os.path.join(here, "hf.jsonl"), force_ascii=True)
flag = datasets.load_dataset("parquet", data_files=os.path.join(here, "hf.parquet"), cache_dir=tempfile.mkdtemp())["train"]
assert flag.to_list() == rows

with open(os.path.join(here, "flag.jsonl"), "w", encoding="utf-8") as f:  # as FlagEmbedding's examples are: no escapes, extra keys
    for r in rows:
        f.write(json.dumps({"query": r["query"], "pos": r["pos"], "neg": r["neg"], "pos_scores": [1.5] * len(r["pos"]), "prompt": None, "doc": r["doc"]}, ensure_ascii=False) + "\n")
content = open(os.path.join(here, "flag.jsonl"), "rb").read()
with open(os.path.join(here, "flag.jsonl.gz"), "wb") as f:
    with gzip.GzipFile(fileobj=f, mode="wb", mtime=0) as z:
        z.write(content)
with pa.CompressedOutputStream(os.path.join(here, "flag.jsonl.zst"), "zstd") as f:
    f.write(content)

# Nulls at every level. Row by row: what each column holds.
nulls = {
    "query": ["a", None, "", "  ", "b", "c", "d", "e"],
    "positive": ["p"] * 8,
    "pos": [["x"], ["x"], ["x"], ["x"], None, [], ["x", None], ["x", ""]],
}
pq.write_table(pa.table(nulls), os.path.join(here, "nulls.parquet"))
pq.write_table(pa.table(nulls), os.path.join(here, "nulls_v2.parquet"), data_page_version="2.0", use_dictionary=False)
expected["nulls"] = nulls

# Every type that a table to embed may have beside its text.
import datetime
import decimal

typed = pa.table({
    "text": pa.array(["one", "two", "three"]),
    "bool": pa.array([True, None, False]),
    "i8": pa.array([1, -2, None], pa.int8()), "i16": pa.array([1, -2, None], pa.int16()), "i32": pa.array([1, -2, None], pa.int32()), "i64": pa.array([1, -2**62, None], pa.int64()),
    "u8": pa.array([1, 255, None], pa.uint8()), "u32": pa.array([1, 2**32 - 1, None], pa.uint32()), "u64": pa.array([1, 2**64 - 1, None], pa.uint64()),
    "f32": pa.array([1.5, None, float("inf")], pa.float32()), "f64": pa.array([1.1, None, -0.0]),
    "bytes": pa.array([b"\x00\xff", b"", None]), "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
    "date": pa.array([datetime.date(2026, 11, 21), None, datetime.date(1960, 1, 1)]),
    "time": pa.array([datetime.time(1, 2, 3), None, datetime.time(23, 59, 59)]),
    "stamp": pa.array([datetime.datetime(2026, 11, 21, 1, 2, 3, 456), None, datetime.datetime(1960, 1, 1)], pa.timestamp("us", "UTC")),
    "decimal": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-99999.99")], pa.decimal128(20, 2)),
    "ints": pa.array([[1, 2], None, []]), "nested": pa.array([[[1], [2, 3]], [], None]),
    "struct": pa.array([{"a": 1, "b": ["x", None]}, None, {"a": None, "b": []}]),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
})
pq.write_table(typed, os.path.join(here, "types.parquet"))

# Text identity: xxhash's own 128 bits.
samples = ["", "a", "query: what is a gradient?", "日本語 🙂", "x" * 16, "x" * 17, "y" * 128, "y" * 129, "z" * 240, "z" * 241, "w" * 5000]
expected["hashes"] = [[s, xxhash.xxh3_128_hexdigest(s.encode())] for s in samples]

with open(os.path.join(here, "expected.json"), "w") as f:
    json.dump(expected, f, indent=None, separators=(",", ":"))

# A retrieval task in three layouts.
beir = os.path.join(here, "beir")
os.makedirs(os.path.join(beir, "qrels"), exist_ok=True)
with open(os.path.join(beir, "queries.jsonl"), "w") as f:
    for i in range(3):
        f.write(json.dumps({"_id": f"q{i}", "text": f"query {i}", "metadata": {}}) + "\n")
with open(os.path.join(beir, "corpus.jsonl"), "w") as f:
    for i in range(5):
        f.write(json.dumps({"_id": f"d{i}", "title": f"Title {i}" if i != 3 else "", "text": f"document {i}" if i != 4 else "", "metadata": {"n": i}}) + "\n")
    f.write(json.dumps({"_id": "empty", "title": "", "text": ""}) + "\n")
with open(os.path.join(beir, "qrels", "test.tsv"), "w") as f:
    f.write("query-id\tcorpus-id\tscore\nq0\td1\t1\nq0\td3\t2\nq2\td4\t1\nq9\td4\t1\n")
with open(os.path.join(beir, "qrels", "dev.tsv"), "w") as f:
    f.write("query-id\tcorpus-id\tscore\nq1\td0\t1\n")
pq.write_table(pa.table({"id": [0, 1, 2], "text": ["query 0", "query 1", "query 2"]}), os.path.join(beir, "q.parquet"))
pq.write_table(pa.table({"id": [10, 11], "text": ["document 0", "document 1"]}), os.path.join(beir, "c.parquet"))
pq.write_table(pa.table({"query_id": [0, 2, 2], "doc_id": [11, 10, 99], "relevance": [1, 3, 1]}), os.path.join(beir, "r.parquet"))
