package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"contraflow/cmd/internal/help"
)

// TestHelp: every command's help shows how it is used, in lines that fit, but for what is to be copied, and what flags are if nobody gives them.
func TestHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if !strings.Contains(sub.Example, sub.CommandPath()) {
				t.Errorf("%s has no example, but %q", sub.CommandPath(), sub.Example)
			}
			var text strings.Builder
			sub.SetOut(&text)
			if err := sub.Help(); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(strings.Replace(text.String(), sub.Example, "", 1)) {
				if line = strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) > help.Width() && !strings.Contains(sub.Long, "\n"+line) {
					t.Errorf("%s --help has a line of more than %d columns: %s", sub.CommandPath(), help.Width(), line)
				}
			}
			sub.Flags().VisitAll(func(f *pflag.Flag) { // which a variable that another command has too would not have
				if v := f.Value.String(); f.DefValue != "" && v != f.DefValue {
					t.Errorf("%s --%s is %s, where its help says that it is %s", sub.CommandPath(), f.Name, v, f.DefValue)
				}
			})
			walk(sub)
		}
	}
	walk(newRoot())
}

// A plan's lines go on under what they say.
func TestFolded(t *testing.T) {
	text := "memory   " + strings.Repeat("model 5 MiB, ", 6) + "rest\nfits     yes\n  reduce   " + strings.Repeat("x", 70)
	want := "memory   model 5 MiB, model 5 MiB, model 5 MiB, model 5 MiB,\n         model 5 MiB, model 5 MiB, rest\nfits     yes\n  reduce   " + strings.Repeat("x", 70)
	if got := folded(text, 60); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := folded(text, 0); got != text {
		t.Errorf("without a terminal %q", got)
	}
}
