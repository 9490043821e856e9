package recipe

import (
	"cmp"
	"encoding/binary"
	"iter"
	"slices"

	"github.com/zeebo/xxh3"

	"contraflow/io/dataset"
)

// repeats counts rows whose query and positive, or documents, are those of an earlier row, and says where the first of them is, and where the earlier one.
func repeats(d *dataset.Dataset, index *dataset.Index, progress func(done, total int64)) (n int, first, of dataset.Location) {
	whole := ragged(d)
	rows := func(yield func(row int64, key dataset.Hash128) bool) {
		skip := index.Skip()
		var texts []dataset.Hash128
		var raw []byte
		for row := range d.Rows() {
			if len(skip) > 0 && skip[0] == row {
				skip = skip[1:]
				continue
			}
			if texts = index.Hashes(texts[:0], 0, 0, row); !whole {
				texts = texts[:min(2, len(texts))] // negatives may be drawn from lists
			}
			raw = raw[:0]
			for _, h := range texts {
				raw = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(raw, h.Hi), h.Lo)
			}
			if !yield(row, dataset.Hash128(xxh3.Hash128(raw))) {
				return
			}
		}
	}
	tell := func(done int64) {
		if progress != nil {
			progress(done, d.Rows())
		}
	}
	n, row, earlier := repeated(rows, d.Rows(), func(row int64) {
		if done := row + 1; done%4096 == 0 && done < d.Rows() {
			tell(done)
		}
	})
	tell(d.Rows())
	if n > 0 {
		first, of = d.Locate(row), d.Locate(earlier)
	}
	return n, first, of
}

// repeated counts rows with the key of an earlier one, and says which is the first of them, and which the earlier one. There are so many rows at most, each of
// which takes 16 bytes: keys are sorted, and what they can't say then is found by going through the rows again, as far as the first that repeats one.
// A map takes 45 bytes of each of 5 million rows, and 60 of each of 30 million.
func repeated(rows iter.Seq2[int64, dataset.Hash128], most int64, through func(row int64)) (n int, first, of int64) {
	compare := func(a, b dataset.Hash128) int { return cmp.Or(cmp.Compare(a.Hi, b.Hi), cmp.Compare(a.Lo, b.Lo)) }
	keys := make([]dataset.Hash128, 0, most)
	for row, key := range rows {
		keys = append(keys, key)
		through(row)
	}
	slices.SortFunc(keys, compare)
	twice := keys[:0] // those of several rows, each once
	var last dataset.Hash128
	for i, key := range keys {
		if i > 0 && key == last {
			if n++; len(twice) == 0 || twice[len(twice)-1] != key {
				twice = append(twice, key)
			}
		}
		last = key
	}
	if n == 0 {
		return 0, 0, 0
	}
	seen := make([]bool, len(twice))
	var repeat dataset.Hash128
	for row, key := range rows {
		at, several := slices.BinarySearchFunc(twice, key, compare)
		if several && seen[at] {
			first, repeat = row, key
			break
		}
		if several {
			seen[at] = true
		}
	}
	for row, key := range rows {
		if key == repeat {
			of = row
			break
		}
	}
	return n, first, of
}
