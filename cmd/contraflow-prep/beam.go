//go:build beam

package main

import (
	"context"

	"contraflow/io/prep"
	"contraflow/io/prep/onbeam"
)

const withoutBeam = ""

// asWorker: runners start this program again on the machines that do the work.
func asWorker(args []string) { onbeam.Worker(args) }

func init() {
	for _, name := range onbeam.Runners {
		runners[name] = func(ctx context.Context, j job) (*prep.Stats, error) {
			return onbeam.Run(ctx, j.config, onbeam.Options{Runner: j.runner, Flags: j.flags, Overwrite: j.options.Overwrite, Note: j.options.Note, Quiet: j.options.Note == nil})
		}
	}
}
