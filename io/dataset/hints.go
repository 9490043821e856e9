package dataset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Data that other programs know by a name or a folder, and that are no files of a kind that is read here: what is said of them is how they become such.

var hubName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// folders are names of folders on many machines, and hardly of whose datasets are on the hub.
var folders = []string{"data", "dataset", "datasets", "files", "input", "inputs", "train"}

// packed are endings of files that hold others, or one that is compressed.
var packed = []string{".arrow", ".txt", ".gz", ".zst", ".tar", ".tgz", ".zip", ".bz2", ".xz", ".7z", ".zstd"}

// HubName tells a path that nothing lies at, in no folder that is here, and that looks like the name of a dataset on the Hugging Face hub, org/name.
func HubName(path string) bool {
	if !hubName.MatchString(path) || slices.Contains(folders, filepath.Dir(path)) || slices.Contains(slices.Concat(extensions, packed), strings.ToLower(filepath.Ext(path))) {
		return false
	}
	_, err := os.Stat(filepath.Dir(path)) // which is why nothing lies at the path
	return errors.Is(err, fs.ErrNotExist)
}

// onHub is what to say of a file that is not there, if it looks like the name of a dataset on the hub.
func onHub(path string) string {
	if !HubName(filepath.ToSlash(path)) {
		return ""
	}
	return fmt.Sprintf("; on the Hugging Face hub it is hf://datasets/%s, or files of it, such as hf://datasets/%[1]s/data/train-*.parquet", filepath.ToSlash(path))
}

// savedByDatasets is what to say of a folder in which Python's datasets has saved something, and how it becomes parquet; "" of any other.
func savedByDatasets(folder string) string {
	name := filepath.Base(folder) + ".parquet"
	for file, of := range map[string]string{"dataset_dict.json": `["train"]`, "dataset_info.json": ""} {
		if _, err := os.Stat(filepath.Join(folder, file)); err == nil {
			return fmt.Sprintf("%s is what Python's datasets saves to disk, in Arrow's format, which is not read here: datasets.load_from_disk(%q)%s.to_parquet(%q) makes a file that is", folder, folder, of, name)
		}
	}
	return ""
}

// arrowFile is what to say of a file in Arrow's format.
func arrowFile(path string) string {
	folder := filepath.Dir(path)
	if said := savedByDatasets(folder); said != "" {
		return said
	}
	return fmt.Sprintf("%s: Arrow's format is not read here: in Python, datasets.Dataset.from_file(%q).to_parquet(%q) makes a file that is", path, path, filepath.Base(path[:len(path)-len(filepath.Ext(path))])+".parquet")
}
