package dataset

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What other programs take for data, and is none here, is answered with how it becomes some.
func TestHints(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"saved/dataset_info.json", "saved/state.json", "saved/data-00000-of-00001.arrow", "splits/dataset_dict.json", "splits/train/dataset_info.json", "loose.arrow", "plain/a.txt", "org/name/a.txt",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	for path, want := range map[string]string{
		"sentence-transformers/all-nli":   "open sentence-transformers/all-nli: no such file or directory; on the Hugging Face hub it is hf://datasets/sentence-transformers/all-nli, or files of it, such as hf://datasets/sentence-transformers/all-nli/data/train-*.parquet",
		"./sentence-transformers/all-nli": "no such file or directory$",
		"data/nli.parquet":                "no such file or directory$",
		"data/nli":                        "no such file or directory$",
		"a/b/c":                           "no such file or directory$",
		"org/name":                        "org/name is a folder: name its files, as in org/name/*.parquet",
		"saved":                           `saved is what Python's datasets saves to disk, in Arrow's format, which is not read here: datasets.load_from_disk("saved").to_parquet("saved.parquet") makes a file that is`,
		"splits":                          `datasets.load_from_disk("splits")["train"].to_parquet("splits.parquet")`,
		"saved/data-00000-of-00001.arrow": `datasets.load_from_disk("saved").to_parquet("saved.parquet")`,
		"saved/*.arrow":                   `datasets.load_from_disk("saved").to_parquet("saved.parquet")`,
		"loose.arrow":                     `loose.arrow: Arrow's format is not read here: in Python, datasets.Dataset.from_file("loose.arrow").to_parquet("loose.parquet") makes a file that is`,
		"plain":                           "plain is a folder: name its files",
		"plain/a.txt":                     "plain/a.txt: not known as data by its name",
	} {
		_, err := Open(t.Context(), Source{Paths: []string{path}, Query: "query", Positive: "positive"})
		end, whole := strings.CutSuffix(want, "$")
		if !errors.Is(err, ErrNoFiles) || !strings.Contains(err.Error(), end) || whole && !strings.HasSuffix(err.Error(), end) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
