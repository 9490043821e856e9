package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/prep/template"
	"contraflow/io/spelling"
	"contraflow/stages/recipe"
)

func newRecipe() *cobra.Command {
	all := append(recipe.Templates(), "prep")
	names := strings.Join(all, "|")
	return &cobra.Command{
		Use:   "recipe " + names,
		Short: "Print a commented recipe to begin with",
		Long: "recipe prints a recipe with comments; that of an embedder has every key there is, but for those of rerankers, of m3, of multi_vector and of sparse embeddings. " +
			"That of prep is for contraflow prep.",
		Example: `  contraflow recipe embedder > recipe.yaml
  contraflow train -c recipe.yaml`,
		ValidArgs: all,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return missing(fmt.Errorf("which one? contraflow recipe %s", names))
			}
			text, ok := recipe.Template(args[0])
			if args[0] == "prep" {
				text, ok = template.Prep, true
			}
			if !ok {
				hint := ""
				if near := spelling.Nearest(args[0], all); near != "" {
					hint = fmt.Sprintf("; did you mean %s?", near)
				}
				return usageError{fmt.Errorf("there is no recipe called %q: contraflow recipe %s%s", args[0], names, hint)}
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
}
