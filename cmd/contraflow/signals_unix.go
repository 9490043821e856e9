//go:build unix

package main

import (
	"os"
	"syscall"
)

// saveSignals ask for a checkpoint.
var saveSignals = []os.Signal{syscall.SIGUSR1}
