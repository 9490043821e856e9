package dataset

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A temporary file leaves nothing behind, and what is wrong with one says how to have it elsewhere: of texts, and of rows that are unpacked.
func TestScratch(t *testing.T) {
	folder := write(t, map[string]string{"c.tsv": "id\ttext\nx\tone\n", "c.jsonl": `{"id": "x", "text": "one"}` + "\n"})
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	t.Setenv("TMP", temporary)
	s, err := newScratch("texts")
	if err != nil {
		t.Fatal(err)
	}
	left := func() int {
		files, err := os.ReadDir(temporary)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	if n := left(); n > 0 != (runtime.GOOS == "windows") { // so that a run that is killed leaves none
		t.Errorf("%d files have a name", n)
	}
	if s.dispose(); left() > 0 {
		t.Error("a file is left")
	}
	const want = "for which TMPDIR (on Windows TMP) names a folder with room"
	if _, err := s.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	t.Setenv("TMPDIR", filepath.Join(temporary, "nowhere"))
	t.Setenv("TMP", filepath.Join(temporary, "nowhere"))
	for _, name := range []string{"c.tsv", "c.jsonl"} {
		if _, err := OpenTexts(t.Context(), TextSource{Paths: []string{filepath.Join(folder, name)}}, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
