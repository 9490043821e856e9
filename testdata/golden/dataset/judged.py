"""Judgements and scores whose parquet types are not those of their numbers.

    python judged.py        (pyarrow)

Writes judged_decimal.parquet, in which a relevance of 1.0 is stored as 10 (as DuckDB and Spark write decimals), and judged_float.parquet, whose ids are
the numbers 1234567 and 10000000 as float64, which pandas makes of a column of integers that has gaps, and its relevance float32.
"""
import decimal
import os

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))


def write(name, ids, relevance):
    table = pa.table({"query_id": ids, "doc_id": ids, "relevance": relevance})
    pq.write_table(table, os.path.join(here, name), store_decimal_as_integer=True, compression="none", use_dictionary=False, store_schema=False)


write("judged_decimal.parquet", [1, 2], pa.array([decimal.Decimal("1.0"), decimal.Decimal("0.0")], pa.decimal128(2, 1)))
write("judged_float.parquet", pa.array([1234567.0, 1e7]), pa.array([1.0, 2.0], pa.float32()))
