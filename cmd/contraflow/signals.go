package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"contraflow/stages/recipe"
)

// control is what signals ask of a training run, all of its local ranks.
var control = new(recipe.Control)

// errAsked is why the first request ends what does not train.
var errAsked = fmt.Errorf("asked to end: %w", context.Canceled)

// watchSignals asks a run that is in progress for a checkpoint and its end. A second request, or one when nothing is being trained, ends
// the program at once: by cancelling all it is at, and where that has been done already, by itself.
func watchSignals(ctx context.Context, cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append([]os.Signal{os.Interrupt, syscall.SIGTERM}, saveSignals...)...)
	asked := false
	for s := range signals {
		switch {
		case isSaveSignal(s):
			control.Save()
		case ctx.Err() != nil:
			fmt.Fprintln(os.Stderr, "contraflow: interrupted")
			os.Exit(1)
		case asked:
			cancel(nil)
		case control.Stop():
			asked = true
		default:
			cancel(errAsked)
		}
	}
}

func isSaveSignal(s os.Signal) bool {
	for _, x := range saveSignals {
		if s == x {
			return true
		}
	}
	return false
}
