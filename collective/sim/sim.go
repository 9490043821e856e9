// Package sim gives ranks in one process a link between them: with the bandwidth and latency of a network that one does not
// have, for tests of what is hidden behind computation, and for planning.
//
// The ranks are package local's. An operation begins when its last rank has come and lasts as long as the link says; the
// copying that really happens is part of that time, and the rest is slept, so that whatever computes meanwhile has the
// processors. If the copying itself takes longer than the link would, the operation is as slow as that.
//
// [Link.Time] is the model, and all there is to it: a planner that uses it predicts what a run over the link will show.
package sim

import (
	"encoding"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
)

// Link is what connects each rank to all others, in both directions at once. Operations of several groups that are under way at the same time,
// gradients and streamed parameters, have all of it each.
type Link struct {
	Bandwidth float64       // bytes per second and direction; 0: no limit
	Latency   time.Duration // from the last rank's call to the first byte
}

// Time is how long an operation takes. Every rank sends and receives at the same time, the busiest one decides; an all-reduce
// is two operations, one after the other. A group of one rank needs no link.
func (l Link) Time(c collective.Call) time.Duration {
	if len(c.Rows) < 2 {
		return 0
	}
	bytes := int64(0)
	for r := range c.Rows {
		bytes = max(bytes, c.Sent(r), c.Received(r))
	}
	t := l.Latency
	if c.Op == collective.OpAllReduce {
		t *= 2
	}
	if l.Bandwidth > 0 {
		t += time.Duration(float64(bytes) / l.Bandwidth * float64(time.Second))
	}
	return t
}

// New makes the worlds of n ranks that are connected by a link.
func New(n int, l Link, opts ...local.Option) []collective.World {
	return local.New(n, append(opts, local.Pace(l))...)
}

var _ encoding.TextUnmarshaler = (*Link)(nil)

// UnmarshalText reads "400Gb" (bits per second), "50GB" (bytes per second), and a latency after it: "10Gb 50us". The default latency
// is 10us.
func (l *Link) UnmarshalText(text []byte) error {
	rate, latency, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	parsed := Link{Latency: 10 * time.Microsecond}
	bad := func() error {
		return fmt.Errorf(`link %q: want bits per second ("400Gb") or bytes per second ("50GB"), and if need be a latency ("10Gb 50us")`, text)
	}
	number := strings.TrimRight(rate, "kMGTbB/s")
	unit := strings.TrimSuffix(rate[len(number):], "/s")
	factor, ok := units[unit]
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v > 0) || math.IsInf(v, 0) {
		return bad()
	}
	parsed.Bandwidth = v * factor
	if latency = strings.TrimSpace(latency); latency != "" {
		if parsed.Latency, err = time.ParseDuration(latency); err != nil || parsed.Latency < 0 {
			return bad()
		}
	}
	*l = parsed
	return nil
}

var units = map[string]float64{
	"kb": 1e3 / 8, "Mb": 1e6 / 8, "Gb": 1e9 / 8, "Tb": 1e12 / 8,
	"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

func (l Link) String() string {
	rate := "no limit"
	if l.Bandwidth > 0 {
		rate = fmt.Sprintf("%.4gGb/s", l.Bandwidth*8/1e9)
	}
	return fmt.Sprintf("%s, %v", rate, l.Latency)
}
