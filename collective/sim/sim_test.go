package sim_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"contraflow/collective"
	"contraflow/collective/collectivetest"
	"contraflow/collective/local"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// A link changes no result and no error.
func TestConformance(t *testing.T) {
	link := sim.Link{Bandwidth: 1e9, Latency: 20 * time.Microsecond}
	collectivetest.Run(t, []int{3}, func(size int, deadline time.Duration) ([]collective.World, []gpustage.Device, error) {
		ds := make([]gpustage.Device, size)
		for r := range ds {
			ds[r] = ref.New()
		}
		return sim.New(size, link, local.Deadline(deadline)), ds, nil
	})
}

func TestTime(t *testing.T) {
	link := sim.Link{Bandwidth: 1e6, Latency: time.Millisecond}
	f32 := gpustage.F32
	for _, c := range []struct {
		call collective.Call
		want time.Duration
	}{
		{collective.GatherCall([]int{1, 0, 3}, 100, f32, f32), 1*time.Millisecond + 2400*time.Microsecond}, // rank 2 sends 300 elements twice
		{collective.GatherCall([]int{100, 100}, 1, f32, gpustage.BF16), 1*time.Millisecond + 200*time.Microsecond},
		{collective.ReduceScatterCall([]int{0, 0, 5}, 10, f32, f32), 1*time.Millisecond + 400*time.Microsecond}, // rank 2 receives 50 twice
		{collective.AllReduceCall(3200, 2, f32, f32), 2*time.Millisecond + 12800*time.Microsecond},
		{collective.BroadcastCall(100, 4, 1, f32), 1*time.Millisecond + 1200*time.Microsecond},
		{collective.ExchangeCall([]int{100, 0, 0}), 1*time.Millisecond + 200*time.Microsecond},
		{collective.GatherCall([]int{0, 0}, 100, f32, f32), 1 * time.Millisecond},
		{collective.AllReduceCall(3200, 1, f32, f32), 0},
	} {
		if got := link.Time(c.call); got != c.want {
			t.Errorf("%v: %v, want %v", c.call, got, c.want)
		}
	}
}

// An operation lasts as long as the model says, from when the last rank came.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := sim.Link{Bandwidth: 2e6, Latency: 5 * time.Millisecond}
		want := link.Time(collective.AllReduceCall(20000, 2, gpustage.F32, gpustage.F32)) // 80000 bytes: 40 ms, and twice 5
		start, late := time.Now(), 30*time.Millisecond
		err := local.Run(2, func(w collective.World) error {
			s, x, err := vector(20000)
			if err != nil {
				return err
			}
			time.Sleep(time.Duration(w.Rank()) * late)
			w.AllReduce(s, x, gpustage.F32)
			if took := time.Since(start) - late; took != want {
				t.Errorf("on rank %d an all-reduce took %v, its link %v", w.Rank(), took, want)
			}
			return s.Sync()
		}, local.Pace(link))
		if err != nil {
			t.Fatal(err)
		}
	})
}

// computes is a stream whose additions take a while.
type computes struct{ gpustage.Stream }

func (s computes) Add(y, a, b gpustage.Tensor) {
	time.Sleep(10 * time.Millisecond)
	s.Stream.Add(y, a, b)
}

// What ranks compute in the middle of an operation is part of the time that its link takes.
func TestPaceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := sim.Link{Bandwidth: 2e6, Latency: 5 * time.Millisecond}
		want := link.Time(collective.AllReduceCall(20000, 2, gpustage.F32, gpustage.F32)) // 50 ms
		err := local.Run(2, func(w collective.World) error {
			s, x, err := vector(20000)
			if err != nil {
				return err
			}
			start := time.Now()
			w.AllReduce(computes{s}, x, gpustage.F32) // three blocks are added
			if took := time.Since(start); took != want {
				t.Errorf("an all-reduce took %v, its link %v", took, want)
			}
			return s.Sync()
		}, local.Pace(link))
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A rank that sleeps out an operation's time hears of a failure at once.
func TestAbort(t *testing.T) {
	start := time.Now()
	err := local.Run(2, func(w collective.World) error {
		s, x, err := vector(1000)
		if err != nil {
			return err
		}
		if w.Rank() == 1 {
			time.AfterFunc(20*time.Millisecond, func() { w.Abort(errors.New("enough")) })
		}
		w.AllReduce(s, x, gpustage.F32)
		return s.Sync()
	}, local.Pace(sim.Link{Latency: time.Minute}))
	var re *collective.RankError
	if !errors.As(err, &re) || re.Rank != 1 || time.Since(start) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func vector(n int) (gpustage.Stream, gpustage.Tensor, error) {
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		return nil, gpustage.Tensor{}, err
	}
	x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
	return s, x, err
}

func TestUnmarshalText(t *testing.T) {
	for text, want := range map[string]sim.Link{
		"400Gb":       {50e9, 10 * time.Microsecond},
		"12.5GB/s":    {12.5e9, 10 * time.Microsecond},
		" 100Mb 2ms ": {12.5e6, 2 * time.Millisecond},
		"1kB 0s":      {1e3, 0},
	} {
		var got sim.Link
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "400", "Gb", "-1Gb", "0Gb", "1Gb fast", "1Gb -1s", "NaNGb", "10 Gb", "1Gbit"} {
		l := sim.Link{Bandwidth: 7}
		if err := l.UnmarshalText([]byte(text)); err == nil || l.Bandwidth != 7 {
			t.Errorf("%q is %v, %v", text, l, err)
		}
	}
}

func Example() {
	var link sim.Link
	if err := link.UnmarshalText([]byte("10Gb 50us")); err != nil {
		fmt.Println(err)
		return
	}
	gradients := collective.AllReduceCall(22_713_216, 4, gpustage.F32, gpustage.BF16)
	fmt.Println(link, "|", gradients, "|", gradients.Sent(0), "bytes |", link.Time(gradients).Round(time.Millisecond))

	w := sim.New(2, link)
	go w[1].Exchange(context.Background(), []byte("there"))
	all, err := w[0].Exchange(context.Background(), []byte("here"))
	fmt.Printf("%s %v\n", all, err)
	// Output:
	// 10Gb/s, 50µs | all-reduce of f32[22713216], bf16 wire | 68139648 bytes | 55ms
	// [here there] <nil>
}
