package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Help is wrapped to the terminal's width. So a command's Long is written in paragraphs, whose line breaks mean nothing but where a line begins
// with a space: that stands as it is.

const (
	narrowest, widest = 60, 120
	otherwise         = 100 // where there is no terminal
)

// usageTemplate is cobra's, with wrapped lines and without what none of our commands has.
const usageTemplate = `Usage:
{{if .HasAvailableSubCommands}}  {{.CommandPath}} COMMAND{{else}}{{usage .UseLine}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$cmds := .Commands}}{{if not .Groups}}

Commands:{{range $cmds}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}}  {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}}  {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{flags .LocalFlags}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of {{.Parent.CommandPath}}:
{{flags .InheritedFlags}}{{end}}{{if .HasAvailableSubCommands}}

"{{.CommandPath}} COMMAND --help" says more of a command.{{end}}
`

const helpTemplate = `{{with or .Long .Short}}{{paragraphs .}}

{{end}}{{.UsageString}}`

func withHelp(root *cobra.Command) {
	cobra.AddTemplateFuncs(map[string]any{
		"paragraphs": func(text string) string { return paragraphs(text, helpWidth()) },
		"usage":      func(line string) string { return wrapped(line, "  ", "      ", helpWidth()) },
		"flags":      func(fl *pflag.FlagSet) string { return strings.TrimRight(fl.FlagUsagesWrapped(helpWidth()), "\n") },
	})
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpTemplate(helpTemplate)
}

func helpWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width <= 0 {
		return otherwise
	}
	return min(max(width, narrowest), widest)
}

// paragraphs wraps a text's paragraphs, which empty lines end and lines that stand as they are.
func paragraphs(text string, width int) string {
	var out, words []string
	end := func() {
		if len(words) > 0 {
			out, words = append(out, wrapped(strings.Join(words, " "), "", "", width)), nil
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, line)
		} else {
			words = append(words, line)
		}
	}
	end()
	return strings.Join(out, "\n")
}

// wrapped breaks a text between words: first stands before its first line, then before the others.
func wrapped(text, first, then string, width int) string {
	var b strings.Builder
	line := first
	for i, word := range strings.Fields(text) {
		if i > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line = then + word
		} else if i > 0 {
			line += " " + word
		} else {
			line += word
		}
	}
	return b.String() + line
}

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
