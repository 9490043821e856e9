package harness

import (
	"os/exec"
	"syscall"
)

// Tied makes a command that has not been started end when this process does, however that ends: the system sends it SIGTERM, which a
// launcher passes on to its ranks. (The system does so when the thread that has started it ends; Go's live as long as the process, but
// for those that goroutines lock until they return.)
func Tied(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
