package remote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// kind is what a frame says.
type kind byte

const (
	hello    kind = iota + 1 // token, rank, size
	welcome                  // nothing, or why not
	register                 // group, ranks
	exchange                 // group, number, message
	result                   // group, number, messages
	issued                   // group, number, operation: a data collective that a rank has called
	late                     // group, number, data or exchange, operation, how long: a rank has waited too long
	abort                    // rank, reason
	heard                    // the abort
	ping
	bye     // the rank leaves in peace
	allGone // every rank has
)

const (
	maxHello = 1 << 12 // bytes, as long as it is not known whether a peer speaks something else
	piece    = 1 << 20 // of a frame that must be taken within the silence limit
)

var maxFrame = 1 << 30 // bytes; fewer in tests

// frame is a message under construction or being read: a kind and fields one after the other, integers as varints, strings
// with their length.
type frame struct {
	kind kind
	data []byte
	err  error // of reading
}

func newFrame(k kind) *frame { return &frame{kind: k, data: make([]byte, 5, 64)} }

func (f *frame) int(v int) *frame {
	f.data = binary.AppendVarint(f.data, int64(v))
	return f
}

func (f *frame) string(s string) *frame {
	f.int(len(s))
	f.data = append(f.data, s...)
	return f
}

func (f *frame) ints(vs []int) *frame {
	f.int(len(vs))
	for _, v := range vs {
		f.int(v)
	}
	return f
}

var errFrame = errors.New("a malformed message")

func (f *frame) getInt() int {
	v, n := binary.Varint(f.data)
	if n <= 0 {
		f.err = errFrame
		return 0
	}
	f.data = f.data[n:]
	return int(v)
}

// count is a length, of things that take at least a byte each.
func (f *frame) count() int {
	n := f.getInt()
	if n < 0 || n > len(f.data) {
		f.err = errFrame
		return 0
	}
	return n
}

func (f *frame) getString() string {
	n := f.count()
	s := string(f.data[:n])
	f.data = f.data[n:]
	return s
}

func (f *frame) getInts() []int {
	vs := make([]int, f.count())
	for i := range vs {
		vs[i] = f.getInt()
	}
	return vs
}

// wire is a connection that several goroutines write frames to and one reads from.
type wire struct {
	conn  net.Conn
	limit uint32 // bytes of a frame that is read
	mu    sync.Mutex
	err   error // of writing: a part of a frame may have left, and nothing that would be understood can follow
}

// tooLong is the error of a frame that is not sent.
type tooLong int

func (n tooLong) Error() string {
	return fmt.Sprintf("a message of %d bytes, and ranks exchange %d at most", int(n), maxFrame)
}

// write sends a frame. Whoever does not take a piece of it within the silence limit counts as gone.
func (w *wire) write(f *frame) error {
	if len(f.data) > maxFrame {
		return tooLong(len(f.data))
	}
	binary.LittleEndian.PutUint32(f.data, uint32(len(f.data)-4))
	f.data[4] = byte(f.kind)
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := range slices.Chunk(f.data, piece) {
		if w.err == nil {
			w.err = w.conn.SetWriteDeadline(time.Now().Add(silence))
		}
		if w.err == nil {
			_, w.err = w.conn.Write(rest)
		}
	}
	return w.err
}

// read waits for a frame as long as a peer may be silent.
func (w *wire) read() (*frame, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
		return nil, err
	}
	var head [4]byte
	if _, err := io.ReadFull(w.conn, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 1 || n > w.limit {
		return nil, errFrame
	}
	data := make([]byte, n)
	for at := 0; at < len(data); { // a long frame may take its time as long as it goes on
		if err := w.conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return nil, err
		}
		m, err := w.conn.Read(data[at:])
		if at += m; err != nil && at < len(data) {
			return nil, err
		}
	}
	return &frame{kind: kind(data[0]), data: data[1:]}, nil
}
