package checkpoint

import (
	"io"
	"os"

	"contraflow/io/atomicfile"
	"contraflow/io/safetensors"
)

// FS is the file system as writing a checkpoint needs it: tests put one in its place that fails.
type FS interface {
	MkdirAll(dir string) error
	Create(path string) (File, error) // or empties what is there
	Rename(from, to string) error     // of a file over another one, or of a folder to a name that is free
	RemoveAll(path string) error
	SyncDir(dir string) error // makes the names in dir durable
	Names(dir string) ([]string, error)
	Size(path string) (bytes int64, err error)
	Tensors(path string) (*safetensors.File, error) // what is in a part
	FreeSpace(dir string) (bytes int64, known bool)
}

// File is a file that is being written.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// Disk is the operating system's file system.
type Disk struct{}

func (Disk) MkdirAll(dir string) error          { return os.MkdirAll(dir, 0o777) }
func (Disk) Create(path string) (File, error)   { return os.Create(path) }
func (Disk) Rename(from, to string) error       { return os.Rename(from, to) }
func (Disk) RemoveAll(path string) error        { return os.RemoveAll(path) }
func (Disk) SyncDir(dir string) error           { return atomicfile.SyncDir(dir) }
func (Disk) FreeSpace(dir string) (int64, bool) { return atomicfile.FreeSpace(dir) }

// Tensors opens a part. It reads the header alone.
func (Disk) Tensors(path string) (*safetensors.File, error) { return safetensors.Open(path) }

// Size is a file's.
func (Disk) Size(path string) (bytes int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Names are those of what is in a folder.
func (Disk) Names(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
