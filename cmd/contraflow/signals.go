package main

import (
	"os"
	"os/signal"
	"syscall"

	"contraflow/stages/recipe"
)

// control is what signals ask of a training run, all of its local ranks.
var control = new(recipe.Control)

// watchSignals asks a run that is in progress for a checkpoint and its end. A second request, or one when nothing is being trained, ends
// the program at once.
func watchSignals(cancel func()) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append([]os.Signal{os.Interrupt, syscall.SIGTERM}, saveSignals...)...)
	asked := false
	for s := range signals {
		switch {
		case isSaveSignal(s):
			control.Save()
		case asked || !control.Stop():
			cancel()
		default:
			asked = true
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
