// Package prep turns raw pairs into training data: it normalizes, filters, deduplicates, decontaminates, splits, mixes and tokenizes rows of
// parquet, JSON lines and CSV, and writes sharded parquet with a dataset card.
//
// # The story
//
//  1. A [Config] names inputs and steps; [NewRules] makes row functions of it, plain functions of a row, the same on every runner.
//  2. All rows of all inputs have ids, in order. Inputs are cut into blocks, which can be read from any place, and blocks are
//     grouped into shards: consecutive rows, by the input's rows alone. What is read together is written together: rows are never shuffled.
//  3. The first pass ([Inputs.Keys]) normalizes and filters each row, and keeps what the survivors are compared by: 16 bytes for exact
//     duplicates, a sketch for near ones (near.go says how those are found).
//  4. The comparison drops ids. Of equal or similar rows the one with the smallest id stays.
//  5. The second pass ([Inputs.WriteShard]) reads each shard again and writes the rows that stay, with token ids and text
//     identities beside the texts ([contraflow/io/dataset] reads those), and counts everything.
//
// Reading twice is the price of never moving a text: engines hold kilobytes for every row that goes through a shuffle.
//
// # Runners
//
// [Run] does this in the process, spilling what it compares by to temporary files. Package onbeam does it as an Apache Beam pipeline on
// Prism, Flink, Spark or Dataflow. Both are made of the same two passes, and a row's fate depends on the rows alone, so the output is the same
// bytes with any runner and any parallelism.
//
// # Promises
//
// Every dropped row is counted by its rule, and the card shows the first of them. Every text that becomes fewer ids than it has is counted by its
// column, in the card and in the files, so that who trains with the ids is told. A row that can't be used is dropped and counted as
// unusable; a file that can't be read is an error, and so is a row on which a function panics: both name file, row group and row.
// Output that is not complete never looks complete (output.go).
//
// # Speed
//
// BenchmarkRun measures the in-process runner, BenchmarkFeed what training gains from ids, testdata/peers/prep.py a million rows with the
// memory they take.
package prep
