// Package tensorboard writes scalars into event files that TensorBoard shows.
//
// An event file is a sequence of records in TensorFlow's framing (length, checksum of the length, content, checksum of the content; CRC-32C,
// masked, all little-endian: tensorflow/core/lib/io/record_writer.h), each an Event message of tensorflow/core/util/event.proto. Of that
// this package writes what scalars need: wall time, step, and a Summary of tags with values.
//
// TensorBoard reads all event files of a folder together, so a run that goes on, or begins anew there, writes another file beside the first one, and
// says with [Writer.Discard] from which step on the first one does not count.
package tensorboard

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Scalar is a value of a step.
type Scalar struct {
	Tag   string // "train/loss": TensorBoard groups by what comes before the slash
	Value float64
}

// Writer appends to one event file. It is not safe for concurrent use.
type Writer struct {
	f *os.File
	b *bufio.Writer
}

// Create begins an event file in a folder, which it makes if need be. No file is overwritten.
func Create(dir string) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	now := time.Now()
	for n := 0; ; n++ {
		name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), strings.ReplaceAll(host, string(filepath.Separator), "_"), os.Getpid(), n)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		w := &Writer{f, bufio.NewWriter(f)}
		version := protowire.AppendString(protowire.AppendTag(event(now, 0), 3, protowire.BytesType), "brain.Event:2")
		if err := w.record(version); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return w, nil
	}
}

// event begins an Event: wall_time = 1, step = 2.
func event(at time.Time, step int64) []byte {
	b := protowire.AppendTag(nil, 1, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(float64(at.UnixNano())/1e9))
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(step))
}

// Discard takes back what the folder's earlier files have of a step and those behind it: a run that was killed goes on before them, and one that begins
// takes back all, from 0 on. It is a SessionLog (Event.session_log = 7) whose status (1) is START (1). Without it some of TensorBoard's readers show a
// step's old value beside the new one.
func (w *Writer) Discard(step int) error {
	start := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1)
	return w.record(protowire.AppendBytes(protowire.AppendTag(event(time.Now(), int64(step)), 7, protowire.BytesType), start))
}

// Write appends scalars of a step, and brings them to the file: whoever looks while the run goes on sees them. Values are stored as float32,
// which is what TensorBoard shows; what is not finite is shown as such.
func (w *Writer) Write(step int, at time.Time, scalars ...Scalar) error {
	var summary []byte
	for _, s := range scalars {
		v := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s.Tag)                              // Summary.Value.tag
		v = protowire.AppendFixed32(protowire.AppendTag(v, 2, protowire.Fixed32Type), math.Float32bits(float32(s.Value))) // .simple_value
		summary = protowire.AppendBytes(protowire.AppendTag(summary, 1, protowire.BytesType), v)                          // Summary.value
	}
	return w.record(protowire.AppendBytes(protowire.AppendTag(event(at, int64(step)), 5, protowire.BytesType), summary)) // Event.summary
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// masked is a checksum as records have it: a CRC of data that holds CRCs would be weak (tensorflow/core/lib/hash/crc32c.h).
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}

func (w *Writer) record(data []byte) error {
	var head [12]byte
	binary.LittleEndian.PutUint64(head[:], uint64(len(data)))
	binary.LittleEndian.PutUint32(head[8:], masked(head[:8]))
	w.b.Write(head[:])
	w.b.Write(data)
	w.b.Write(binary.LittleEndian.AppendUint32(nil, masked(data)))
	return w.b.Flush() // which returns the first error of all writes
}

// Name is the file's path.
func (w *Writer) Name() string { return w.f.Name() }

// Close ends the file.
func (w *Writer) Close() error { return w.f.Close() }
