"""Rows with labels, teachers' scores and embeddings, ragged lists of negatives, and documents of two columns.

    python shapes.py        (pyarrow)

Writes shapes.parquet (float64 numbers, one row group), shapes_f32.parquet (float32, tiny pages), shapes.jsonl, and
shapes.json: what pyarrow reads back from the first, with the joined document beside it.
"""
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
random.seed(12)
WORDS = "gradient cache Größe 日本語 данные long tab\tnew".split(" ")


def text(n):
    return " ".join(random.choice(WORDS) for _ in range(n))


def number():
    return random.randint(-64, 64) / 16  # the same in float32 and float64


rows = []
for i in range(41):
    pos = [text(2) + f" {i}.{k}" for k in range(random.randint(1, 3))]
    neg = [text(1) + f" n{i}.{k}" for k in range(random.choice([0, 0, 1, 2, 5]))]
    pos_scores, neg_scores = [number() for _ in pos], [number() for _ in neg]
    rows.append({
        "query": text(3), "positive": text(2), "negative": text(2),
        "title": random.choice([None, "", "  ", "Title", "Größe"]), "text": f"body {i} " + text(3) + random.choice(["", " \n"]),
        "pos": pos, "neg": neg if neg or i % 2 else None,
        "pos_scores": pos_scores, "neg_scores": neg_scores, "score": number(),
        "all_scores": pos_scores + neg_scores, "label": i % 5 - 1, "stars": number(),
        "teacher": [number() for _ in range(4)],
    })

doubles = pa.Table.from_pylist(rows)
floats = doubles.cast(pa.schema([
    (f.name, pa.list_(pa.float32()) if f.type == pa.list_(pa.float64()) else pa.float32() if f.type == pa.float64() else pa.int32() if f.type == pa.int64() else f.type)
    for f in doubles.schema]))
pq.write_table(doubles, os.path.join(here, "shapes.parquet"))
pq.write_table(floats, os.path.join(here, "shapes_f32.parquet"), data_page_size=1, write_batch_size=3, row_group_size=17)
back = pq.read_table(os.path.join(here, "shapes.parquet")).to_pylist()
assert back == pq.read_table(os.path.join(here, "shapes_f32.parquet")).to_pylist() == rows
with open(os.path.join(here, "shapes.jsonl"), "w") as f:
    for r in rows:
        f.write(json.dumps(r) + "\n")
for r in back:
    r["joined"] = ((r["title"] or "") + " - " + r["text"]).strip()
with open(os.path.join(here, "shapes.json"), "w") as f:
    json.dump(back, f, indent=None, separators=(",", ":"))
