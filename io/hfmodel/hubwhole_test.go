package hfmodel

import (
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

const wholeName = "hf://datasets/org/name"

// What is meant of a dataset or a folder of it: to train on, to measure with, and all of it, by its card and by names.
func TestWhole(t *testing.T) {
	const card = "configs:\n- config_name: pair\n  data_files: [{split: train, path: pair/tr*}, {split: test, path: pair/te*}]\n- config_name: trip\n  data_files: [{split: train, path: trip/*}]\n"
	both := []string{"README.md", "pair/train.jsonl", "pair/test.jsonl", "trip/a.jsonl"}
	fold := "configs:\n- config_name: c\n  data_files: [{split: train, path: data/a.jsonl}, {split: dev, path: data/b.jsonl}, {split: test, path: other/c.jsonl}, {split: none, path: no/*}]\n"
	folded := []string{"data/a.jsonl", "data/b.jsonl", "data/c.jsonl", "other/c.jsonl", "third/d.jsonl"}
	const noted = "hf://datasets/org/name: its split "
	for _, c := range []struct {
		files        []string
		head, folder string
		part         part
		splits       dataset.Splits
		want, note   string // what is got, or what an error has; the note's beginning
	}{
		{both, card, "", part{}, dataset.All, "pair/test.jsonl pair/train.jsonl trip/a.jsonl", ""},
		{both, card, "", part{config: "pair"}, dataset.All, "pair/test.jsonl pair/train.jsonl", ""},
		{both, strings.Replace(card, "pair\n", "pair\n  default: true\n", 1), "", part{}, dataset.All, "pair/test.jsonl pair/train.jsonl", ""},
		{both, card, "", part{"pair", "test"}, dataset.All, "pair/test.jsonl", ""},
		{both, card, "", part{config: "none"}, dataset.All, `no configuration "none", but pair, trip`, ""},
		{both, card, "", part{}, dataset.HeldOut, "none is the default: name one", ""},
		{both, card, "", part{config: "pair"}, dataset.HeldOut, "pair/test.jsonl", noted + "test is what is measured with, of test, train; ?config=pair&split=NAME behind it names another"},
		{both, card, "", part{config: "trip"}, dataset.HeldOut, "trip/a.jsonl", noted + "train is"},
		{both, card, "", part{"pair", "train"}, dataset.HeldOut, "pair/train.jsonl", ""},
		{both, card, "pair", part{}, dataset.Train, "pair/train.jsonl", ""},
		{both, card, "pair", part{}, dataset.All, "pair/test.jsonl pair/train.jsonl", ""},
		{both, card, "trip", part{}, dataset.Train, "trip/a.jsonl", ""},
		{both, card, "trip", part{config: "pair"}, dataset.Train, "it has 4 files", ""},
		{both, strings.ReplaceAll(card, "trip/*", "pair/*"), "pair", part{}, dataset.Train, "files of its folder pair are of the configurations pair, trip: name one, as in hf://datasets/org/name/pair?config=pair", ""},
		{both, strings.ReplaceAll(card, "trip", "default"), "pair", part{}, dataset.Train, "pair/train.jsonl", ""},
		{both, strings.ReplaceAll(strings.ReplaceAll(card, "trip/*", "pair/*"), "trip", "default"), "pair", part{}, dataset.Train, "pair/test.jsonl pair/train.jsonl", ""},
		{folded, fold, "data", part{}, dataset.Train, "data/a.jsonl", ""},
		{folded, fold, "data", part{split: "dev"}, dataset.Train, "data/b.jsonl", ""},
		{folded, fold, "data", part{}, dataset.HeldOut, "data/b.jsonl", "hf://datasets/org/name/data: its split dev is"},
		{folded, fold, "", part{}, dataset.HeldOut, "other/c.jsonl", noted + "test is"},
		{folded, fold, "third", part{}, dataset.Train, `no configuration of its card, README.md, has files in the folder "third"`, ""},
		{folded, fold, "", part{split: "none"}, dataset.Train, `its card, README.md, has no/* for the split "none" of the configuration "c", which no file of data in it matches; files of it may be named, as in hf://datasets/org/name/data/a.jsonl`, ""},
		{folded, fold, "", part{}, dataset.All, `has no/* for the split "none"`, ""},
		{folded, "configs:\n- config_name: c\n  data_files: [data/a.jsonl, gone.jsonl]\n", "", part{}, dataset.Train, "has gone.jsonl for the split", ""},
		{folded, "configs:\n- config_name: c\n  data_files: [data/a.jsonl, data/*.jsonl]\n", "", part{}, dataset.Train, "data/a.jsonl data/b.jsonl data/c.jsonl", ""}, // each once
		{[]string{"train.jsonl", "validation.jsonl", "eval.jsonl"}, "", "", part{}, dataset.HeldOut, "eval.jsonl", noted + "test is"},
		{[]string{"train.jsonl", "validation.jsonl", "dev-x.jsonl"}, "", "", part{}, dataset.HeldOut, "dev-x.jsonl validation.jsonl", noted + "validation is"},
		{[]string{"data/a-00000-of-00001.jsonl", "data/b-00000-of-00001.jsonl"}, "", "", part{}, dataset.HeldOut, "neither the split test nor validation, but a, b: name one, as in hf://datasets/org/name?split=a", ""},
		{[]string{"train.jsonl", "test.parquet", "train.csv", "dev.csv"}, "", "", part{}, dataset.Train, "train.jsonl", ""}, // the split before the kind
		{[]string{"train.jsonl", "test.parquet", "train.csv", "dev.csv"}, "", "", part{}, dataset.All, "dev.csv test.parquet train.jsonl", ""},
		{[]string{"train.json", "test.json", "state.json", "LICENSE.json"}, "", "", part{}, dataset.Train, "train.json", ""},
		{[]string{"a.json.gz", "b.jsonl.zst", "state.json", "x/config.json", "d.txt"}, "", "", part{}, dataset.Train, "a.json.gz b.jsonl.zst", ""},
		{[]string{"a.tsv", "b.tsv.gz", "README.md"}, "", "", part{}, dataset.Train, "a.tsv b.tsv.gz", ""},
	} {
		note := ""
		w := whole{url: path.Join(wholeName[len("hf:/"):], c.folder), files: c.files, folder: c.folder, part: c.part, splits: c.splits, note: func(m string) { note += m }}
		w.url = "hf:/" + w.url
		if c.head != "" {
			w.card = []byte("\ufeff \n\n---  \nlicense: mit\n" + c.head + "language: en\n--- \n# Text\n")
		}
		files, err := w.pick()
		got := strings.Join(files, " ")
		if err != nil {
			if got = err.Error(); strings.Contains(got, c.want) {
				got = c.want
			}
		}
		if got != c.want || !strings.HasPrefix(note, c.note) || (note == "") != (c.note == "") {
			t.Errorf("%q, folder %q, %v, %v: %q, note %q\nwant %q, note %q", c.head, c.folder, c.part, c.splits, got, note, c.want, c.note)
		}
	}
}

// Offline the same files are taken as online, or it is an error that says what is missing.
func TestDataOffline(t *testing.T) {
	const one = "{\"query\": \"a\"}\n"
	listed := "---\nconfigs:\n- config_name: c\n  data_files: [{split: train, path: [a.jsonl, b.jsonl]}, {split: test, path: t*}]\n---\n"
	shards := []string{"data/train-00000-of-00003.jsonl", "data/train-00001-of-00003.jsonl", "data/train-00002-of-00003.jsonl", "data/test-00000-of-00001.jsonl"}
	for _, c := range []struct {
		name   string
		files  []string
		card   string   // "": none
		first  []string // what is read online, behind the dataset's name
		then   string
		splits dataset.Splits
		want   string // of the files' names, or an error
	}{
		{"no card there", []string{"a.jsonl", "b.jsonl"}, "", []string{""}, "", dataset.Train, "a.jsonl b.jsonl"},
		{"card without configs", []string{"a.jsonl", "b.jsonl"}, "# A\n", []string{""}, "", dataset.Train, "a.jsonl b.jsonl"},
		{"card not there", []string{"pair/train.jsonl", "trip/train.jsonl"}, "# A\n", []string{"/pair/train.jsonl", "/trip/train.jsonl"}, "", dataset.Train, "README.md, is not in the cache, and without it nobody knows its configurations and splits: it takes to be online once, or files that are named, as in hf://datasets/org/name/pair/train.jsonl"},
		{"nor for a configuration", []string{"pair/train.jsonl", "trip/train.jsonl"}, "# A\n", []string{"/pair/train.jsonl", "/trip/train.jsonl"}, "?config=pair", dataset.Train, "README.md, is not in the cache"},
		{"nor splits", []string{"a.jsonl", "train.jsonl"}, "# A\n", []string{"/a.jsonl"}, "", dataset.Train, "README.md, is not in the cache"},
		{"clear without", []string{"train.jsonl", "test.jsonl"}, "# A\n", []string{"/*.jsonl"}, "", dataset.Train, "train.jsonl"},
		{"by names", []string{"pair/train.jsonl", "trip/train.jsonl"}, "# A\n", []string{"/pair/train.jsonl"}, "/pair/*", dataset.Train, "train.jsonl"},
		{"part of a list", []string{"a.jsonl", "b.jsonl", "t.jsonl"}, listed, []string{"?split=test", "/a.jsonl"}, "", dataset.Train, `b.jsonl, of the split "train" of the configuration "c", is not in the cache: it takes to be online once`},
		{"all of a list", []string{"a.jsonl", "b.jsonl", "t.jsonl"}, listed, []string{""}, "", dataset.Train, "a.jsonl b.jsonl"},
		{"test is not there", []string{"a.jsonl", "b.jsonl", "t.jsonl"}, listed, []string{""}, "", dataset.HeldOut, `t*, of the split "test"`},
		{"nor by names", []string{"train.jsonl", "test.jsonl"}, "# A\n", []string{""}, "", dataset.HeldOut, "its split test is not in the cache, which has train: it takes to be online once, or to name one, as in hf://datasets/org/name?split=train"},
		{"but here", []string{"train.jsonl", "test.jsonl"}, "# A\n", []string{"?split=test"}, "", dataset.HeldOut, "test.jsonl"},
		{"shards", shards, "# A\n", []string{"?split=test", "/" + shards[1]}, "", dataset.Train, "data/train-00000-of-00003.jsonl, data/train-00002-of-00003.jsonl of it are not in the cache: it takes to be online once"},
		{"shards by a glob", shards, "# A\n", []string{"/" + shards[1]}, "/data/train-*", dataset.Train, "data/train-00000-of-00003.jsonl, data/train-00002-of-00003.jsonl of it"},
		{"one shard", shards, "# A\n", []string{"/" + shards[1]}, "/" + shards[1], dataset.Train, "train-00001-of-00003.jsonl"},
		{"all shards", shards, "# A\n", []string{""}, "", dataset.Train, "train-00000-of-00003.jsonl train-00001-of-00003.jsonl train-00002-of-00003.jsonl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			noEnvironment(t)
			h := newFakeHub(t)
			h.files = map[string]string{}
			for _, f := range c.files {
				h.files[f] = one
			}
			if c.card != "" {
				h.files[cardName] = c.card
			}
			serveData(t, h)
			for _, url := range c.first {
				if _, err := Data(t.Context(), wholeName+url, Options{}); err != nil {
					t.Fatal(err)
				}
			}
			h.token = "now private"
			for _, offline := range []bool{true, false} { // or the hub answers no more
				notes := ""
				files, err := Data(t.Context(), wholeName+c.then, Options{Splits: c.splits, Offline: offline, Warn: func(m string) { notes += m }})
				for i := range files {
					files[i] = filepath.Base(files[i])
				}
				got := strings.Join(files, " ")
				if err != nil {
					if got = err.Error(); strings.Contains(got, c.want) {
						got = c.want
					}
				}
				if got != c.want || err == nil && strings.Contains(notes, "using the cached files of "+wholeName) == offline {
					t.Errorf("offline %v: %q, notes %q; want %q", offline, got, notes, c.want)
				}
			}
		})
	}
}

// What is read by a URL as a path notes where the cache is used; a card that can't be had is an error that says so; a glob does not mean what is no data.
func TestDataNotes(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files = map[string]string{cardName: "# A\n", "LICENSE": "free", "train.jsonl": "{\"query\": \"a\"}\n", "test.jsonl": "{\"query\": \"b\"}\n"}
	serveData(t, h)
	h.serve = func(w http.ResponseWriter, _ *http.Request, name string) bool {
		if name == cardName {
			fail(w, 403, "GatedRepo", "not for you")
		}
		return name == cardName
	}
	if _, err := Data(t.Context(), wholeName, Options{}); err == nil || !strings.Contains(err.Error(), "download of "+wholeName+": ") || !strings.Contains(err.Error(), cardName) {
		t.Errorf("a card that can't be had: %v", err)
	}
	h.serve = nil
	files, err := Data(t.Context(), wholeName+"/*", Options{})
	if err != nil || len(files) != 2 {
		t.Errorf("a glob: %q, %v", files, err)
	}
	if _, err := Data(t.Context(), wholeName+"/q/*.jsonl", Options{}); err == nil || !strings.Contains(err.Error(), `it has 4 files, such as ["LICENSE" "README.md" "test.jsonl"], none of which matches`) {
		t.Errorf("a glob of nothing: %v", err)
	}
	if files, err = Data(t.Context(), wholeName+"/LICENSE", Options{}); err != nil || len(files) != 1 {
		t.Errorf("a name: %q, %v", files, err)
	}
	notes := []string{}
	read := func(splits dataset.Splits, want string) {
		t.Helper()
		ctx := dataset.WithNote(t.Context(), func(m string) { notes = append(notes, m) })
		d, err := dataset.Open(ctx, dataset.Source{Paths: []string{wholeName}, Splits: splits, Query: "query", Positive: "query"})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if got := filepath.Base(d.Locate(0).File); got != want {
			t.Errorf("%v: %s, want %s", splits, got, want)
		}
	}
	read(dataset.Train, "train.jsonl")
	read(dataset.HeldOut, "test.jsonl")
	if !slices.Equal(notes, []string{wholeName + ": its split test is what is measured with, of test, train; ?split=NAME behind it names another"}) {
		t.Errorf("notes %q", notes)
	}
	h.token = "now private"
	notes = nil
	read(dataset.Train, "train.jsonl")
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "using the cached files of "+wholeName+": ") {
		t.Errorf("notes %q", notes)
	}
	_, err = dataset.LoadRetrieval(t.Context(), wholeName+"?config=pair", "", "")
	if want := wholeName + "?config=pair: a dataset that is a task by itself"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "without it, it is "+wholeName+"; or the corpus") {
		t.Errorf("a task's configuration: %v, want %q", err, want)
	}
}
