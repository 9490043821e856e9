package main

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/quickstart"
	"contraflow/testdata/harness"
)

// What quickstart says to do next are commands with flags that there are: for a reranker too, where it has trained one.
func TestAfterQuickstart(t *testing.T) {
	for want, rep := range map[string]*quickstart.Report{
		"embed eval train": {Example: "says"}, "embed eval rerank train": {Example: "reads", Rerank: &quickstart.RerankReport{}},
	} {
		var commands []string
		for line := range strings.Lines(afterQuickstart("q", rep)) {
			if args := commandLine(line); args != nil {
				commands = append(commands, args[0])
				checkCommand(t, "quickstart", args)
			}
		}
		if got := strings.Join(commands, " "); got != want {
			t.Errorf("commands %s, want %s", got, want)
		}
	}
}

// In Windows' shells a path is taken as it is, and a text is in the quotes that both know.
func TestWordsOnWindows(t *testing.T) {
	for s, want := range map[string]string{`q\model`: `q\model`, `C:\my q\model`: `"C:\my q\model"`, `it's`: `"it's"`, `says "so"`: `"says \"so\""`} {
		if got := wordFor("windows", s); got != want {
			t.Errorf("%s is %s, want %s", s, got, want)
		}
	}
}

// A shell reads them as they are meant, whatever the folder is called and whatever the comment has in it.
func TestAfterQuickstartInAShell(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if runtime.GOOS == "windows" {
		t.Skip("words are for its own shells")
	}
	if err != nil {
		harness.Missing(t, "no shell: %v", err)
	}
	const example = "says \"what\" `is` in $HOME, and the caller's"
	lines := strings.Split(afterQuickstart("it's my q", &quickstart.Report{Example: example}), "\n")
	for i, want := range [][]string{{"embed", "--model", "it's my q/model", "--text", example},
		{"eval", "--model", "it's my q/model", "--queries", "it's my q/queries.parquet", "--corpus", "it's my q/corpus.parquet", "--qrels", "it's my q/qrels.parquet", "--bm25"}} {
		out, err := exec.Command(sh, "-c", "contraflow() { printf '%s\\n' \"$@\"; }\n"+lines[i]).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s\nis %q, want %q: %v", lines[i], got, want, err)
		}
	}
}
