package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxHeader is the reference's bound on the header's length.
const maxHeader = 100_000_000

// metadataKey is the one name in the header that is not a tensor's.
const metadataKey = "__metadata__"

// parse checks a whole file's bytes and returns its tensors in the order of their data.
func parse(file []byte) (tensors []Tensor, metadata map[string]string, err error) {
	if len(file) < 8 {
		return nil, nil, fmt.Errorf("only %d bytes: a safetensors file begins with an 8-byte header length", len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > maxHeader {
		return nil, nil, fmt.Errorf("header length %d is more than the format's limit of %d: "+
			"not a safetensors file, or its start is damaged", n, maxHeader)
	}
	if n > uint64(len(file)-8) {
		return nil, nil, fmt.Errorf("header length %d is more than the %d bytes that follow: the file is cut off or damaged",
			n, len(file)-8)
	}
	header, data := file[8:8+n], file[8+n:]
	h := &headerParser{raw: header, dec: json.NewDecoder(bytes.NewReader(header))}
	h.dec.UseNumber()
	if err := h.parse(); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if err := place(h.entries, data); err != nil {
		return nil, nil, err
	}
	tensors = make([]Tensor, len(h.entries))
	for i, e := range h.entries {
		tensors[i] = e.Tensor
	}
	return tensors, h.metadata, nil
}

// entry is a tensor as the header describes it.
type entry struct {
	Tensor
	begin, end uint64
}

// place checks that the tensors' ranges tile data, and gives each its bytes.
func place(entries []entry, data []byte) error {
	// Ties (an empty tensor before one that begins at the same place) are ordered by the end, then by name.
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.Name, b.Name))
	})
	at, before := uint64(0), "the start of the data"
	for i := range entries {
		e := &entries[i]
		bad := func(format string, args ...any) error {
			return fmt.Errorf("tensor %q: data_offsets [%d, %d] %s", e.Name, e.begin, e.end, fmt.Sprintf(format, args...))
		}
		switch {
		case e.end < e.begin:
			return bad("end before they begin")
		case e.begin < at:
			return bad("overlap %s, which ends at %d", before, at)
		case e.begin > at:
			return bad("leave a hole of %d bytes after %s", e.begin-at, before)
		case e.end > uint64(len(data)):
			return bad("reach beyond the file's %d bytes of data: the file is cut off", len(data))
		}
		size, err := byteSize(e.DType, e.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", e.Name, err)
		}
		if uint64(size) != e.end-e.begin {
			return bad("hold %d bytes, but shape %v of %s takes %d", e.end-e.begin, e.Shape, e.DType, size)
		}
		e.Data = data[e.begin:e.end:e.end]
		at, before = e.end, fmt.Sprintf("tensor %q", e.Name)
	}
	if at != uint64(len(data)) {
		return fmt.Errorf("%d bytes after %s belong to no tensor", uint64(len(data))-at, before)
	}
	return nil
}

// headerParser walks the header by tokens: decoding into a map would drop names that occur twice.
type headerParser struct {
	raw      []byte
	dec      *json.Decoder
	entries  []entry
	metadata map[string]string
}

func (h *headerParser) parse() error {
	if !utf8.Valid(h.raw) {
		return errors.New("not valid UTF-8")
	}
	if len(h.raw) == 0 || h.raw[0] != '{' {
		return errors.New("does not begin with {")
	}
	err := h.object(func(name string) error {
		if name == metadataKey {
			if err := h.readMetadata(); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			return nil
		}
		e := entry{Tensor: Tensor{Name: name}}
		if err := h.readEntry(&e); err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		h.entries = append(h.entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	// Writers pad the header with spaces, which is white space to JSON.
	if _, err := h.dec.Token(); err != io.EOF {
		return errors.New("something follows the JSON object")
	}
	return nil
}

func (h *headerParser) readEntry(e *entry) error {
	var offsets []uint64
	err := h.object(func(field string) error {
		switch field {
		case "dtype":
			s, err := h.string()
			if err != nil {
				return fmt.Errorf("dtype: %w", err)
			}
			e.DType = DType(s)
			if e.DType.Bits() == 0 {
				return fmt.Errorf("dtype %q is unknown; known are %s", s, knownDTypes())
			}
		case "shape":
			dims, err := h.integers()
			if err != nil {
				return fmt.Errorf("shape: %w", err)
			}
			e.Shape = make([]int, len(dims))
			for i, d := range dims {
				e.Shape[i] = int(d)
				if e.Shape[i] < 0 || uint64(e.Shape[i]) != d {
					return fmt.Errorf("shape: dimension %d is more than an address can hold", d)
				}
			}
		case "data_offsets":
			var err error
			if offsets, err = h.integers(); err != nil {
				return fmt.Errorf("data_offsets: %w", err)
			}
			if len(offsets) != 2 {
				return fmt.Errorf("data_offsets: %d numbers, want begin and end", len(offsets))
			}
			e.begin, e.end = offsets[0], offsets[1]
		default:
			return h.skip() // the reference ignores what it doesn't know
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case e.DType == "":
		return errors.New("no dtype")
	case e.Shape == nil:
		return errors.New("no shape")
	case offsets == nil:
		return errors.New("no data_offsets")
	}
	return nil
}

func (h *headerParser) readMetadata() error {
	h.metadata = map[string]string{}
	return h.object(func(key string) error {
		v, err := h.string()
		if err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		h.metadata[key] = v
		return nil
	})
}

// object reads a JSON object and calls field for each key, to read the value. A key that occurs twice is an error.
func (h *headerParser) object(field func(key string) error) error {
	if err := h.delim('{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for h.dec.More() {
		key, err := h.string()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%q occurs twice", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return h.delim('}', "the object's end")
}

func (h *headerParser) delim(want json.Delim, what string) error {
	tok, err := h.dec.Token()
	if err != nil {
		return notJSON(err)
	}
	if tok != want {
		return fmt.Errorf("got %v, want %s", tok, what)
	}
	return nil
}

func (h *headerParser) string() (string, error) {
	tok, err := h.dec.Token()
	if err != nil {
		return "", notJSON(err)
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("got %v, want a string", tok)
	}
	// encoding/json turns half of a surrogate pair into U+FFFD, and two different names into one.
	if strings.ContainsRune(s, utf8.RuneError) && !bytes.ContainsRune(h.raw, utf8.RuneError) {
		return "", fmt.Errorf("%q has an escape that is half of a character", s)
	}
	return s, nil
}

func (h *headerParser) integers() ([]uint64, error) {
	if err := h.delim('[', "a list"); err != nil {
		return nil, err
	}
	list := []uint64{}
	for h.dec.More() {
		tok, err := h.dec.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		n, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("got %v, want a number", tok)
		}
		v, err := strconv.ParseUint(n.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("got %v, want a whole number from 0", n)
		}
		list = append(list, v)
	}
	return list, h.delim(']', "the list's end")
}

func (h *headerParser) skip() error {
	var any json.RawMessage
	if err := h.dec.Decode(&any); err != nil {
		return notJSON(err)
	}
	return nil
}

func notJSON(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("not valid JSON: %w", err)
}
