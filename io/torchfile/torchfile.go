// Package torchfile reads and writes tensors as PyTorch's torch.save keeps them, a dictionary of tensors by name such as BGE-M3's
// colbert_linear.pt and pytorch_model.bin:
//
//	colbert_linear/data.pkl    the dictionary, a Python pickle: names, shapes, and where the elements are
//	colbert_linear/data/0      the elements of the first tensor, and so on
//	colbert_linear/version     ...
//
// in a zip archive without compression.
//
// # Pickles are programs
//
// A pickle tells Python to call functions by name, any function there is. Here nothing is called: an interpreter of the few
// instructions that dictionaries of tensors need makes plain values of them, and the four names that it knows
// (collections.OrderedDict, torch._utils._rebuild_tensor_v2, torch._utils._rebuild_parameter and torch's storages) stand for what they would
// make. Any other name is an error, before anything else is looked at: one that wraps [ErrUnsafe], but for the names by which PyTorch rebuilds
// tensors of kinds that are not read here, such as sparse or complex ones. Sizes are believed only where the file has the bytes, and names in the
// archive must stay in it.
//
// Checksums are compared, which torch.load does not do; where a file has none (torch.serialization.set_crc32_options(False)), all are 0.
//
// The format before PyTorch 1.6 (2020), which is no zip archive, is refused.
package torchfile

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
)

// ErrUnsafe is wrapped by errors about files that ask for more than tensors.
var ErrUnsafe = errors.New("the file asks for code to be run")

// ErrDamaged is wrapped by errors about files that are cut off or have other bytes than were written.
var ErrDamaged = errors.New("the file is damaged: download or copy it again")

const (
	maxPickle  = 1 << 20 // a dictionary of tensors takes some hundred bytes for each
	maxEntries = 10000
)

// Open maps a file into memory, which is read once to compare its checksums.
func Open(file string) (*safetensors.File, error) {
	return safetensors.OpenAs(file, func(data []byte) ([]safetensors.Tensor, map[string]string, error) {
		tensors, err := Parse(data)
		return tensors, nil, err
	})
}

// Read reads all tensors of a file, which is read whole.
func Read(file string) ([]safetensors.Tensor, error) {
	data, err := plainfile.Read(file)
	if err != nil {
		return nil, err
	}
	tensors, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return tensors, nil
}

// Parse finds the tensors of a file in memory; their Data is within it.
func Parse(data []byte) ([]safetensors.Tensor, error) {
	if len(data) == 0 {
		return nil, fmt.Errorf("it is empty: %w", ErrDamaged)
	}
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil && bytes.HasPrefix(data, []byte("PK\x03\x04")) {
		return nil, fmt.Errorf("it begins as a zip archive and does not end as one, %w: %w", err, ErrDamaged)
	}
	if err != nil {
		return nil, fmt.Errorf("it is not a zip archive, as torch.save has written since 2020: %w; load it in Python with weights_only=True and save it again", err)
	}
	a := archive{data: data, files: map[string]*zip.File{}, size: int64(len(data)), held: map[string][]byte{}}
	if err := a.list(z); err != nil {
		return nil, err
	}
	pickle, err := a.read(a.root+"/data.pkl", -1)
	if err != nil {
		return nil, err
	}
	order, err := a.byteOrder()
	if err != nil {
		return nil, err
	}
	if order != "little" {
		return nil, fmt.Errorf("its numbers are %s-endian, which is not supported", order)
	}
	v, err := run(pickle)
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	dict, ok := v.(*dictionary)
	if !ok {
		return nil, fmt.Errorf("data.pkl holds %s, want a dictionary of tensors", describe(v))
	}
	var out []safetensors.Tensor
	seen := map[string]bool{}
	for i, key := range dict.keys {
		name, ok := key.(string)
		x, isTensor := dict.values[i].(tensor)
		if !ok || !isTensor {
			return nil, fmt.Errorf("data.pkl: the dictionary has %s for %s, want tensors by name", describe(dict.values[i]), describe(key))
		}
		if seen[name] {
			return nil, fmt.Errorf("data.pkl: the tensor %q is there twice", name)
		}
		seen[name] = true
		t, err := a.tensor(name, x)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		out = append(out, t)
	}
	return out, nil
}

// archive is the zip file's entries by name.
type archive struct {
	data  []byte
	root  string
	files map[string]*zip.File
	size  int64
	sums  bool              // it has checksums
	held  map[string][]byte // storages that were read: tensors may share them
}

func (a *archive) list(z *zip.Reader) error {
	if len(z.File) > maxEntries {
		return fmt.Errorf("an archive of %d entries", len(z.File))
	}
	for _, f := range z.File {
		name := f.Name
		switch {
		case !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != strings.TrimSuffix(name, "/") || strings.ContainsAny(name, "\\\x00:"):
			return fmt.Errorf("%w: the archive has an entry %q, which leaves its folder", ErrUnsafe, name)
		case a.files[name] != nil:
			return fmt.Errorf("the archive has two entries %q", name)
		case f.Method != zip.Store:
			return fmt.Errorf("the entry %q is compressed, which torch.save does not do", name)
		case f.UncompressedSize64 != f.CompressedSize64 || f.UncompressedSize64 > uint64(a.size):
			return fmt.Errorf("the entry %q says that it has %d bytes, in a file of %d", name, f.UncompressedSize64, a.size)
		}
		a.files[name], a.sums = f, a.sums || f.CRC32 != 0
		if root, ok := strings.CutSuffix(name, "/data.pkl"); ok {
			if a.root != "" {
				return fmt.Errorf("the archive has two dictionaries, in %s and %s", a.root, root)
			}
			a.root = root
		}
	}
	if a.root == "" {
		return errors.New("the archive has no data.pkl: it was not written by torch.save")
	}
	return nil
}

// read reads an entry of so many bytes; of at most maxPickle for -1.
func (a *archive) read(name string, want int64) ([]byte, error) {
	f := a.files[name]
	if f == nil {
		return nil, fmt.Errorf("the archive has no %s", name)
	}
	n := int64(f.UncompressedSize64)
	if want < 0 && n > maxPickle || want >= 0 && n != want {
		return nil, fmt.Errorf("%s has %d bytes, want %s", name, n, map[bool]string{true: fmt.Sprint("at most ", maxPickle), false: fmt.Sprint(want)}[want < 0])
	}
	at, err := f.DataOffset()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case at < 0 || at > a.size-n:
		return nil, fmt.Errorf("%s: %d bytes from byte %d are not within the file's %d: %w", name, n, at, a.size, ErrDamaged)
	}
	data := a.data[at : at+n : at+n]
	if a.sums && crc32.ChecksumIEEE(data) != f.CRC32 {
		return nil, fmt.Errorf("%s: %w: %w", name, zip.ErrChecksum, ErrDamaged)
	}
	return data, nil
}

// byteOrder is little if the archive does not say.
func (a *archive) byteOrder() (string, error) {
	if a.files[a.root+"/byteorder"] == nil {
		return "little", nil
	}
	data, err := a.read(a.root+"/byteorder", -1)
	return string(data), err
}

// tensor finds a tensor's elements.
func (a *archive) tensor(name string, x tensor) (safetensors.Tensor, error) {
	t := safetensors.Tensor{Name: name, DType: x.storage.dtype, Shape: x.shape}
	elem := int64(t.DType.Bits() / 8)
	n := int64(1)
	for i := len(x.shape) - 1; i >= 0; i-- {
		d := int64(x.shape[i])
		if d != 1 && x.stride[i] != n && !slices.Contains(x.shape, 0) {
			return t, fmt.Errorf("strides %v of shape %v are not those of a contiguous tensor, which alone are supported", x.stride, x.shape)
		}
		if d < 0 || d > 0 && n > a.size/d {
			return t, fmt.Errorf("shape %v needs more than the file's %d bytes", x.shape, a.size)
		}
		n *= d
	}
	s := x.storage
	if s.elements < 0 || s.elements > a.size/elem || x.offset < 0 || x.offset > s.elements-n {
		return t, fmt.Errorf("shape %v from element %d is not within the storage %q of %d elements in a file of %d bytes", x.shape, x.offset, s.key, s.elements, a.size)
	}
	if s.key == "" || strings.ContainsAny(s.key, "/\\.") {
		return t, fmt.Errorf("%w: a storage is called %q", ErrUnsafe, s.key)
	}
	data, ok := a.held[s.key]
	if !ok || int64(len(data)) != s.elements*elem {
		var err error
		if data, err = a.read(a.root+"/data/"+s.key, s.elements*elem); err != nil {
			return t, err
		}
		a.held[s.key] = data
	}
	t.Data = data[x.offset*elem : (x.offset+n)*elem]
	return t, nil
}

// Encode is a file of tensors, of types that Parse reads, of which torch.load(weights_only=True) makes a dictionary. name is the file's, without
// its ending, as torch.save names what is in the archive.
func Encode(name string, tensors []safetensors.Tensor) ([]byte, error) {
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	add := func(entry string, data []byte) error {
		h := &zip.FileHeader{Name: name + "/" + entry, Method: zip.Store, CRC32: crc32.ChecksumIEEE(data), CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data))}
		w, err := z.CreateRaw(h)
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	pickle, err := encode(tensors)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	errs := []error{add("data.pkl", pickle), add("byteorder", []byte("little"))}
	for i, t := range tensors {
		errs = append(errs, add(fmt.Sprint("data/", i), t.Data))
	}
	err = errors.Join(append(errs, add("version", []byte("3\n")), z.Close())...)
	return buf.Bytes(), err
}
