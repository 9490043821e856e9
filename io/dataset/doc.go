// Package dataset turns files of texts into the batches of a training run, in one order that everybody agrees on.
//
// # The story
//
//  1. A [Source] names files and columns. [Open] finds them, in parquet by the footers, in JSON lines in one pass (which .csv and
//     .tsv files become, csv.go, and JSON arrays, jsonarray.go), and checks every column by its shape before anything is read. Rows are numbered through
//     all files: a row's id is its position. Rows that a program has in memory are a dataset likewise ([FromRows]).
//  2. Files are cut into blocks of up to 4,096 rows. A block is what is read and decoded at once, from any place.
//  3. [Dataset.Index] is the first pass: it checks every text and keeps its identity, 128 bits. It is needed for
//     no-duplicates batches only, and takes 20 bytes per text.
//  4. [Order] is the epoch's sequence of rows: blocks shuffled into windows, rows shuffled in each window. It can be
//     entered anywhere. [Sampler] cuts it into global batches; its [Cursor] is all that a checkpoint keeps of the data.
//     Neither touches a file: every rank computes the same sequence and reads its part of each batch.
//  5. [Reader] fetches the texts of row ids, decoding each block once while its window lasts.
//
// Files that contraflow prep has written hold token ids beside the texts, and the texts' identities: with [Source].Tokens both are read in place
// of the texts (tokens.go).
//
// Rows may name texts by their ids, of files with a corpus and queries that [OpenTexts] has read (texts.go), and rows that are judgements of what is not
// relevant are left out (relevance.go).
//
// Beside the path of training there are [OpenTable] (files with all their columns, to add embeddings to),
// [NewParquetWriter], [LoadRetrieval] and [LoadPairs].
//
// # Promises
//
// The sequence of batches is a function of the data, the seed, the epoch and the configuration. Threads, ranks, caches
// and time don't enter. Which texts of a list column a row uses is a function of (seed, epoch, row, column).
//
// No row is lost without a number: a bad row is an error that names file, row group, row (from 0 in its file) or line, and
// column ([RowError]); rows that an epoch drops are counted ([Stats]).
//
// Damaged files are errors, never panics, hangs or gigabytes: lengths are checked before they are believed, page
// checksums are verified where there are any. Without checksums, changed texts can't be told from texts: write them
// (write_page_checksum=True in pyarrow; this package's writer always does).
//
// # Speed
//
// Decoding a million rows of query and positive (215 bytes) and 250,000 of query, pos and neg lists (667 bytes) on one
// thread of an AMD EPYC, in million rows a second, beside pyarrow 26 (iter_batches of 4,096 rows, one thread, same files,
// alternating):
//
//	               dataset   pyarrow
//	texts, snappy     3.6       2.3
//	texts, zstd       4.5       5.2    three quarters of it in zstd itself: C there, Go and assembly here
//	lists, snappy     1.2       0.75
//
// Blocks decode side by side. The million rows shuffled, in batches of 4,096, two threads: 0.85 to 1.0 million rows/s, the
// process at most 91 MiB large (168 MiB with the index and no duplicates). No-duplicates batches of 65,536 over a million
// rows: 3.2 to 4.0 million rows/s when texts don't repeat, 0.61 to 0.65 when each occurs eight times, with 80,000 rows waiting.
package dataset
