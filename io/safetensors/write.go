package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"contraflow/io/atomicfile"
)

// Write replaces the file at path. The new one is written beside it, synced and renamed: if the disk fills up or the
// process is killed, the previous file is still there. Models for Hugging Face need metadata {"format": "pt"}.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	return atomicfile.Write(path, func(w io.Writer) error { return Encode(w, tensors, metadata) })
}

// WriteEach is Write of tensors that need not be in memory: see [EncodeEach].
func WriteEach(path string, tensors []Tensor, metadata map[string]string, write func(w io.Writer, t Tensor) error) error {
	return atomicfile.Write(path, func(w io.Writer) error { return EncodeEach(w, tensors, metadata, write) })
}

// Encode writes a file's bytes to w: the header, then each tensor's Data in one Write. Like the reference, it puts the
// strictest alignment first and then orders by name, so that for the same tensors (and up to one entry of metadata)
// the bytes are the same.
func Encode(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	for _, t := range tensors {
		if size, err := byteSize(t.DType, t.Shape); err == nil && size != len(t.Data) {
			return fmt.Errorf("tensor %q: %d bytes of data, but shape %v of %s takes %d", t.Name, len(t.Data), t.Shape, t.DType, size)
		}
	}
	return EncodeEach(w, tensors, metadata, func(w io.Writer, t Tensor) error {
		_, err := w.Write(t.Data)
		return err
	})
}

// EncodeEach is Encode of tensors that need not be in memory: of each, write gives the bytes when it is its turn, in the order of the file. They must be
// as many as its type and shape take.
func EncodeEach(w io.Writer, tensors []Tensor, metadata map[string]string, write func(w io.Writer, t Tensor) error) error {
	sorted := slices.Clone(tensors)
	slices.SortStableFunc(sorted, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType.rank(), a.DType.rank()), cmp.Compare(a.Name, b.Name))
	})
	header, err := encodeHeader(sorted, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range sorted {
		counted := &counter{w: w}
		if err := write(counted, t); err != nil {
			return err
		}
		if size, _ := byteSize(t.DType, t.Shape); counted.n != size { // the header has looked for its error
			return fmt.Errorf("tensor %q: %d bytes were written, but shape %v of %s takes %d", t.Name, counted.n, t.Shape, t.DType, size)
		}
	}
	return nil
}

// counter counts the bytes that pass.
type counter struct {
	w io.Writer
	n int
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += n
	return n, err
}

// encodeHeader returns the length and the header, padded so that the data begins at a multiple of 8.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	comma := ""
	if len(metadata) > 0 {
		b.WriteString(quote(metadataKey) + ":{")
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			b.WriteString(comma + quote(key) + ":" + quote(metadata[key]))
			comma = ","
		}
		b.WriteByte('}')
	}
	seen := map[string]bool{metadataKey: true}
	at := 0
	for _, t := range tensors {
		size, err := byteSize(t.DType, t.Shape)
		switch {
		case err != nil:
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		case !utf8.ValidString(t.Name):
			return nil, fmt.Errorf("tensor %q: the name is not valid UTF-8", t.Name)
		case t.Name == metadataKey:
			return nil, fmt.Errorf("a tensor can't be named %s", metadataKey)
		case seen[t.Name]:
			return nil, fmt.Errorf("tensor %q occurs twice", t.Name)
		}
		seen[t.Name] = true
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		dims, _ := json.Marshal(shape) // ints can't fail
		fmt.Fprintf(&b, `%s%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`,
			comma, quote(t.Name), t.DType, dims, at, at+size)
		comma = ","
		at += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if n := b.Len() - 8; n > maxHeader {
		return nil, fmt.Errorf("%d tensors need a header of %d bytes, more than the format's limit of %d",
			len(tensors), n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

// quote writes s as a JSON string, without HTML's escapes.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) // a string can't fail
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
