package dataset

import "testing"

// Of a dataset's files some are no data by their names, wherever they lie and however they are written; what is data has an ending that is read.
func TestKnownData(t *testing.T) {
	for name, want := range map[string]struct{ no, known bool }{
		"README.md": {no: true}, "x/config.json": {no: true}, "dataset_info.json": {no: true}, "dataset_infos.json": {no: true}, "dataset_dict.json": {no: true}, "state.json": {no: true},
		".gitattributes": {no: true}, "a/.gitignore": {no: true}, "LICENSE": {no: true}, "licence": {no: true}, "License.txt": {no: true}, "licence.csv": {no: true},
		"license.parquet": {known: true}, "licences.csv": {known: true}, "config.jsonl": {known: true}, "readme.md/a.tsv": {known: true}, "a.json": {known: true}, "a.csv.gz": {known: true}, "a.jsonl.zst": {known: true},
		"a.parquet": {known: true}, "a.parquet.gz": {}, "a.txt": {}, "a": {}, "parquet": {},
	} {
		if no, known := NoData(name), KnownData(name); no != want.no || known != want.known {
			t.Errorf("%s: no data %v, data %v; want %+v", name, no, known, want)
		}
	}
}
