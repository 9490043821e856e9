//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"gorgonia.org/cu"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
)

// The driver's calls for work that comes three times, written down by a driver that does nothing: launches; the same launches captured, made a
// graph that is started; the graph. It takes a process of its own, which finds that driver when it starts.
func TestGraphCalls(t *testing.T) {
	if os.Getenv("CONTRAFLOW_FAKE_DRIVER") != "" {
		threeTimes()
		return
	}
	if driver() {
		t.Skip("this machine has an NVIDIA driver: the conformance suite captures graphs with it")
	}
	run := func(env ...string) string { return fakeCalls(t, "TestGraphCalls", env...) }
	var launches string
	for i := range 4 {
		launches += fmt.Sprintf("launch 1 blocks of 32, argument 5 is %d\n", 8+i)
	}
	want := "first\n" + launches + "second\nbegin in mode 2\n" + launches + "end\ninstantiate 0x10\ndestroy 0x10\nstart 0x11\nthird\nstart 0x11\n<nil>\nfree 0x11\n"
	if got := run(); got != want {
		t.Errorf("calls:\n%swant:\n%s", got, want)
	}
	// A capture that the driver refuses is the stream's error, with a way out; what comes after does nothing.
	got := run("FAKE_END=901")
	if !strings.HasSuffix(got, "end\nthird\nrecording 4 launches: CUDA error 901: FAKE ("+launch.GraphsOff+" starts them one by one)\n") {
		t.Errorf("calls where ending a capture fails:\n%s", got)
	}
}

// threeTimes issues the same work three times.
func threeTimes() {
	d := &Device{repeats: true, functions: map[string]function{"fill": {}}}
	s := &Stream{d: d}
	s.Stream = launch.NewStream(d, s)
	mem := &memory{d: d, at: cu.DevicePtr(4096), bytes: 1 << 10}
	for _, name := range []string{"first", "second", "third"} {
		say(name)
		gpustage.Repeat(s, func() {
			for i := range 4 {
				s.Fill(gpustage.Tensor{Mem: mem, Rows: 1, Cols: 8 + i, Stride: 8 + i}, 1)
			}
		})
	}
	say(s.Err())
	if !whole.TryLock() {
		say("the capture's lock is held")
	}
	if err := s.Free(); err != nil {
		say(err)
	}
}
