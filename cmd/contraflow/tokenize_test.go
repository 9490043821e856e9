package main

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// A line that is no text ends tokenize, after what comes before it is printed.
func TestTokenizeBadLine(t *testing.T) {
	model := goldens.Path(t, "bert/minilm-tiny")
	want := contraflow(t, "fox\nriver\n", "tokenize", "--model", model).stdout
	for _, c := range []struct {
		in, want string
		more     []string
	}{
		{"fox\nriver\n\xff\ncat\n", "line 3: not valid UTF-8", nil}, {"fox\nriver\n\xff", "line 3: not valid UTF-8", nil},
		{"\"fox\"\n\"river\"\ncat\n", "line 3: not a JSON string", []string{"--json"}},
		{"\"fox\"\n\"river\"\nnull\n\"cat\"\n", "line 3: not a JSON string: null", []string{"--json"}},
	} {
		r := contraflow(t, c.in, append([]string{"tokenize", "--model", model}, c.more...)...)
		if r.code != 1 || strings.Count(want, "\n") != 2 || r.stdout != want || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%q: exit code %d, %q, want %q\n%s", c.in, r.code, r.stdout, want, r.stderr)
		}
	}
}

// Whoever waits for an answer to a line gets it before the next one.
func TestTokenizeAnswers(t *testing.T) {
	cmd := exec.Command(binary, "tokenize", "--model", goldens.Path(t, "bert/minilm-tiny"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := harness.Start(t, cmd)
	for i := range 2 {
		if _, err := io.WriteString(in, "fox\n"); err != nil {
			t.Fatal(err)
		}
		p.Until(t, "an answer", func() bool { return strings.Count(p.Said.String(), "]\n") == i+1 })
	}
	in.Close()
	if err := <-p.Ended; err != nil {
		t.Error(err)
	}
}
