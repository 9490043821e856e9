// Package help is how both programs show what their commands and flags are: wrapped to the terminal's width.
//
// So a command's Long is written in paragraphs, whose line breaks mean nothing but where a line begins with a space: that stands as it is.
package help

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

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

// Show has a program's commands show their help so.
func Show(root *cobra.Command) {
	cobra.AddTemplateFuncs(map[string]any{
		"usage": func(line string) string { return Wrapped(line, "  ", "      ", Width()) },
		"flags": func(fl *pflag.FlagSet) string { return strings.TrimRight(fl.FlagUsagesWrapped(Width()), "\n") },
	})
	root.SetUsageTemplate(usageTemplate)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintf(c.OutOrStdout(), "%s\n\n%s", paragraphs(cmp.Or(c.Long, c.Short), Width()), c.UsageString())
	})
}

// Width is how wide help is.
func Width() int {
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
			out, words = append(out, Wrapped(strings.Join(words, " "), "", "", width)), nil
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if line == "" || line[0] == ' ' || line[0] == '\t' {
			end()
			out = append(out, line)
		} else {
			words = append(words, line)
		}
	}
	end()
	return strings.Join(out, "\n")
}

// Wrapped breaks a text between words: first stands before its first line, then before the others.
func Wrapped(text, first, then string, width int) string {
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
