package gopairs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// DefaultRoot is the folder with the Go sources that are installed with the toolchain, GOROOT/src: that of the
// environment's GOROOT, else of the go command on the PATH, else of the toolchain that built this program.
func DefaultRoot(ctx context.Context) (string, error) {
	command := exec.CommandContext(ctx, "go", "env", "GOROOT")
	command.Dir = os.TempDir() // a go.mod here could make the go command download another toolchain
	command.Env = append(os.Environ(), "GOTOOLCHAIN=local")
	installed, err := command.Output()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		installed = nil // no Go on the PATH is not an error yet
	}
	return sourceOf(os.Getenv("GOROOT"), strings.TrimSpace(string(installed)), runtime.GOROOT())
}

// sourceOf is the src folder of the first goroot that has one.
func sourceOf(goroots ...string) (string, error) {
	where := "neither GOROOT is set nor is there a go command on the PATH"
	var tried []string
	for _, goroot := range goroots {
		if goroot == "" {
			continue
		}
		root := filepath.Join(goroot, "src")
		if info, err := os.Stat(root); err == nil && info.IsDir() {
			return root, nil
		}
		if !slices.Contains(tried, root) {
			tried = append(tried, root)
			where = "looked for " + strings.Join(tried, ", ")
		}
	}
	return "", fmt.Errorf("the Go sources are not there (%s): install Go from https://go.dev/dl, or name a folder with Go code with --source", where)
}
