"""Judgements, scores and texts whose parquet types are not those of their values.

    python judged.py        (pyarrow)

Writes judged_decimal.parquet, in which a relevance of 1.0 is stored as 10 (as DuckDB and Spark write decimals), and judged_float.parquet, whose ids are
the numbers 1234567 and 10000000 as float64, which pandas makes of a column of integers that has gaps, and its relevance float32. In judged_unsigned.parquet
ids are beyond the signed integers of their size, and a relevance of 8 bits is below 0. The labels of judged_truth.parquet and judged_truth_v2.parquet are true
and false, which pages of version 2 have as runs of bits. Of nothing.parquet all titles and weights are null, and all lists of negatives empty: Arrow's types of
these are null and list<null>, which pandas writes of them.
"""
import decimal
import os

import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))


def write(name, version="1.0", **columns):
    pq.write_table(pa.table(columns), os.path.join(here, name), store_decimal_as_integer=True, compression="none", use_dictionary=False, store_schema=False,
                   data_page_version=version)


decimals = pa.array([decimal.Decimal("1.0"), decimal.Decimal("0.0")], pa.decimal128(2, 1))
write("judged_decimal.parquet", query_id=[1, 2], doc_id=[1, 2], relevance=decimals)
write("judged_float.parquet", query_id=[1234567.0, 1e7], doc_id=[1234567.0, 1e7], relevance=pa.array([1.0, 2.0], pa.float32()))

write("judged_unsigned.parquet", query_id=pa.array([2**63 + 5], pa.uint64()), doc_id=pa.array([2**31 + 7], pa.uint32()), relevance=pa.array([-1], pa.int8()))
for name, version, encoding in ("judged_truth.parquet", "1.0", "PLAIN"), ("judged_truth_v2.parquet", "2.0", "RLE"):
    write(name, version, query=["a", "b", "c", "d"], positive=["e", "f", "g", "h"], label=[True, False, True, True])
    assert encoding in pq.read_metadata(os.path.join(here, name)).row_group(0).column(2).encodings
write("nothing.parquet", _id=["a", "b"], text=["one", "two"], title=pa.nulls(2), neg=pa.array([[], []], pa.list_(pa.null())), weight=pa.nulls(2))
