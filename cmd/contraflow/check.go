package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"contraflow/stages/recipe"
)

func newCheck() *cobra.Command {
	var f recipeFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check -c RECIPE",
		Short: "Find all rows of a recipe's data that can't be used",
		Long: `check reads all data that a recipe names, those it trains on and those it measures the model on, and trains nothing. It prints a line for every row
that can't be used, with its file, line (or row group and row) and reason, to standard output, where train would end with the first one. Then it says
what else it has seen: rows that repeat others, texts that are cut, files that can't be read (it goes on with the others), too few rows for a batch, a
guide that won't do, a save.dir (if the recipe or --out says one) in which the run can neither begin nor go on. It needs the
model's tokenizer and settings, not its weights.

It exits with 1 if there is anything of these that would end a run; rows to train on that can't be used do, unless the recipe says data.on_error: skip.`,
		Example: `  contraflow check -c recipe.yaml
  contraflow check -c recipe.yaml --json > bad.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := f.load()
			if err != nil {
				return err
			}
			device, err := paperDevice(r)
			if err != nil {
				return err
			}
			ui := progressOf(cmd)
			found, err := recipe.LookOver(cmd.Context(), r, device, ui.observer())
			if err != nil {
				return err
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			for _, p := range found.Parts {
				for _, row := range p.Bad {
					if !asJSON {
						_, err = fmt.Fprintln(cmd.OutOrStdout(), row)
					} else {
						err = out.Encode(recipe.SkippedRowOf(row))
					}
					if err != nil {
						return err
					}
				}
			}
			for _, p := range found.Parts {
				if p.Said != "" {
					ui.printf("%s: %s\n", p.Key, p.Said)
				}
			}
			if found.Plan != "" {
				ui.printf("training: %s\n", found.Plan)
			}
			return found.Err()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the rows as lines of JSON, as skipped.jsonl has them")
	addQuiet(cmd, "the rows and errors")
	f.add(cmd)
	f.addOut(cmd)
	return cmd
}
