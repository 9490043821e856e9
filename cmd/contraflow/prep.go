package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
)

// prepBinary is the program that prepares data: Apache Beam stays out of this one.
const prepBinary = "contraflow-prep"

func newPrep() *cobra.Command {
	return &cobra.Command{
		Use:   "prep -c PREP.yaml",
		Short: "Clean, deduplicate, split and tokenize training data",
		Long: `prep runs ` + prepBinary + `, which stands beside this program or in the PATH, with the same arguments; 'contraflow prep --help' shows its help.
To build it: go install ./cmd/` + prepBinary + `, or with Apache Beam's runners: go install -tags beam ./cmd/` + prepBinary,
		Example:            "  contraflow recipe prep > PREP.yaml\n  contraflow prep -c PREP.yaml\n  contraflow prep -c PREP.yaml --set output.shards=16 --out prepared",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := findPrep()
			if err != nil && len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cmd.Help()
			}
			if err != nil {
				return err
			}
			c := exec.CommandContext(cmd.Context(), path, args...)
			c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // so that it can end its own way
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr      // the files themselves, as if it had been called
			err = c.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				return exitCode(exit.ExitCode()) // it has said why
			}
			return err
		},
	}
}

// findPrep looks beside this program first: the two belong together.
func findPrep() (string, error) {
	name := prepBinary
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	self, err := os.Executable()
	if err == nil {
		if path := filepath.Join(filepath.Dir(self), name); isFile(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside %s nor in the PATH: build it with go install ./cmd/%s (-tags beam for Apache Beam's runners)", name, self, prepBinary)
	}
	return path, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// exitCode is another program's, which has said what was wrong.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }
