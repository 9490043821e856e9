// Package filelock locks files between processes with advisory locks, where the system has them.
//
// Locks belong to an open file and end when it is closed, so a process that is killed leaves none behind. They guard
// against wasted or interleaved work; what is written under them must be right without them as well, because some
// network file systems accept every lock.
package filelock

import "os"

// TryLock takes an exclusive lock on f without waiting and reports whether it got it. Closing f releases it. A system
// or file system without locks reports true: there is nobody to wait for.
func TryLock(f *os.File) bool { return tryLock(f) }
