//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Each version of the kernels leaves a folder of some 10 MB, of which the next has no use. A folder's time says when somebody has used it last: who
// reads code there sets it, once a day, and so does who writes some. When new code has been made, folders beside it that have been left alone for
// long are removed.
//
// Other processes may be at work there. A program reads all code when it wants the first, has no use for the folder afterwards, and compiles what it
// finds missing, so a folder may go at any time: at worst that costs 20 s. It gets another name first, so that nobody finds half of it.

const (
	unused = 30 * 24 * time.Hour // after which a folder is removed
	daily  = 24 * time.Hour
)

// folder is a name that sources and Variant give one; going one that is being removed.
var (
	folder = regexp.MustCompile(`^[0-9a-f]{16}-cuda\d+-[0-9a-f]{4}$`)
	going  = regexp.MustCompile(`^[0-9a-f]{16}-cuda\d+-[0-9a-f]{4}\.going\d+$`)
)

// use says that a folder has been used. Where it can't be said, as the folder is another user's, its time stays.
func use(dir string) {
	now := time.Now()
	if i, err := os.Stat(dir); err == nil && now.Sub(i.ModTime()) > daily {
		_ = os.Chtimes(dir, now, now)
	}
}

// sweep removes old folders beside dir. What can't be removed stays: it is another user's, or another process is ahead.
func sweep(dir string) {
	beside := filepath.Dir(dir)
	entries, _ := os.ReadDir(beside)
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || name == filepath.Base(dir) || !folder.MatchString(name) && !going.MatchString(name) {
			continue
		}
		at := filepath.Join(beside, name)
		if i, err := e.Info(); err != nil || time.Since(i.ModTime()) < unused {
			continue
		}
		if folder.MatchString(name) {
			to := fmt.Sprint(at, ".going", os.Getpid())
			if os.Rename(at, to) != nil {
				continue
			}
			at = to
		}
		_ = os.RemoveAll(at)
	}
}
