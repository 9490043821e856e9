// Package plainfile reads files of folders that come from elsewhere. What is no plain file there is an error: opening a pipe that has a name
// waits for a writer, for ever if none comes, and a device may have no end. So is what only stands for a file: a link to nothing, as a cache of
// Hugging Face that was moved without its blobs leaves them, and a pointer of git-lfs. Neither is a file that is missing, which may be right.
package plainfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// ErrElsewhere is what errors of Here wrap.
var ErrElsewhere = errors.New("its contents are not here")

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
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return fmt.Errorf("%s is not a plain file", path)
	}
	return here(path, info, err)
}

// Here is the error for a path at which nothing can be read: nothing is there, or what stands for a file that is elsewhere (ErrElsewhere).
func Here(path string) error {
	info, err := os.Stat(path)
	return here(path, info, err)
}

func here(path string, info fs.FileInfo, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if to, link := os.Readlink(path); link == nil {
			return fmt.Errorf("%s is a link to %s, and nothing is there: %w; copy the folder with the files that its links lead to (cp -rL), or download it again", path, to, ErrElsewhere)
		}
	}
	if err != nil {
		// As if it had been opened, which is what the caller is about to do.
		if failed := (*os.PathError)(nil); errors.As(err, &failed) {
			failed.Op = "open"
		}
		return err
	}
	if info.Mode().IsRegular() && info.Size() < 1024 { // git-lfs's specification: a pointer is less
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		begin := make([]byte, len(pointer))
		if n, _ := io.ReadFull(f, begin); bytes.Equal(begin[:n], []byte(pointer)) {
			return fmt.Errorf("%s is a pointer of git-lfs: %w; get them with: git lfs install && git lfs pull, in the folder that was cloned", path, ErrElsewhere)
		}
	}
	return nil
}

// pointer is how what git-lfs keeps in a file's place begins.
const pointer = "version https://git-lfs.github.com/spec/"
