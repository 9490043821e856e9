package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
)

// What is no frame is an error, whoever sends it, and nobody's crash: nothing, and lengths of more than there is.
func TestMalformed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serve(l, 1, "test")
	defer s.close()
	for _, sent := range [][]byte{{0, 0, 0, 0}, {1, 0, 0, 0, byte(hello)}, {3, 0, 0, 0, byte(hello), 4, 'a'}} { // a string of 2
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(sent); err != nil {
			t.Error(err)
		}
		w := &wire{conn: conn, limit: maxHello}
		if f, err := w.read(); err != nil || f.kind != welcome || f.getString() == "" {
			t.Errorf("%v is answered with %v", sent, err)
		}
		conn.Close()
	}
	text := binary.AppendVarint(nil, 3)
	for n, want := range []error{2: errFrame, 3: nil} {
		f := &frame{data: append(text, "abc"[:n]...)}
		if got := f.getString(); n >= 2 && (f.err != want || want == nil && got != "abc") {
			t.Errorf("of a string of 3 with %d there: %q, %v", n, got, f.err)
		}
	}
}

// What is over is forgotten, on a rank and on rank 0, or a long run would keep something of every step.
func TestNothingKept(t *testing.T) {
	cs := star(t, 2, time.Minute)
	done := make(chan error)
	for _, c := range cs {
		go func() {
			err := c.Register("both", []int{0, 1})
			for n := range 5 {
				_, wrong := c.Exchange(context.Background(), "both", n, []byte("x"))
				err = errors.Join(err, wrong, c.Issued("both", n, "a sum", "a sum"))
			}
			_, wrong := c.Exchange(context.Background(), "both", 5, nil) // behind what has been issued
			done <- errors.Join(err, wrong)
		}()
	}
	for range cs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for r, c := range cs {
		if n := len(c.waiting); n > 0 {
			t.Errorf("rank %d keeps %d exchanges", r, n)
		}
	}
	s := cs[0].server
	s.mu.Lock()
	if g := s.groups["both"]; len(g.exchanges) > 0 || len(g.calls) > 0 {
		t.Errorf("rank 0 keeps exchanges %v and calls %v", g.exchanges, g.calls)
	}
	s.mu.Unlock()
	for _, c := range cs {
		c.Close()
	}
}

// Who waits for data that will not come ends with the job; and a rank that has a reason of its own, but too late, has the one that counts.
func TestWaitsForNothing(t *testing.T) {
	cs := star(t, 2, time.Minute)
	defer func() {
		for _, c := range cs {
			c.Close()
		}
	}()
	full, mine := errors.New("no space left"), errors.New("too late")
	m := &Member{Client: cs[1], Name: "both", Ranks: []int{0, 1}, rank: 1}
	waited := make(chan error, 1)
	go func() { waited <- m.Wait(&engine.Call{}, func() (bool, error) { return false, nil }) }()
	cs[0].Abort(full)
	select {
	case err := <-waited:
		var re *collective.RankError
		if !errors.As(err, &re) || re.Rank != 0 || re.Reason != full.Error() {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for ever")
	}
	c := &Client{mine: collective.NewRankError(1, mine)}
	if got := c.ending(0, full.Error()); got.Rank != 0 || errors.Is(got, mine) {
		t.Errorf("rank 0's end is %v", got)
	}
	if got := c.ending(1, mine.Error()); got.Rank != 1 || !errors.Is(got, mine) {
		t.Errorf("its own end is %v", got)
	}
}

// half is a connection that takes a part of the first write.
type half struct {
	net.Conn
	taken []byte
}

func (c *half) SetWriteDeadline(time.Time) error { return nil }

func (c *half) Write(b []byte) (int, error) {
	c.taken = append(c.taken, b[:len(b)/2]...)
	return len(b) / 2, io.ErrShortWrite
}

// Nothing follows a part of a frame: it would be taken for the rest.
func TestHalfWritten(t *testing.T) {
	c := &half{}
	w := &wire{conn: c}
	for range 2 {
		if err := w.write(newFrame(exchange).string("some words")); !errors.Is(err, io.ErrShortWrite) || len(c.taken) != 8 {
			t.Errorf("%v, and %d bytes have left", err, len(c.taken))
		}
	}
}

// slowly is a connection that takes and gives little at a time, and each time within the silence limit.
type slowly struct {
	net.Conn
	held        []byte
	read, write time.Time // deadlines that have been used
	rd, wd      time.Time
}

var errLate = errors.New("the deadline is an old one")

func (c *slowly) SetWriteDeadline(t time.Time) error { c.wd = t; return nil }
func (c *slowly) SetReadDeadline(t time.Time) error  { c.rd = t; return nil }

func (c *slowly) Write(b []byte) (int, error) {
	if len(b) > piece || !c.wd.After(c.write) {
		return 0, errLate
	}
	c.held, c.write = append(c.held, b...), c.wd
	return len(b), nil
}

func (c *slowly) Read(b []byte) (int, error) {
	if !c.rd.After(c.read) && len(b) > 4 {
		return 0, errLate
	}
	n := copy(b[:min(len(b), 1<<18)], c.held)
	c.held, c.read = c.held[n:], c.rd
	return n, nil
}

// A long frame may take longer than a peer may be silent, as long as it goes on.
func TestLongFrame(t *testing.T) {
	w := &wire{conn: &slowly{}, limit: uint32(maxFrame)}
	text := strings.Repeat("a long message ", 3*piece/15)
	if err := w.write(newFrame(result).string(text)); err != nil {
		t.Fatal(err)
	}
	f, err := w.read()
	if err != nil || f.kind != result || f.getString() != text || f.err != nil {
		t.Errorf("%v", err)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(newFrame(exchange).string("all ranks").int(3).string("an exchange").string("hello").data[5:])
	f.Add(newFrame(register).string("g").ints([]int{0, 2, 5}).data[5:])
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &server{groups: map[string]*gathering{}, peers: []*peer{{left: true, heard: make(chan struct{})}}}
		for k := hello; k <= allGone; k++ {
			if k != abort && k != exchange && k != issued && k != late && k != bye {
				_ = s.handle(0, &frame{kind: k, data: data})
			}
		}
		g := &frame{data: data}
		for g.err == nil && len(g.data) > 0 {
			g.getInt()
			g.getInts()
			g.getString()
		}
	})
}

// fake is the other end of a connection that has been greeted: what a test says for rank 0.
func fake(t *testing.T) (*Client, *wire) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	joined := make(chan *Client, 1)
	go func() {
		c, err := Join(context.Background(), Config{Rank: 1, Size: 2, Start: time.Minute, Deadline: time.Minute, Addresses: []string{l.Addr().String()}})
		if err != nil {
			t.Error(err)
		}
		joined <- c
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{conn: conn, limit: maxHello}
	if f, err := w.read(); err != nil || f.kind != hello {
		t.Fatalf("it begins with %v, %v", f, err)
	}
	if err := w.write(newFrame(welcome).string("")); err != nil {
		t.Fatal(err)
	}
	c := <-joined
	t.Cleanup(func() {
		conn.Close()
		c.Close()
	})
	return c, w
}

// Whoever has nothing to say shows that it lives, rank 0 and the others.
func TestSignsOfLife(t *testing.T) {
	_, rank0 := fake(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := serve(l, 2, "")
	defer s.close()
	other, err := greet(context.Background(), Config{Rank: 1, Size: 2}, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.conn.Close()
	for what, w := range map[string]*wire{"a rank": rank0, "rank 0": other} {
		if f, err := w.read(); err != nil || f.kind != ping {
			t.Errorf("%s says %v, %v; want a sign of life", what, f, err)
		}
	}
}

// A result that is cut off is no result.
func TestHalfResult(t *testing.T) {
	c, rank0 := fake(t)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Exchange(context.Background(), "all", 1, []byte("mine"))
		failed <- err
	}()
	if f, err := rank0.read(); err != nil || f.kind != exchange {
		t.Fatalf("%v, %v", f, err)
	}
	if err := rank0.write(newFrame(result).string("all").int(1).int(2).string("mine")); err != nil {
		t.Fatal(err)
	}
	var re *collective.RankError
	if err := <-failed; !errors.As(err, &re) || re.Rank != 0 {
		t.Errorf("%v; want that what rank 0 says is malformed", err)
	}
}

// A rank that gives two reasons has its first one back, as the error that it was, when rank 0 says so.
func TestFirstReason(t *testing.T) {
	c, rank0 := fake(t)
	first, second := errors.New("no space left"), errors.New("stopped")
	ended := make(chan error, 2)
	for _, reason := range []error{first, second} {
		go func() { ended <- c.Abort(reason) }()
		for f := (&frame{}); f.kind != abort; {
			var err error
			if f, err = rank0.read(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := rank0.write(newFrame(abort).int(1).string(first.Error())); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; !errors.Is(err, first) {
			t.Errorf("%v; want the first reason itself", err)
		}
	}
}

// Two ranks that call different things are told so, whichever came first.
func TestTwoDisagree(t *testing.T) {
	for first := range 2 {
		cs := star(t, 2, time.Minute)
		for i := range 2 {
			r := (first + i) % 2
			if err := cs[r].Register("both", []int{0, 1}); err != nil {
				t.Fatal(err)
			}
			op := []string{"a sum", "a gather"}[r]
			if err := cs[r].Issued("both", 1, op, op); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		for _, c := range cs {
			select {
			case <-c.fate.Done():
			case <-time.After(10 * time.Second):
			}
			if err := c.fate.Err(); err == nil || err.Error() != "rank 1: ranks disagree: rank 0 calls a sum, rank 1 calls a gather" {
				t.Errorf("rank %d: %v", c.Rank, err)
			}
		}
		for _, c := range cs {
			c.Close()
		}
	}
}

// What a rank says in the name of a group that is not its own, or that there can't be, ends the job as a malformed message. Passed over, it would
// bring rank 0 down when a member of the group leaves.
func TestForeigners(t *testing.T) {
	for _, says := range [][]*frame{
		{newFrame(register).string("others").ints([]int{0, 2})},
		{newFrame(register).string("too many").ints([]int{1, 3})},
		{newFrame(register).string("negative").ints([]int{-1, 1})},
		{newFrame(register).string("twice").ints([]int{1, 1})},
		{newFrame(exchange).string("theirs").int(1).string("an exchange").string(""), newFrame(bye)},
		{newFrame(issued).string("theirs").int(1).string("a sum").string("a sum"), newFrame(bye)},
		{newFrame(late).string("theirs").int(1).int(1).string("a sum").string("within 1s")},
		{newFrame(exchange).string("nobody's").int(1).string("an exchange").string("")},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := serve(l, 3, "")
		s.mu.Lock()
		s.groups["theirs"] = &gathering{ranks: []int{0, 2}, exchanges: map[int]*round{}, calls: map[int]*round{}, last: make([]int, 2)}
		s.mu.Unlock()
		w, err := greet(context.Background(), Config{Rank: 1, Size: 3}, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range says {
			_ = w.write(f) // the second may be too late
		}
		for err == nil { // until the connection ends
			_, err = w.read()
		}
		s.mu.Lock()
		if want := "rank 1: a malformed message"; s.failed != want {
			t.Errorf("the job has ended with %q, want %q", s.failed, want)
		}
		s.mu.Unlock()
		s.close()
		w.conn.Close()
	}
}
