package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// server is rank 0's side of the star: it collects exchanges, compares what ranks call, notices who has gone silent,
// and tells everybody how the job ended.
type server struct {
	token    string
	listener net.Listener
	tasks    sync.WaitGroup
	quit     chan struct{}

	mu     sync.Mutex
	peers  []*peer // by rank; nil before it has come
	groups map[string]*gathering
	left   int
	failed string // why the job has ended
}

// peer is one rank's connection.
type peer struct {
	*wire
	left, lost bool
	last       string        // the operation that it came to last
	heard      chan struct{} // closed when it has heard of the job's end, or can't
	once       sync.Once
}

func (p *peer) hears() { p.once.Do(func() { close(p.heard) }) }

// gathering is what is under way among some ranks.
type gathering struct {
	ranks     []int
	exchanges map[int]*round
	calls     map[int]*round
	last      []int // by member: the number of its last data collective
}

// round is one operation of a group, as far as ranks have come to it.
type round struct {
	here  []bool
	said  []string // by member: message, or operation
	what  []string // by member: what errors call it
	count int
}

func serve(l net.Listener, size int, token string) *server {
	s := &server{token: token, listener: l, quit: make(chan struct{}), peers: make([]*peer, size), groups: map[string]*gathering{}}
	s.tasks.Go(s.accept)
	return s
}

func (s *server) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // too many open files, say: whoever comes tries again, as dial does
			select {
			case <-s.quit:
				return
			case <-time.After(retry):
			}
			continue
		}
		s.tasks.Go(func() { s.peer(&wire{conn: c, limit: maxHello}) })
	}
}

// ping shows a peer that this rank lives.
func (s *server) ping(p *peer, quit <-chan struct{}) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-quit:
			return
		case <-t.C:
			_ = p.write(newFrame(ping)) // its reader notices
		}
	}
}

func (s *server) all() []*peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.peers), func(p *peer) bool { return p == nil || p.lost })
}

// peer serves one connection until it ends.
func (s *server) peer(w *wire) {
	defer w.conn.Close()
	greeted := make(chan struct{})
	s.tasks.Go(func() { // whoever does not say who it is keeps nobody at the end
		select {
		case <-greeted:
		case <-s.quit:
			w.conn.Close()
		}
	})
	rank, p, err := s.admit(w)
	close(greeted)
	if err != nil {
		_ = w.write(newFrame(welcome).string(err.Error())) // whoever it was
		return
	}
	quit := make(chan struct{})
	defer close(quit)
	s.tasks.Go(func() { s.ping(p, quit) })
	for {
		f, err := w.read()
		if err == nil {
			err = s.handle(rank, f)
		}
		if err == nil {
			continue
		}
		s.mu.Lock()
		p.lost = true
		left := p.left
		s.mu.Unlock()
		p.hears()
		if !left && !errors.Is(err, net.ErrClosed) { // closed here: the server ends
			s.fail(rank, gone(err))
		}
		return
	}
}

// gone says what the end of a connection means.
func gone(err error) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("it has given no sign of life for %v", silence)
	}
	if errors.Is(err, errFrame) {
		return err.Error()
	}
	return fmt.Sprintf("its process has ended without saying why (%v)", err)
}

// admit is the greeting.
func (s *server) admit(w *wire) (int, *peer, error) {
	f, err := w.read()
	if err != nil {
		return 0, nil, err
	}
	token, rank, size := f.getString(), f.getInt(), f.getInt()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.kind != hello || f.err != nil:
		return 0, nil, errors.New("this is the rendezvous of a contraflow job")
	case token != s.token:
		return 0, nil, fmt.Errorf("another job: it is called %q here, %q there", s.token, token)
	case size != len(s.peers):
		return 0, nil, fmt.Errorf("rank 0 has been started as one of %d ranks, rank %d as one of %d", len(s.peers), rank, size)
	case rank < 0 || rank >= size:
		return 0, nil, fmt.Errorf("rank %d of %d", rank, size)
	case s.over():
		return 0, nil, errors.New("the job has ended")
	case s.failed != "": // before it came: nobody would answer it
		return 0, nil, fmt.Errorf("the job has ended: %s", s.failed)
	case s.peers[rank] != nil:
		return 0, nil, fmt.Errorf("rank %d has been started twice", rank)
	}
	w.limit = uint32(maxFrame)
	p := &peer{wire: w, heard: make(chan struct{})}
	s.peers[rank] = p
	return rank, p, w.write(newFrame(welcome).string(""))
}

// handle acts on one frame. Its error ends the connection.
func (s *server) handle(rank int, f *frame) error {
	switch f.kind {
	case ping:
	case register:
		name, ranks := f.getString(), f.getInts()
		if f.err == nil {
			return s.register(name, rank, ranks)
		}
	case exchange:
		name, n, what, message := f.getString(), f.getInt(), f.getString(), f.getString()
		if f.err == nil {
			return s.exchange(name, rank, n, what, message)
		}
	case issued:
		name, n, op, what := f.getString(), f.getInt(), f.getString(), f.getString()
		if f.err == nil {
			return s.issued(name, rank, n, op, what)
		}
	case late:
		name, n, data, what, waited := f.getString(), f.getInt(), f.getInt(), f.getString(), f.getString()
		if f.err == nil {
			return s.late(name, rank, n, data == 1, what, waited)
		}
	case abort:
		culprit, reason := f.getInt(), f.getString()
		if f.err == nil {
			s.fail(culprit, reason)
		}
	case heard:
		s.mu.Lock()
		p := s.peers[rank]
		s.mu.Unlock()
		p.hears()
	case bye:
		s.leave(rank)
	default:
		return errFrame
	}
	return f.err
}

// register, as what is said in a group's name, is for its members.
func (s *server) register(name string, rank int, ranks []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range ranks {
		if r < 0 || r >= len(s.peers) || k > 0 && r <= ranks[k-1] {
			return errFrame
		}
	}
	if !slices.Contains(ranks, rank) {
		return errFrame
	}
	if s.groups[name] == nil {
		s.groups[name] = &gathering{ranks: ranks, exchanges: map[int]*round{}, calls: map[int]*round{}, last: make([]int, len(ranks))}
	}
	return nil
}

// group is the one of that name, if a rank is a member, and the rank's number there. The lock is held.
func (s *server) group(name string, rank int) (*gathering, int) {
	if g := s.groups[name]; g != nil {
		if k := slices.Index(g.ranks, rank); k >= 0 {
			return g, k
		}
	}
	return nil, 0
}

// join notes that a group's member k has come to operation n. The lock is held.
func (s *server) join(g *gathering, rounds map[int]*round, k, n int, said, what string) *round {
	r := rounds[n]
	if r == nil {
		r = &round{here: make([]bool, len(g.ranks)), said: make([]string, len(g.ranks)), what: make([]string, len(g.ranks))}
		rounds[n] = r
	}
	if !r.here[k] {
		r.here[k], r.said[k], r.what[k] = true, said, what
		r.count++
		s.peers[g.ranks[k]].last = what
	}
	if r.count == len(g.ranks) {
		delete(rounds, n)
	}
	return r
}

// waitsInVain finds a rank that r waits for and that has left. The lock is held.
func (s *server) waitsInVain(g *gathering, r *round) (int, bool) {
	for k, rank := range g.ranks {
		if p := s.peers[rank]; !r.here[k] && p != nil && p.left {
			return rank, true
		}
	}
	return 0, false
}

func (s *server) exchange(name string, rank, n int, what, message string) error {
	s.mu.Lock()
	g, k := s.group(name, rank)
	if g == nil {
		s.mu.Unlock()
		return errFrame
	}
	r := s.join(g, g.exchanges, k, n, message, what)
	goner, vain := s.waitsInVain(g, r)
	var to []*peer
	if r.count == len(g.ranks) {
		for _, k := range g.ranks {
			to = append(to, s.peers[k])
		}
	}
	s.mu.Unlock()
	if vain {
		s.fail(goner, fmt.Sprintf("it has left the job; rank %d waits for it in %s", rank, what))
	}
	if to == nil {
		return nil
	}
	f := newFrame(result).string(name).int(n).int(len(r.said))
	for _, m := range r.said {
		f.string(m)
	}
	for k, p := range to {
		if err := p.write(f); err != nil {
			s.unsent(g.ranks[k], p, what, err)
		}
	}
	return nil
}

// unsent ends the job for a rank that has not got what it waits for.
func (s *server) unsent(rank int, p *peer, what string, err error) {
	s.mu.Lock()
	over := p.lost || p.left // its reader has noticed
	s.mu.Unlock()
	switch long := tooLong(0); {
	case errors.As(err, &long):
		s.fail(rank, fmt.Sprintf("%s: all ranks' messages together are %v", what, err))
	case !over && !errors.Is(err, net.ErrClosed):
		s.fail(rank, gone(err))
	}
}

// issued compares what ranks call.
func (s *server) issued(name string, rank, n int, op, what string) error {
	s.mu.Lock()
	g, k := s.group(name, rank)
	if g == nil {
		s.mu.Unlock()
		return errFrame
	}
	r := s.join(g, g.calls, k, n, op, what)
	g.last[k] = n
	goner, vain := s.waitsInVain(g, r)
	culprit, reason := 0, ""
	for k := range g.ranks { // the first that came is as good as any; rank 0 reads best
		first := slices.Index(r.here, true)
		if r.here[k] && r.said[k] != r.said[first] {
			culprit = g.ranks[k]
			reason = fmt.Sprintf("ranks disagree: rank %d calls %s, rank %d calls %s", g.ranks[first], r.what[first], culprit, r.what[k])
			break
		}
	}
	s.mu.Unlock()
	if reason != "" {
		s.fail(culprit, reason)
	}
	if vain {
		s.fail(goner, fmt.Sprintf("it has left the job; rank %d waits for it in %s", rank, what))
	}
	return nil
}

// late finds out whom a rank has waited for too long.
func (s *server) late(name string, rank, n int, data bool, what, waited string) error {
	s.mu.Lock()
	g, _ := s.group(name, rank)
	if g == nil {
		s.mu.Unlock()
		return errFrame
	}
	var missing []string
	culprit := rank
	for k := range g.ranks {
		absent := false
		if data {
			absent = g.last[k] < n
		} else if r := g.exchanges[n]; r != nil {
			absent = !r.here[k]
		}
		if absent {
			if missing == nil {
				culprit = g.ranks[k]
			}
			missing = append(missing, fmt.Sprint(g.ranks[k]))
		}
	}
	also := ""
	if p := s.peers[culprit]; p != nil && p.last != "" {
		also = "; the last that it came to is " + p.last
	}
	s.mu.Unlock()
	if len(missing) > 1 {
		also += fmt.Sprintf(" (missing: ranks %s)", strings.Join(missing, ", "))
	}
	if missing == nil {
		s.fail(rank, fmt.Sprintf("%s has not ended %s, though all ranks have come to it", what, waited))
	} else {
		s.fail(culprit, fmt.Sprintf("it did not come to %s, where rank %d waits: %s%s", what, rank, waited, also))
	}
	return nil
}

// leave notes that a rank has closed its world.
func (s *server) leave(rank int) {
	s.mu.Lock()
	p := s.peers[rank]
	if !p.left {
		p.left = true
		s.left++
	}
	all := s.left == len(s.peers)
	what := ""
	for _, g := range s.groups {
		k := slices.Index(g.ranks, rank)
		if k < 0 {
			continue
		}
		for _, r := range g.exchanges {
			if !r.here[k] {
				what = r.what[slices.Index(r.here, true)]
			}
		}
		for _, r := range g.calls {
			if !r.here[k] {
				what = r.what[slices.Index(r.here, true)]
			}
		}
	}
	s.mu.Unlock()
	if what != "" {
		s.fail(rank, "it has left the job; others wait for it in "+what)
	}
	if all {
		for _, p := range s.all() {
			_ = p.write(newFrame(allGone)) // they don't wait for long
		}
	}
}

// desert ends the job for the ranks that go on when rank 0, which all of them need, has waited long enough to leave with them: its process seems to
// have died to them otherwise.
func (s *server) desert(waited time.Duration) {
	s.mu.Lock()
	late := slices.IndexFunc(s.peers, func(p *peer) bool { return p != nil && !p.left })
	s.mu.Unlock()
	if late >= 0 {
		s.fail(late, fmt.Sprintf("it has not left the job within %v of rank 0, without which there is none", waited))
	}
}

// fail tells everybody how the job ended, rank 0 last: when it knows, its process may end, and with it this server.
func (s *server) fail(culprit int, reason string) {
	s.mu.Lock()
	if s.failed != "" {
		s.mu.Unlock()
		return
	}
	s.failed = fmt.Sprintf("rank %d: %s", culprit, reason)
	first := s.peers[0]
	s.mu.Unlock()
	var told []*peer
	for _, p := range s.all() {
		if p == first {
			continue
		}
		if p.write(newFrame(abort).int(culprit).string(reason)) == nil {
			told = append(told, p)
		}
	}
	patience, cancel := context.WithTimeout(context.Background(), lastWords) // with all of them together
	s.tasks.Go(func() {                                                      // not here: this goroutine may be the one that reads what a peer has heard
		defer cancel()
		for _, p := range told {
			select {
			case <-p.heard:
			case <-patience.Done():
			case <-s.quit:
			}
		}
		if first != nil {
			_ = first.write(newFrame(abort).int(culprit).string(reason))
		}
	})
}

// over tells that the server closes its connections: none may be added to those that it knows.
func (s *server) over() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

func (s *server) close() {
	close(s.quit)
	s.listener.Close()
	for _, p := range s.all() {
		p.conn.Close()
	}
	s.tasks.Wait()
}
