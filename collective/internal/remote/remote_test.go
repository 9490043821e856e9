package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/collectivetest"
	"contraflow/collective/internal/engine"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// slow is a transport whose data travel as exchanges of the star: enough to try everything else.
type slow struct {
	*Member
	n int
}

func (t *slow) exchange(c *engine.Call, mine []gpustage.Tensor, index int, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	if err := t.Begin(c); err != nil {
		return nil, err
	}
	room, err := into()
	if err != nil {
		return nil, err
	}
	f := newFrame(0)
	for _, x := range mine {
		b := make([]byte, x.Len()*x.DType.Size())
		if len(b) > 0 {
			c.Stream.CopyOut(b, x)
		}
		if err := c.Stream.Sync(); err != nil {
			return nil, err
		}
		f.string(string(b))
	}
	t.n++
	var all [][]byte
	done := make(chan error, 1)
	go func() {
		var err error
		all, err = t.Client.exchange(context.Background(), t.Name+" data", t.n, f.data[5:], time.Minute)
		done <- err
	}()
	err = t.Wait(c, func() (bool, error) {
		select {
		case err := <-done:
			return true, err
		default:
			return false, nil
		}
	})
	if err != nil {
		return nil, err
	}
	views := make([]gpustage.Tensor, len(all))
	for k, m := range all {
		g := &frame{data: m}
		for range index {
			g.getString()
		}
		if b := []byte(g.getString()); k == t.Rank() {
			views[k] = mine[index]
		} else if views[k] = room[k]; len(b) > 0 {
			c.Stream.CopyIn(room[k], b)
		}
	}
	return views, c.Stream.Sync()
}

func (t *slow) AllToAll(c *engine.Call, parts []gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.exchange(c, parts, t.Rank(), into)
}

func (t *slow) Gather(c *engine.Call, own gpustage.Tensor, into func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return t.exchange(c, []gpustage.Tensor{own}, 0, into)
}

func (t *slow) Broadcast(c *engine.Call, x gpustage.Tensor, root int) (gpustage.Tensor, error) {
	same := make([]gpustage.Tensor, t.Size())
	for k := range same {
		same[k] = x
	}
	var mine []gpustage.Tensor
	if t.Rank() == root {
		mine = []gpustage.Tensor{x}
	}
	views, err := t.exchange(c, append(mine, gpustage.Tensor{Mem: x.Mem, DType: x.DType}), 0, func() ([]gpustage.Tensor, error) { return same, nil })
	if err != nil {
		return x, err
	}
	return views[root], nil
}

func (t *slow) Release(*engine.Call) error { return nil }
func (t *slow) Close() error               { return nil }

func openSlow(_ context.Context, m *Member, _ func([]byte) ([]byte, error)) (Transport, error) {
	return &slow{Member: m}, m.Client.Register(m.Name+" data", m.Ranks)
}

// star connects n ranks within this process.
func star(t testing.TB, n int, deadline time.Duration) []*Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cs := make([]*Client, n)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for r := range cs {
		c := Config{Rank: r, Size: n, Token: "test", Start: time.Minute, Deadline: deadline, Addresses: []string{l.Addr().String()}}
		if r == 0 {
			c.Listener = l
		}
		wait.Go(func() { cs[r], errs[r] = Join(context.Background(), c) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return cs
}

func worlds(t testing.TB, n int, deadline time.Duration) ([]collective.World, error) {
	cs := star(t, n, deadline)
	ws := make([]collective.World, n)
	errs := make([]error, n)
	var wait sync.WaitGroup
	for r, c := range cs {
		wait.Go(func() { ws[r], errs[r] = NewWorld(context.Background(), c, openSlow, nil) })
	}
	wait.Wait()
	return ws, errors.Join(errs...)
}

// checkGoroutines fails the test if it leaves goroutines behind.
func checkGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for range 300 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before: %s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
	})
}

func TestConformance(t *testing.T) {
	checkGoroutines(t)
	collectivetest.Run(t, []int{1, 3, 4}, func(size int, deadline time.Duration) ([]collective.World, []gpustage.Device, error) {
		ds := make([]gpustage.Device, size)
		for r := range ds {
			ds[r] = ref.New()
		}
		ws, err := worlds(t, size, deadline)
		return ws, ds, err
	})
}

// A connection that breaks without a farewell names the rank, whoever it is.
func TestDeath(t *testing.T) {
	for _, dead := range []int{0, 1, 2} {
		cs := star(t, 3, time.Minute)
		for _, c := range cs {
			if err := c.Register("all", []int{0, 1, 2}); err != nil {
				t.Error(err)
			}
		}
		start := time.Now()
		if dead == 0 {
			cs[0].server.listener.Close()
			for _, p := range cs[0].server.all() {
				p.conn.Close()
			}
		} else {
			cs[dead].wire.conn.Close()
		}
		for r, c := range cs {
			if r == dead {
				continue
			}
			_, err := c.Exchange(context.Background(), "all", 1, nil)
			var re *collective.RankError
			if !errors.As(err, &re) || re.Rank != dead || !strings.Contains(re.Reason, "process has ended") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("it took %v", d)
		}
		for _, c := range cs {
			c.Close()
		}
	}
}

// A rank that goes on for longer than rank 0 waits to leave with it is told so, and not that rank 0 has died; how long an exchange was waited for is what was
// said of this one.
func TestGoesOnAlone(t *testing.T) {
	checkGoroutines(t)
	const patience = 200 * time.Millisecond
	cs := star(t, 2, patience)
	cs[0].Leave()
	select {
	case <-cs[1].fate.Done():
	case <-time.After(10 * time.Second):
	}
	var re *collective.RankError
	if err := cs[1].fate.Err(); !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, "it has not left the job within 200ms") {
		t.Error(err)
	}
	for _, c := range cs {
		c.Close()
	}
	cs = star(t, 2, time.Minute)
	for _, c := range cs {
		if err := c.Register("both", []int{0, 1}); err != nil {
			t.Error(err)
		}
	}
	if _, err := cs[0].exchange(t.Context(), "both", 1, nil, patience); !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, "within 200ms") {
		t.Error(err)
	}
	for _, c := range cs {
		c.Close()
	}
}

// Once all have said good-bye, nobody's end is a failure.
func TestFarewell(t *testing.T) {
	cs := star(t, 3, time.Minute)
	var wait sync.WaitGroup
	for _, c := range cs {
		wait.Go(c.Leave)
	}
	wait.Wait()
	if err := cs[0].Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond)
	for r, c := range cs {
		if err := c.fate.Err(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A rank that is alive for its kernel but does not speak is gone as well.
func TestSilence(t *testing.T) {
	cs := star(t, 2, time.Minute)
	defer func() {
		for _, c := range cs {
			c.Close()
		}
	}()
	cs[1].mu.Lock() // as if stopped: neither its reader nor its pings go on
	defer cs[1].mu.Unlock()
	cs[1].wire.mu.Lock()
	defer cs[1].wire.mu.Unlock()
	start := time.Now()
	select {
	case <-cs[0].fate.Done():
	case <-time.After(10 * time.Second):
	}
	var re *collective.RankError
	if err := cs[0].fate.Err(); !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, "no sign of life") {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// Rank 0 waits for the last words of silent ranks once, however many they are.
func TestSilentMany(t *testing.T) {
	cs := star(t, 4, time.Minute)
	defer func() {
		for _, c := range cs {
			c.Close()
		}
	}()
	for _, c := range cs[1:3] {
		c.wire.mu.Lock() // they can't say that they have heard
		defer c.wire.mu.Unlock()
	}
	start := time.Now()
	cs[0].server.fail(3, "on purpose")
	select {
	case <-cs[0].fate.Done():
	case <-time.After(10 * time.Second):
	}
	var re *collective.RankError
	if err := cs[0].fate.Err(); !errors.As(err, &re) || re.Rank != 3 {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took < lastWords/2 || took > 4*lastWords {
		t.Errorf("rank 0 has heard of it after %v, want about %v", took, lastWords)
	}
}

// A rank that leaves while another waits for it, or before, is named with what is waited for, in exchanges and in data collectives.
func TestLeftBehind(t *testing.T) {
	for _, data := range []bool{false, true} {
		for _, leavesFirst := range []bool{false, true} {
			cs := star(t, 2, time.Minute)
			for _, c := range cs {
				if err := c.Register("both", []int{0, 1}); err != nil {
					t.Fatal(err)
				}
			}
			came := func(what string) bool { // rank 0's server knows of it
				s := cs[0].server
				for range 10_000 {
					s.mu.Lock()
					g := s.groups["both"]
					there := what == "bye" && s.peers[1].left || what == "wait" && g != nil && len(g.exchanges)+len(g.calls) > 0
					s.mu.Unlock()
					if there {
						return true
					}
					time.Sleep(time.Millisecond)
				}
				return false
			}
			wait := func() {
				if data {
					if err := cs[0].Issued("both", 1, "sum of 3", "a sum"); err != nil {
						t.Error(err)
					}
				} else {
					go cs[0].Exchange(t.Context(), "both", 1, nil)
				}
			}
			leave := func() { go cs[1].Leave() }
			first, then, sign := wait, leave, "wait"
			if leavesFirst {
				first, then, sign = leave, wait, "bye"
			}
			first()
			if !came(sign) {
				t.Fatalf("%s does not reach rank 0", sign)
			}
			then()
			for r, c := range cs {
				select {
				case <-c.fate.Done():
				case <-time.After(10 * time.Second):
				}
				var re *collective.RankError
				if err := c.fate.Err(); !errors.As(err, &re) || re.Rank != 1 || !strings.Contains(re.Reason, "it has left the job; ") || !strings.Contains(re.Reason, map[bool]string{false: "exchange", true: "a sum"}[data]) {
					t.Errorf("data %v, it leaves first: %v: rank %d: %v", data, leavesFirst, r, err)
				}
			}
			for _, c := range cs {
				c.Close()
			}
		}
	}
}

// Who comes when the job has ended is told so at once, and why: rank 0 as well, of a rank that came and went before it.
func TestLatecomer(t *testing.T) {
	for _, last := range []int{0, 2} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := serve(l, 3, "test")
		join := func(rank int) (*Client, error) {
			return Join(t.Context(), Config{Rank: rank, Size: 3, Token: "test", Start: time.Minute, Deadline: time.Minute, Addresses: []string{l.Addr().String()}})
		}
		first, err := join(2 - last)
		if err != nil {
			t.Fatal(err)
		}
		gone, err := join(1)
		if err != nil {
			t.Fatal(err)
		}
		gone.wire.conn.Close()
		select {
		case <-first.fate.Done():
		case <-time.After(10 * time.Second):
			t.Error("nobody has told the other rank")
		}
		_, err = join(last)
		if err == nil || !strings.Contains(err.Error(), "the job has ended: rank 1: its process has ended without saying why") {
			t.Errorf("rank %d: %v", last, err)
		}
		first.Close()
		gone.Close()
		s.close()
	}
}

func TestStrangers(t *testing.T) {
	cs := star(t, 2, time.Minute)
	defer func() {
		for _, c := range cs {
			c.Close()
		}
	}()
	address := cs[0].Addresses
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Rank: 1, Size: 2, Token: "test"}, "rank 1 has been started twice"},
		{Config{Rank: 2, Size: 3, Token: "test"}, "rank 0 has been started as one of 2 ranks, rank 2 as one of 3"},
		{Config{Rank: 1, Size: 2, Token: "other"}, "another job"},
		{Config{Rank: 7, Size: 2, Token: "test"}, "rank 7 of 2"},
	} {
		c.config.Start, c.config.Addresses = time.Minute, address
		_, err := Join(context.Background(), c.config)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v; want %q", err, c.want)
		}
	}
	// Somebody else's protocol disturbs nobody.
	conn, err := net.Dial("tcp", address[0])
	if err != nil {
		t.Fatal(err)
	}
	came := time.Now()
	io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n") // whose first bytes would be a length of 542 MB
	io.ReadAll(conn)
	conn.Close()
	if took := time.Since(came); took > silence/2 {
		t.Errorf("it took %v to turn a stranger away, whose message nobody should wait for", took)
	}
	if err := cs[0].fate.Err(); err != nil {
		t.Error(err)
	}
}

// Who connects and says nothing does not keep rank 0 at the job's end, and who comes while it ends is not taken in.
func TestSilentStranger(t *testing.T) {
	checkGoroutines(t)
	cs := star(t, 1, time.Minute)
	conn, err := net.Dial("tcp", cs[0].Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	cs[0].Leave()
	if err := cs[0].Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > silence/2 {
		t.Errorf("the end took %v", took)
	}
	s := &server{token: "test", quit: make(chan struct{}), peers: make([]*peer, 1)}
	close(s.quit)
	at := &slowly{}
	w := &wire{conn: at, limit: maxHello}
	if err := w.write(newFrame(hello).string("test").int(0).int(1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.admit(w); err == nil || err.Error() != "the job has ended" || s.peers[0] != nil {
		t.Errorf("%v", err)
	}
}

// Who comes to a port where something else answers, or nothing, is told what it tried.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "220 mail ready\r\n")
			c.Close()
		}
	}()
	_, err = Join(context.Background(), Config{Rank: 1, Size: 2, Start: 300 * time.Millisecond, Addresses: []string{l.Addr().String()}})
	if err == nil || !strings.Contains(err.Error(), "rank 1 can't reach rank 0 at ["+l.Addr().String()+"]") {
		t.Error(err)
	}
}

// Ranks that do not come at all are named once the deadline has passed, and a world that is not made leaves nothing open.
func TestMissing(t *testing.T) {
	checkGoroutines(t)
	cs := star(t, 4, 300*time.Millisecond)
	errs := make([]error, 2)
	var wait sync.WaitGroup
	for r := range 2 {
		cs[r].Start = time.Second // all came to the star; how long the two wait for them there
		wait.Go(func() { _, errs[r] = NewWorld(context.Background(), cs[r], openSlow, nil) })
	}
	wait.Wait()
	for r := range 2 {
		var re *collective.RankError
		if !errors.As(errs[r], &re) || re.Rank != 2 || !strings.Contains(re.Reason, "did not come to an exchange in meeting as ranks [0 1 2 3]") || !strings.HasSuffix(re.Reason, "(missing: ranks 2, 3)") {
			t.Errorf("rank %d: %v", r, errs[r])
		}
	}
	if _, err := net.Dial("tcp", cs[0].Addresses[0]); err == nil {
		t.Error("rank 0 still listens")
	}
	cs[2].Close()
	cs[3].Close()
}

// What is longer than a frame may be is the sender's error, or that of all, and at once: nobody is said to have died, and nobody waits.
func TestTooLong(t *testing.T) {
	defer func(n int) { maxFrame = n }(maxFrame)
	maxFrame = 300
	for _, x := range []struct {
		lengths [2]int
		rank    int
		want    string
	}{
		{[2]int{1, 301}, 1, "an exchange: a message of "},
		{[2]int{160, 160}, 0, "an exchange: all ranks' messages together are a message of "},
	} {
		cs := star(t, 2, time.Minute)
		errs := make([]error, 2)
		var wait sync.WaitGroup
		start := time.Now()
		for r, c := range cs {
			wait.Go(func() {
				if errs[r] = c.Register("both", []int{0, 1}); errs[r] == nil {
					_, errs[r] = c.Exchange(t.Context(), "both", 1, make([]byte, x.lengths[r]))
				}
			})
		}
		wait.Wait()
		for r, err := range errs {
			var re *collective.RankError
			if !errors.As(err, &re) || re.Rank != x.rank || !strings.Contains(re.Reason, x.want) || !strings.Contains(re.Reason, "300 at most") || time.Since(start) > 10*time.Second {
				t.Errorf("%v bytes: rank %d after %v: %v", x.lengths, r, time.Since(start), err)
			}
		}
		for _, c := range cs {
			c.Close()
		}
	}
}

// What one's own data say of another's failure is worth less than the news of it, which take a moment longer.
func TestNewsFirst(t *testing.T) {
	cs := star(t, 2, time.Minute)
	m := &Member{Client: cs[1], Name: "both", Ranks: []int{0, 1}, rank: 1}
	err := m.Wait(&engine.Call{}, func() (bool, error) {
		go cs[0].Abort(errors.New("no space left"))
		return false, errors.New("a peer's connection was reset")
	})
	var re *collective.RankError
	if !errors.As(err, &re) || re.Rank != 0 || re.Reason != "no space left" {
		t.Error(err)
	}
	for _, c := range cs {
		c.Close()
	}
}

// busy is a listener that has no room for a connection at first.
type busy struct {
	net.Listener
	times int
}

func (l *busy) Accept() (net.Conn, error) {
	if l.times--; l.times >= 0 {
		return nil, errors.New("too many open files")
	}
	return l.Listener.Accept()
}

// Rank 0 listens on after an error that passes.
func TestAcceptsAgain(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Join(t.Context(), Config{Size: 1, Start: 10 * time.Second, Deadline: time.Minute, Addresses: []string{l.Addr().String()}, Listener: &busy{l, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkExchange(b *testing.B) {
	for _, bytes := range []int{100, 1 << 18} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			ws, err := worlds(b, 4, time.Minute)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(4 * bytes))
			var wait sync.WaitGroup
			for _, w := range ws {
				wait.Go(func() {
					for range b.N {
						if _, err := w.Exchange(context.Background(), make([]byte, bytes)); err != nil {
							b.Error(err)
							return
						}
					}
					w.Close()
				})
			}
			wait.Wait()
		})
	}
}

// The first error of a world's end is Close's, and what follows is ended all the same.
func TestCloseFails(t *testing.T) {
	checkGoroutines(t)
	c := star(t, 1, time.Minute)[0]
	why := errors.New("it does not end")
	w, err := NewWorld(t.Context(), c, openSlow, func(failed bool) error {
		if failed {
			t.Error("it is said that the job has failed")
		}
		return why
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != why {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := net.Dial("tcp", c.Addresses[0]); err == nil {
		t.Error("rank 0 still listens")
	}
}
