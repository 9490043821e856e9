package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/stages/embedder"
)

// promptFlags say what embed puts before texts: one of the model's prompts by its name, or a text.
type promptFlags struct{ name, text string }

func (p *promptFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&p.name, "prompt", "", "the `NAME` of one of the model's prompts, to put before each text: query and document are what eval and mine put before queries and documents (document is the model's passage or corpus where it has no other), \"\" is none (default: the model's default prompt, if it has one). A multi_vector reads texts as queries with query, as documents otherwise (default: document); so does a sparse encoder whose queries are weights of tokens")
	fl.StringVar(&p.text, "prompt-text", "", "a `TEXT` to put before each text, instead of one of the model's prompts")
}

// given tells which of the flags are.
func (p *promptFlags) given(cmd *cobra.Command) (name, text bool) {
	return cmd.Flags().Changed("prompt"), cmd.Flags().Changed("prompt-text")
}

// options give the model the text as a prompt, of the name by which it is read as a query or a document.
func (p *promptFlags) options(cmd *cobra.Command) []embedder.Option {
	if _, text := p.given(cmd); text {
		return []embedder.Option{embedder.Prompt(p.textName(), p.text)}
	}
	return nil
}

// role is what texts are read as.
func (p *promptFlags) role() embedder.Role {
	if p.name == "query" {
		return embedder.Query
	}
	return embedder.Document
}

func (p *promptFlags) textName() string { return cmp.Or(p.name, "--prompt-text") } // which is none of the model's, and no query's

// settle finds the name of the prompt that the loaded model puts before texts, "" for none, and says what may not have been meant.
func (p *promptFlags) settle(cmd *cobra.Command, f *modelFlags, e *embedder.Embedder) (name string, err error) {
	named, text := p.given(cmd)
	role := p.name == "query" || p.name == "document"
	switch {
	case named && text && !((e.VectorsAlone() || e.WeighsQueries()) && role):
		return "", usageError{errors.New("--prompt is the name of one of the model's prompts, --prompt-text a text instead of it: give one or the other")}
	case text:
		sayNamed(cmd, e, "prompt-text", p.text)
		return p.textName(), nil
	case named:
		if err := e.CheckPrompt(p.name); err != nil {
			return "", usageError{fmt.Errorf("--prompt: %w; --prompt-text puts a text of yours before each", err)}
		}
		if role && !e.VectorsAlone() && e.Prompt(p.name) == "" {
			if _, ok := e.Prompts()[p.name]; !ok {
				as := "embedded as they are"
				if e.WeighsQueries() {
					as = fmt.Sprintf("read as %s, as they are", map[string]string{"query": "queries", "document": "documents"}[p.name])
				}
				notes(cmd)(fmt.Sprintf("%s has no prompt %q: texts are %s; --prompt-text puts a text before them", f.path, p.name, as))
			}
		}
		return p.name, nil
	}
	name = e.DefaultPrompt()
	if e.VectorsAlone() {
		if name = cmp.Or(name, "document"); name == "query" && f.maxLength > 0 {
			return "", usageError{fmt.Errorf("--max-length: by its default prompt %s reads texts as queries; with --prompt query they are cut so", f.path)}
		}
		if put := e.Prompt(name); put != "" {
			as := "documents; --prompt query reads them as queries"
			if name == "query" {
				as = "queries; --prompt document reads them as documents"
			}
			notes(cmd)(fmt.Sprintf(`%q is put before texts, and they are read as %s, --prompt-text "" puts nothing before them`, put, as))
		}
		return name, nil
	}
	if put, have := e.Prompt(name), promptList(e.Prompts()); name == "query" && put != "" && e.WeighsQueries() {
		notes(cmd)(fmt.Sprintf("%q is put before texts, the default of %s, and they are read as documents; --prompt query reads them as queries", put, f.path))
	} else if name != "" && put != "" {
		notes(cmd)(fmt.Sprintf("%q is put before texts, the default of the prompts that %s has: %s; --prompt NAME chooses one", put, f.path, have))
	} else if have != "" {
		query, document := e.RolePrompts()
		notes(cmd)(fmt.Sprintf(`%s has prompts, and none is put before texts: %s; eval and mine put %q before queries and %q before documents; --prompt NAME chooses one, --prompt "" none`, f.path, have, query, document))
	}
	return name, nil
}

// textPrompts are the texts that --query-prompt and --document-prompt give, or else the model's.
func textPrompts(cmd *cobra.Command, e *embedder.Embedder, query, document string) (string, string) {
	query = textPrompt(cmd, e, "query-prompt", query, e.Prompt("query"))
	return query, textPrompt(cmd, e, "document-prompt", document, e.Prompt("document"))
}

func textPrompt(cmd *cobra.Command, e *embedder.Embedder, flag, text, model string) string {
	if !cmd.Flags().Changed(flag) {
		return model
	}
	sayNamed(cmd, e, flag, text)
	return text
}

// sayNamed says where a flag's text is the name of one of the model's prompts.
func sayNamed(cmd *cobra.Command, e *embedder.Embedder, flag, text string) {
	if named := e.Prompts()[text]; named != "" && named != text {
		notes(cmd)(fmt.Sprintf("--%s %q is a text, and put before texts as it stands; the model's prompt of that name is %q", flag, text, named))
	}
}

// promptList are the prompts that have a text, by their names.
func promptList(prompts map[string]string) string {
	const most = 6
	var list []string
	for _, name := range slices.Sorted(maps.Keys(prompts)) {
		if text := prompts[name]; text != "" {
			list = append(list, fmt.Sprintf("%s (%.40q)", name, text))
		}
	}
	if more := len(list) - most; more > 0 {
		list = append(list[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
