package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"time"

	"contraflow/cmd/internal/flags"
	"contraflow/stages/recipe"
)

// control is what signals ask of a training run, all of its local ranks.
var control = new(recipe.Control)

// errAsked is why the first request ends what does not train.
var errAsked = fmt.Errorf("asked to end: %w", context.Canceled)

// stopping is called when a run that is in progress is asked to end, for it takes the rest of a step, or of an evaluation, until anything else is said.
var stopping atomic.Pointer[func()]

// requests are signals to end. For a second after one others are the same: some who end programs signal the process and then its group.
type requests struct{ last time.Time }

func (r *requests) another(now time.Time) bool {
	if now.Sub(r.last) < time.Second {
		return false
	}
	r.last = now
	return true
}

// watchSignals asks a run that is in progress for a checkpoint and its end. A second request, or one when nothing is being trained, ends
// the program at once: by cancelling all it is at, and where that has been done already, by itself.
func watchSignals(ctx context.Context, cancel context.CancelCauseFunc) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append(flags.EndSignals(), saveSignals...)...)
	asked := false
	var requests requests
	for s := range signals {
		if isSaveSignal(s) {
			control.Save()
			continue
		}
		if !requests.another(time.Now()) {
			continue
		}
		switch {
		case ctx.Err() != nil:
			fmt.Fprintf(os.Stderr, "%scontraflow: interrupted\n", overLast())
			os.Exit(1)
		case asked:
			cancel(nil)
		case control.Stop():
			asked = true
			if say := stopping.Load(); say != nil {
				(*say)()
			}
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
