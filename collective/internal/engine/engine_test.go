package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/collective/internal/engine"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
)

// What a rank must not pass is refused with what it has passed and what was wanted. collectivetest checks results.
func TestRefusals(t *testing.T) {
	d := ref.New()
	tensor := func(t gpustage.DType, rows, cols int) gpustage.Tensor {
		x, err := gpustage.NewTensor(d, t, rows, cols)
		if err != nil {
			panic(err)
		}
		return x
	}
	f32, bf16, none := gpustage.F32, gpustage.BF16, gpustage.Tensor{}
	big := tensor(f32, 6, 4)
	for _, c := range []struct {
		want string
		call func(w collective.World, s gpustage.Stream)
	}{
		{"all-gather: rows [1 2] of a group of 1 ranks", func(w collective.World, s gpustage.Stream) { w.AllGather(s, big, big, []int{1, 2}, f32) }},
		{"all-gather: rank 0 has -1 rows", func(w collective.World, s gpustage.Stream) { w.AllGather(s, big, big, []int{-1}, f32) }},
		{"all-gather: src is f32[3 4]; rows [6] want f32[6 4] on rank 0", func(w collective.World, s gpustage.Stream) { w.AllGather(s, big, big.Span(0, 3), []int{6}, f32) }},
		{"all-gather: dst is f32[6 4]; rows [3] want f32[3 4] on rank 0", func(w collective.World, s gpustage.Stream) {
			w.AllGather(s, big, tensor(f32, 3, 4), []int{3}, f32)
		}},
		{"all-gather: src is f64[6 4]; rows [6] want f32[6 4]", func(w collective.World, s gpustage.Stream) {
			w.AllGather(s, big, tensor(gpustage.F64, 6, 4), []int{6}, f32)
		}},
		{"all-gather: src is no tensor; rows [6] want f32[6 4]", func(w collective.World, s gpustage.Stream) { w.AllGather(s, big, none, []int{6}, f32) }},
		{"all-gather: src is f32[3 2]/4; want a contiguous one", func(w collective.World, s gpustage.Stream) {
			w.AllGather(s, tensor(f32, 3, 2), big.Span(0, 3).Columns(0, 2), []int{3}, f32)
		}},
		{"reduce-scatter: dst lies within src but is not this rank's part of it", func(w collective.World, s gpustage.Stream) {
			dst := big.Span(0, 3)
			dst.Off += 2
			w.ReduceScatter(s, dst, big.Span(0, 3), []int{3}, f32)
		}},
		{"all-reduce: x is f32[9 4] at element 0 of 96 bytes", func(w collective.World, s gpustage.Stream) {
			x := big
			x.Rows = 9
			w.AllReduce(s, x, f32)
		}},
		{"all-reduce: x is f32[4 4] at element 12 of 96 bytes", func(w collective.World, s gpustage.Stream) {
			x := big.Span(3, 6)
			x.Rows = 4
			w.AllReduce(s, x, f32)
		}},
		{"all-reduce: a wire of f64; want the tensors' f32, or bf16", func(w collective.World, s gpustage.Stream) { w.AllReduce(s, big, gpustage.F64) }},
		{"all-reduce: i32 tensors; want f32 or f64", func(w collective.World, s gpustage.Stream) { w.AllReduce(s, tensor(gpustage.I32, 1, 4), gpustage.I32) }},
		{"all-reduce: bf16 tensors; want f32 or f64", func(w collective.World, s gpustage.Stream) { w.AllReduce(s, tensor(bf16, 1, 4), bf16) }},
		{"broadcast: from rank 1 of 1", func(w collective.World, s gpustage.Stream) { w.Broadcast(s, big, 1) }},
		{"broadcast: x is missing", func(w collective.World, s gpustage.Stream) { w.Broadcast(s, gpustage.Tensor{Rows: 1, Cols: 2}, 0) }},
	} {
		w := local.New(1)[0]
		s, _ := d.OpenStream()
		c.call(w, s)
		var re *collective.RankError
		if err := s.Sync(); err == nil || !errors.As(err, &re) || !strings.Contains(err.Error(), c.want) || w.Err() == nil {
			t.Errorf("%v; want %q", err, c.want)
		}
		if n := len(w.Traffic().Calls); n > 0 {
			t.Errorf("%s: %d calls are counted", c.want, n)
		}
	}
}

// Ranks without rows may pass no tensors.
func TestAbsent(t *testing.T) {
	err := local.Run(3, func(w collective.World) error {
		d := ref.New()
		s, _ := d.OpenStream()
		rows := []int{0, 2, 0}
		whole, err := gpustage.NewTensor(d, gpustage.F32, 2, 3)
		if err != nil {
			return err
		}
		mine := gpustage.Tensor{}
		if w.Rank() == 1 {
			if mine, err = gpustage.NewTensor(d, gpustage.F32, 2, 3); err != nil {
				return err
			}
			s.Fill(mine, 7)
		}
		w.AllGather(s, whole, mine, rows, gpustage.F32)
		w.ReduceScatter(s, mine, whole, rows, gpustage.BF16)
		if nothing := whole.Span(1, 1); w.Rank() != 1 { // no part of another rank's, wherever it lies
			w.AllGather(s, whole, nothing, rows, gpustage.F32)
		} else {
			w.AllGather(s, whole, mine, rows, gpustage.F32)
		}
		// Where no rank has any, those that are there without rows and those that are absent mean the same.
		empty := gpustage.Tensor{}
		if w.Rank() == 1 {
			empty = gpustage.Tensor{Mem: whole.Mem, Cols: 3, Stride: 3, DType: gpustage.F64}
		}
		for _, wire := range []gpustage.DType{gpustage.F32, gpustage.F64, gpustage.BF16} {
			w.AllGather(s, empty, empty, []int{0, 0, 0}, wire)
			w.ReduceScatter(s, empty, empty, []int{0, 0, 0}, wire)
			w.AllReduce(s, empty, wire)
		}
		w.Broadcast(s, empty, 1)
		if err := s.Sync(); err != nil {
			return err
		}
		if got := gpustage.Slice[float32](whole)[5]; got != 21 {
			t.Errorf("rank %d gathered %v", w.Rank(), got)
		}
		if w.Rank() == 1 && gpustage.Slice[float32](mine)[0] != 21 {
			t.Errorf("the sum is %v", gpustage.Slice[float32](mine))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// In the steady state nothing is allocated on the device.
func TestSteady(t *testing.T) {
	err := local.Run(2, func(w collective.World) error {
		d := &counting{Device: ref.New()}
		s := ref.NewStream(d)
		x, err := gpustage.NewTensor(d, gpustage.F32, 1, 100_000)
		if err != nil {
			return err
		}
		first := 0
		for round := range 3 {
			w.AllReduce(s, x, gpustage.BF16)
			w.AllReduce(s, x.Columns(0, 1000), gpustage.F32)
			if round == 0 {
				first = d.allocated
			}
		}
		if d.allocated != first || first < 4 {
			t.Errorf("%d allocations, %d in the first round", d.allocated, first)
		}
		return s.Sync()
	})
	if err != nil {
		t.Error(err)
	}
}

type counting struct {
	gpustage.Device
	allocated int
}

func (d *counting) Alloc(bytes int) (gpustage.Memory, error) {
	d.allocated++
	return d.Device.Alloc(bytes)
}

func TestFate(t *testing.T) {
	f := engine.NewFate()
	if f.Err() != nil {
		t.Error(f.Err())
	}
	first := f.Fail(2, errors.New("no text"))
	// Whoever fails because of that does not become the reason, and a wrapped RankError keeps its rank.
	if again := f.Fail(0, first); again != first || f.Err() != first {
		t.Errorf("%v, %v", again, f.Err())
	}
	g := engine.NewFate()
	err := g.Fail(0, errors.Join(errors.New("step 3"), &collective.RankError{Rank: 5, Reason: "gone"}))
	if err.Error() != "rank 5: gone" {
		t.Error(err)
	}
	<-g.Done()
}

// Scratch is on the device of the call's stream: a group that another device's tensors go through next gives the first one's back.
func TestTwoDevices(t *testing.T) {
	err := local.Run(2, func(w collective.World) error {
		a, b := &devicetest.Counted{Device: ref.New()}, &devicetest.Counted{Device: ref.New()}
		for i, d := range []*devicetest.Counted{a, b, a} {
			s := ref.NewStream(d)
			x, err := gpustage.NewTensor(d, gpustage.F32, 1, 1000)
			if err != nil {
				return err
			}
			before := d.Held()
			w.AllReduce(s, x, gpustage.BF16)
			if err := s.Sync(); err != nil {
				return err
			}
			if took := d.Held() - before; took < 2*1000 {
				t.Errorf("call %d: %d bytes of scratch on its device", i, took)
			}
			if err := x.Mem.Free(); err != nil {
				return err
			}
			other := b
			if d == b {
				other = a
			}
			if n := other.Held(); n > 0 {
				t.Errorf("call %d: %d bytes of scratch on the other device", i, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Scratch that grows is given back only when the stream is done with what it was told before.
func TestRoomWaits(t *testing.T) {
	err := local.Run(2, func(w collective.World) error {
		d := &watched{Counted: &devicetest.Counted{Device: ref.New()}}
		s := &watchedStream{ref.NewStream(d), d}
		for _, n := range []int{100, 3000, 50, 9000} {
			x, err := gpustage.NewTensor(d.Counted, gpustage.F32, 1, n)
			if err != nil {
				return err
			}
			w.AllReduce(s, x, gpustage.BF16)
		}
		if d.early > 0 || d.grown < 4 {
			t.Errorf("scratch was given back %d times, %d of them before the stream was done", d.grown, d.early)
		}
		return s.Sync()
	})
	if err != nil {
		t.Error(err)
	}
}

// watched is a device that counts allocations behind memory that was given back, and those of them where its stream was last told of something else than to
// be done.
type watched struct {
	*devicetest.Counted
	last         string // what the stream was told
	held         int    // bytes, then
	grown, early int
}

func (d *watched) Alloc(bytes int) (gpustage.Memory, error) {
	if d.Held() < d.held {
		d.grown++
		if d.last != "sync" {
			d.early++
		}
	}
	defer d.note("alloc")
	return d.Counted.Alloc(bytes)
}

func (d *watched) note(op string) { d.last, d.held = op, d.Held() }

type watchedStream struct {
	gpustage.Stream
	d *watched
}

func (s *watchedStream) Device() gpustage.Device { return s.d }

func (s *watchedStream) Copy(dst, src gpustage.Tensor) {
	s.Stream.Copy(dst, src)
	s.d.note("copy")
}

func (s *watchedStream) Add(dst, a, b gpustage.Tensor) {
	s.Stream.Add(dst, a, b)
	s.d.note("add")
}

func (s *watchedStream) Sync() error {
	defer s.d.note("sync")
	return s.Stream.Sync()
}

// Tensors of one allocation, as in an arena, are told apart by where they lie: before, behind, or as the rank's own part.
func TestOneArena(t *testing.T) {
	const n = 5
	err := local.Run(2, func(w collective.World) error {
		d, r := ref.New(), w.Rank()
		s, _ := d.OpenStream()
		arena, err := gpustage.NewTensor(d, gpustage.F32, 4*n, 1)
		if err != nil {
			return err
		}
		all, rows := arena.Span(n, 3*n), []int{n, n}
		for _, own := range []gpustage.Tensor{arena.Span(0, n), arena.Span(3*n, 4*n), all.Span(r*n, (r+1)*n)} {
			s.Fill(arena, -1)
			s.Fill(own, float64(r+1))
			w.AllGather(s, all, own, rows, gpustage.F32)
			for k := range rows {
				if got := gpustage.Slice[float32](all.Span(k*n, (k+1)*n)); got[0] != float32(k+1) || got[n-1] != float32(k+1) {
					t.Errorf("rank %d, own at %d: of rank %d it has %v", r, own.Off, k, got)
				}
			}
			s.Fill(arena, -1)
			s.Fill(all, float64(10*(r+1)))
			w.ReduceScatter(s, own, all, rows, gpustage.F32)
			if got := gpustage.Slice[float32](own); got[0] != 30 || got[n-1] != 30 {
				t.Errorf("rank %d, own at %d: the sum is %v, want 30", r, own.Off, got)
			}
		}
		return s.Sync()
	})
	if err != nil {
		t.Error(err)
	}
}

// No kind of scratch takes more than a chunk, however many ranks share it.
func TestChunkBounds(t *testing.T) {
	const chunk = 32 << 10
	err := local.Run(5, func(w collective.World) error {
		d := &largest{Device: ref.New()}
		s := ref.NewStream(d)
		x, err := gpustage.NewTensor(d.Device, gpustage.F32, 1, 100_000)
		if err != nil {
			return err
		}
		w.(interface{ SetChunk(bytes int) }).SetChunk(chunk)
		w.AllReduce(s, x, gpustage.BF16)
		if d.bytes == 0 || d.bytes > chunk {
			t.Errorf("rank %d takes %d bytes at once, want %d at most", w.Rank(), d.bytes, chunk)
		}
		return s.Sync()
	})
	if err != nil {
		t.Error(err)
	}
}

// largest is a device that knows its largest allocation.
type largest struct {
	gpustage.Device
	bytes int
}

func (d *largest) Alloc(bytes int) (gpustage.Memory, error) {
	d.bytes = max(d.bytes, bytes)
	return d.Device.Alloc(bytes)
}

// Parts longer than what a processor sums at a time are summed block by block, of more ranks than two by way of scratch.
func TestBlocks(t *testing.T) {
	const ranks, n = 3, 3*2*4096 + 5
	for _, wire := range []gpustage.DType{gpustage.F32, gpustage.BF16} {
		err := local.Run(ranks, func(w collective.World) error {
			d := ref.New()
			s, err := d.OpenStream()
			if err != nil {
				return err
			}
			x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
			if err != nil {
				return err
			}
			vs := gpustage.Slice[float32](x)
			for i := range vs {
				vs[i] = float32(i%11 + w.Rank()) // small integers: no wire rounds them
			}
			w.AllReduce(s, x, wire)
			if err := s.Sync(); err != nil {
				return err
			}
			for i, v := range vs {
				if want := float32(ranks*(i%11) + ranks*(ranks-1)/2); v != want {
					t.Errorf("%s, rank %d: element %d is %v, want %v", wire, w.Rank(), i, v, want)
					break
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// Members are those of a color, in their order, and who says anything else is the one at fault, whatever it begins with.
func TestMembers(t *testing.T) {
	all := [][]byte{engine.SplitMessage(3), engine.SplitMessage(-1), engine.SplitMessage(3)}
	if ranks, _, err := engine.Members(all, 3); err != nil || !slices.Equal(ranks, []int{0, 2}) {
		t.Errorf("%v, %v", ranks, err)
	}
	for _, other := range [][]byte{nil, make([]byte, 8), all[0][:len(all[0])-1], append(slices.Clone(all[0]), 0)} {
		if ranks, culprit, err := engine.Members([][]byte{all[0], other}, 3); err == nil || culprit != 1 {
			t.Errorf("%q: %v, %d", other, ranks, culprit)
		}
	}
}

// broken is a transport of two ranks that moves nothing.
type broken struct{ why error }

func (t broken) Rank() int { return 0 }
func (t broken) Size() int { return 2 }
func (t broken) AllToAll(*engine.Call, []gpustage.Tensor, func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return nil, t.why
}
func (t broken) Gather(*engine.Call, gpustage.Tensor, func() ([]gpustage.Tensor, error)) ([]gpustage.Tensor, error) {
	return nil, t.why
}
func (t broken) Broadcast(_ *engine.Call, x gpustage.Tensor, _ int) (gpustage.Tensor, error) {
	return x, t.why
}
func (t broken) Release(*engine.Call) error             { return nil }
func (t broken) Refuse(_ *engine.Call, err error) error { return err }

// What a transport could not move is the stream's error, and no traffic.
func TestTransportFails(t *testing.T) {
	d := ref.New()
	x, err := gpustage.NewTensor(d, gpustage.F32, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("no way")
	for _, wire := range []gpustage.DType{gpustage.F32, gpustage.BF16} {
		for op, call := range map[collective.Op]func(g *engine.Group, s gpustage.Stream){
			"all-gather":     func(g *engine.Group, s gpustage.Stream) { g.AllGather(s, x, x.Span(0, 1), []int{1, 1}, wire) },
			"reduce-scatter": func(g *engine.Group, s gpustage.Stream) { g.ReduceScatter(s, x.Span(0, 1), x, []int{1, 1}, wire) },
			"all-reduce":     func(g *engine.Group, s gpustage.Stream) { g.AllReduce(s, x, wire) },
			"broadcast":      func(g *engine.Group, s gpustage.Stream) { g.Broadcast(s, x, 1) },
		} {
			g := engine.New(broken{why})
			s, err := d.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			call(g, s)
			if err := s.Sync(); !errors.Is(err, why) || len(g.Traffic().Calls) > 0 {
				t.Errorf("%s of a %s wire: %v, %v", op, wire, err, g.Traffic())
			}
		}
	}
}
