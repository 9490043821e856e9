package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// oneOf is a flag that takes one of a few words, which its help shows and a shell completes.
func oneOf(cmd *cobra.Command, value *string, flag, byDefault, usage string, words ...string) {
	*value = byDefault
	cmd.Flags().Var(&choice{value, words}, flag, usage)
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // there is such a flag
}

type choice struct {
	value *string
	words []string
}

func (c *choice) String() string { return *c.value }
func (c *choice) Type() string   { return strings.Join(c.words, "|") }
func (c *choice) Set(v string) error {
	if !slices.Contains(c.words, v) {
		return notOne(c.words)
	}
	*c.value = v
	return nil
}

// notOne is the error of a word that is none of those.
type notOne []string

func (e notOne) Error() string { return "want " + either(e) }

// either lists words of which one is to be chosen.
func either(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return fmt.Sprintf("%s or %s", strings.Join(words[:last], ", "), words[last])
}
