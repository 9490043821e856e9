//go:build !unix

package main

import "os"

// saveSignals ask for a checkpoint; this system has none for it.
var saveSignals []os.Signal
