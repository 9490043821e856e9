package main

import (
	"strings"
	"testing"

	"contraflow/stages/quickstart"
)

// What quickstart says to do next are commands with flags that there are: for a reranker too, where it has trained one.
func TestAfterQuickstart(t *testing.T) {
	for want, rep := range map[string]*quickstart.Report{
		"embed eval train": {Example: `says "what"`}, "embed eval rerank train": {Example: "reads", Rerank: &quickstart.RerankReport{}},
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
