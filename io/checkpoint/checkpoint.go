package checkpoint

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/zeebo/xxh3"

	"contraflow/io/safetensors"
)

// State is what a checkpoint knows besides its tensors.
type State struct {
	Format  int       `json:"format"` // 1
	Step    int       `json:"step"`   // optimizer steps done
	Written time.Time `json:"written"`

	Vectors    []string    `json:"vectors"` // every parameter is in each of them: "weights", "moment 1", ...
	DType      string      `json:"dtype"`   // of all tensors, as safetensors spells it
	Parameters []Parameter `json:"parameters"`

	Seed     uint64            `json:"seed"`     // that dropout and the order of the data are keyed by
	Mesh     string            `json:"mesh"`     // of the ranks that wrote it
	Recipe   string            `json:"recipe"`   // as resolved, YAML
	Data     json.RawMessage   `json:"data"`     // the place in the data
	Files    json.RawMessage   `json:"files"`    // the data's files, to say which of them have changed
	Progress json.RawMessage   `json:"progress"` // what else the run remembers
	Contents map[string]string `json:"contents"` // hashes of what the run relies on beside: the tokenizer's files

	Parts []Part `json:"parts"`
}

// Parameter is a tensor of the model.
type Parameter struct {
	Name  string `json:"name"`
	Shape []int  `json:"shape"`
}

// Len is its number of elements.
func (p Parameter) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Part is a file of a checkpoint.
type Part struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"xxh128"`
}

// Piece is a run of elements of a parameter, in row-major order.
type Piece struct {
	Vector string
	Name   string // the parameter's
	From   int    // the place of the first element
	Data   []byte // little-endian
}

const (
	format       = 1
	manifestName = "checkpoint.json"
	latestName   = "LATEST"
)

// FolderName is a step's folder in that of the checkpoints.
func FolderName(step int) string { return fmt.Sprintf("step-%08d", step) }

func partName(rank int) string { return fmt.Sprintf("rank-%05d.safetensors", rank) }

// tensorName is a piece's name in its part.
func (p Piece) tensorName() string { return fmt.Sprintf("%s/%s@%d", p.Vector, p.Name, p.From) }

// hashingWriter learns the hash and the length of what passes.
type hashingWriter struct {
	w io.Writer
	h *xxh3.Hasher
	n int64
}

func (w *hashingWriter) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.h.Write(b[:n])
	w.n += int64(n)
	return n, err
}

func hashOf(h *xxh3.Hasher) string {
	b := h.Sum128().Bytes()
	return hex.EncodeToString(b[:])
}

// encodePart writes pieces as a safetensors file. Its tensors are vectors: what range of what they are is in their names.
func encodePart(w io.Writer, dtype safetensors.DType, pieces []Piece) error {
	var ts []safetensors.Tensor
	for _, p := range pieces {
		ts = append(ts, safetensors.Tensor{Name: p.tensorName(), DType: dtype, Shape: []int{len(p.Data) * 8 / dtype.Bits()}, Data: p.Data})
	}
	return safetensors.Encode(w, ts, map[string]string{"format": "contraflow checkpoint"})
}

// envelope is checkpoint.json: the state and the hash of its bytes.
type envelope struct {
	Hash  string          `json:"xxh128"`
	State json.RawMessage `json:"checkpoint"`
}

func encodeManifest(s State) ([]byte, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(envelope{hashBytes(body), body})
}

func hashBytes(b []byte) string {
	sum := xxh3.Hash128(b).Bytes()
	return hex.EncodeToString(sum[:])
}

func decodeManifest(raw []byte) (s State, err error) {
	var e envelope
	if err := json.Unmarshal(raw, &e); err != nil {
		return s, fmt.Errorf("%s is not complete: %w", manifestName, err)
	}
	if got := hashBytes(e.State); got != e.Hash {
		return s, fmt.Errorf("%s is damaged: its hash is %s, and it says %s", manifestName, got, e.Hash)
	}
	if err := json.Unmarshal(e.State, &s); err != nil {
		return s, fmt.Errorf("%s: %w", manifestName, err)
	}
	if s.Format != format {
		return s, fmt.Errorf("%s has format %d, this program reads %d: it was written by another version", manifestName, s.Format, format)
	}
	return s, nil
}
