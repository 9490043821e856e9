//go:build darwin || linux

package atomicfile

import (
	"errors"

	"golang.org/x/sys/unix"
)

// FreeSpace is the number of bytes that this user can still write to the file system of path; false if unknown.
func FreeSpace(path string) (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true
}

// IsFull reports whether err means that the disk, or the user's share of it, is full.
func IsFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func notSyncable(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP)
}
