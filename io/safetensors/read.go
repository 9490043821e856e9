package safetensors

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"contraflow/io/spelling"
)

// ErrNoTensor is wrapped by File.Tensor's error for a name that the file doesn't have.
var ErrNoTensor = errors.New("no such tensor")

// File is an open safetensors file. Its methods are safe for concurrent use, Close included.
type File struct {
	path     string
	metadata map[string]string
	tensors  []Tensor // in the order of their data
	index    map[string]int

	mu    sync.RWMutex // held for reading while bytes are read, so that Close waits for them
	unmap func() error // nil after Close
	data  []byte       // of a file that Open has mapped
}

// Open maps the file into memory and checks all of its header. The file must not be changed while it is open;
// replacing it by a rename, as Write does, is fine. Every error names the file and, where one is at fault, the tensor.
func Open(path string) (*File, error) { return OpenAs(path, parse) }

// OpenAs is Open of a file of another format: parse finds the tensors, whose Data is within the file's bytes, and the metadata. Its errors
// need not name the file.
func OpenAs(path string, parse func(file []byte) (tensors []Tensor, metadata map[string]string, err error)) (*File, error) {
	data, unmap, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := newFile(path, data, unmap, parse)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	f.data = data
	return f, nil
}

func newFile(path string, data []byte, unmap func() error, parse func([]byte) ([]Tensor, map[string]string, error)) (*File, error) {
	tensors, metadata, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f := &File{path: path, metadata: metadata, tensors: tensors, index: make(map[string]int, len(tensors)), unmap: unmap}
	for i := range tensors {
		tensors[i].file = f
		f.index[tensors[i].Name] = i
	}
	return f, nil
}

// Path is the path that Open got.
func (f *File) Path() string { return f.path }

// Metadata is a copy of the header's __metadata__, {"format": "pt"} in files of Hugging Face; nil if there is none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Names lists the tensors in the order of their data, the fastest order to read them in.
func (f *File) Names() []string {
	names := make([]string, len(f.tensors))
	for i, t := range f.tensors {
		names[i] = t.Name
	}
	return names
}

// Tensor finds a tensor by its name. The error for a name that isn't there wraps ErrNoTensor and lists near ones.
func (f *File) Tensor(name string) (Tensor, error) {
	if i, ok := f.index[name]; ok {
		return f.tensors[i], nil
	}
	return Tensor{}, fmt.Errorf("%s: %w", f.path, NoTensor(name, f.Names()))
}

// NoTensor is the error for a name that is not among names. It wraps ErrNoTensor and lists the nearest.
func NoTensor(name string, names []string) error {
	if len(names) == 0 {
		return fmt.Errorf("%w: %q (there is none at all)", ErrNoTensor, name)
	}
	near := spelling.Near(name, names)
	if len(near) == 0 {
		return fmt.Errorf("%w: %q among %d, such as %q", ErrNoTensor, name, len(names), names[0])
	}
	return fmt.Errorf("%w: %q; near it are %s", ErrNoTensor, name, strings.Join(near[:min(3, len(near))], ", "))
}

// Forget gives the file's memory back to the system for as long as nothing reads the tensors: a loaded model would otherwise count twice.
func (f *File) Forget() {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.unmap != nil {
		forget(f.data)
	}
}

// Close unmaps the file. The Data of its tensors must not be used afterwards; their Float32s gives an error. A second
// Close does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unmap == nil {
		return nil
	}
	unmap := f.unmap
	f.unmap = nil
	if err := unmap(); err != nil {
		return fmt.Errorf("close %s: %w", f.path, err)
	}
	return nil
}
