package tokenize

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sources is this package's own source, in pieces of about a document each: text that every machine has.
func sources(b *testing.B) (texts []string, size int64) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		size += int64(len(data))
		for piece := range slices.Chunk(strings.SplitAfter(string(data), "\n"), 20) {
			texts = append(texts, strings.Join(piece, ""))
		}
	}
	return texts, size
}

// One thread of a shared AMD EPYC: 100 MB/s here; with MiniLM's vocabulary of 30,522, 145 on Go sources and 115 on their
// comments, where Hugging Face's encode_batch_fast reaches 3.3.
func BenchmarkAppend(b *testing.B) {
	tok := load(b, "uncased")
	texts, size := sources(b)
	b.SetBytes(size)
	b.ReportAllocs()
	var ids []int32
	for b.Loop() {
		for _, text := range texts {
			ids, _ = tok.Append(ids[:0], text, 0)
		}
	}
}

// BenchmarkFamilies tokenizes the same with the families' pipelines; the vocabularies are small ones (1,600 tokens).
func BenchmarkFamilies(b *testing.B) {
	texts, size := sources(b)
	for row := range familyRows(b, "families.jsonl.gz") {
		tok, err := parseTokenizerJSON(row.File, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(row.Name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			var ids []int32
			for b.Loop() {
				for _, text := range texts {
					ids, _ = tok.Append(ids[:0], text, 0)
				}
			}
		})
	}
}

// BenchmarkJoin joins the symbols of words of some lengths in both ways.
func BenchmarkJoin(b *testing.B) {
	merges, words := joinExamples(b)
	for _, n := range []int{16, 32, 64, 200} {
		for name, join := range map[string]func(*mergeTable, *merging) []int32{"pairs": (*mergeTable).joinShort, "heap": (*mergeTable).joinLong} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				var w merging
				for b.Loop() {
					w.ids = append(w.ids[:0], words[:n]...)
					join(merges, &w)
				}
			})
		}
	}
}

// BenchmarkGiven tokenizes given texts with a given tokenizer and keeps the ids, for testdata/peers/tokenize/speed.py, which has it do so
// once: JSON strings, a text a line.
func BenchmarkGiven(b *testing.B) {
	folder, file := os.Getenv("CONTRAFLOW_BENCH_MODEL"), os.Getenv("CONTRAFLOW_BENCH_TEXTS")
	if folder == "" {
		b.Skip("CONTRAFLOW_BENCH_MODEL and CONTRAFLOW_BENCH_TEXTS name no folder and file")
	}
	tok, err := Load(folder)
	if err != nil {
		b.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var texts []string
	size := 0
	for line := range bytes.Lines(data) {
		var text string
		if err := json.Unmarshal(line, &text); err != nil {
			b.Fatal(err)
		}
		texts = append(texts, text)
		size += len(text)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		all := make([][]int32, len(texts))
		for i, text := range texts {
			all[i] = tok.Encode(text, 0)
		}
	}
}

// BenchmarkHardLines is mostly outside ASCII.
func BenchmarkHardLines(b *testing.B) {
	tok := load(b, "uncased")
	texts := goldenTexts(b)
	b.SetBytes(int64(len(strings.Join(texts, ""))))
	var ids []int32
	for b.Loop() {
		for _, text := range texts {
			ids, _ = tok.Append(ids[:0], text, 0)
		}
	}
}

func BenchmarkEncodeAll(b *testing.B) {
	tok := load(b, "uncased")
	texts, size := sources(b)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.EncodeAll(context.Background(), texts, 128, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTrain(b *testing.B) {
	texts, size := sources(b)
	b.SetBytes(size)
	for b.Loop() {
		if _, err := TrainWordPiece(b.Context(), slices.Values(texts), TrainOptions{VocabSize: 2000, Lowercase: true}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		load(b, "uncased")
	}
}
