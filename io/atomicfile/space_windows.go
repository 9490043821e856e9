package atomicfile

import (
	"errors"

	"golang.org/x/sys/windows"
)

// FreeSpace is the number of bytes that this user can still write to the file system of path; false if unknown.
func FreeSpace(path string) (int64, bool) {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return 0, false
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(p, &free, nil, nil); err != nil {
		return 0, false
	}
	return int64(free), true
}

// IsFull reports whether err means that the disk, or the user's share of it, is full.
func IsFull(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

func notSyncable(error) bool { return false }
