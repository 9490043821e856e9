//go:build !(darwin || linux || windows)

package atomicfile

import (
	"errors"
	"syscall"
)

// FreeSpace is the number of bytes that this user can still write to the file system of path; false if unknown.
func FreeSpace(path string) (int64, bool) { return 0, false }

// IsFull reports whether err means that the disk, or the user's share of it, is full.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) }

func notSyncable(err error) bool { return errors.Is(err, syscall.EINVAL) }
