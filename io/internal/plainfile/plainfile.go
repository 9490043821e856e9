// Package plainfile reads files of folders that come from elsewhere. What is no plain file there is an error: opening a pipe that has a name
// waits for a writer, for ever if none comes, and a device may have no end.
package plainfile

import (
	"errors"
	"fmt"
	"os"
)

// Read is os.ReadFile of a plain file, or of a link to one.
func Read(path string) ([]byte, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// Check is the error for a path that leads to no plain file. A folder is not told here: opening it does no harm, and reading it says so.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		// As if it had been opened, which is what the caller is about to do.
		if failed := (*os.PathError)(nil); errors.As(err, &failed) {
			failed.Op = "open"
		}
		return err
	}
	if mode := info.Mode(); mode.IsRegular() || mode.IsDir() {
		return nil
	}
	return fmt.Errorf("%s is not a plain file", path)
}
