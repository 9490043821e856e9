package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestExamples: every command's help shows how it is used.
func TestExamples(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			if !strings.Contains(sub.Example, sub.CommandPath()) {
				t.Errorf("%s has no example, but %q", sub.CommandPath(), sub.Example)
			}
			walk(sub)
		}
	}
	walk(newRoot())
}
