package dataset

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// seenTexts counts how often it is asked, and may wait before it answers.
type seenTexts struct {
	fixedTexts
	asked *atomic.Int64
	wait  func(epoch int)
}

func (s seenTexts) Hashes(dst []Hash128, seed uint64, epoch int, row int64) []Hash128 {
	s.asked.Add(1)
	if s.wait != nil {
		s.wait(epoch)
	}
	return s.fixedTexts.Hashes(dst, seed, epoch, row)
}

// Samplers that share counts find the lengths that each finds alone, by going through an epoch once for all of them, and each tells how far that is.
func TestCounts(t *testing.T) {
	defer func(was int64) { countEvery = was }(countEvery)
	countEvery = 10
	texts := make(fixedTexts, 200)
	for i := range texts {
		texts[i] = []uint64{uint64(i % 37), uint64(1000 + i%11)}
	}
	const epochs, samplers = 3, 4
	open := func(s seenTexts, more func(c *SamplerConfig)) *Sampler {
		cfg := SamplerConfig{Seed: 1, GlobalSize: 5, Epochs: epochs, Shuffle: true, NoDuplicates: true, DropLast: true}
		more(&cfg)
		x, err := NewSampler(evenLayout(200, 10), s, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	alone := func(more func(c *SamplerConfig)) (lens []int64, asked int64) {
		s := seenTexts{fixedTexts: texts, asked: new(atomic.Int64)}
		x := open(s, more)
		began := s.asked.Load()
		for e := range epochs {
			lens = append(lens, x.Len(e))
		}
		return lens, s.asked.Load() - began
	}
	want, once := alone(func(*SamplerConfig) {})
	var counts Counts
	var told [samplers][][2]int64
	var heard, asked [epochs]atomic.Int64 // samplers that have told of an epoch; how often one that counts it has asked
	var at [samplers]int                  // the epoch
	var opened atomic.Bool
	s := seenTexts{fixedTexts: texts, asked: new(atomic.Int64), wait: func(epoch int) { // in the middle, until those who wait for the count have looked how far it is
		if !opened.Load() || asked[epoch].Add(1) != 100 {
			return
		}
		for end := time.Now().Add(10 * time.Second); heard[epoch].Load() < samplers && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}}
	var all []*Sampler
	for i := range samplers {
		all = append(all, open(s, func(c *SamplerConfig) {
			c.Counts, c.Counting = &counts, func(done, total int64) {
				if n := len(told[i]); n == 0 || told[i][n-1][0] == total {
					heard[at[i]].Add(1)
				}
				told[i] = append(told[i], [2]int64{done, total})
			}
		}))
	}
	began := s.asked.Load()
	opened.Store(true)
	var wait sync.WaitGroup
	var got [samplers][]int64
	for i, x := range all {
		wait.Go(func() {
			for at[i] = range epochs {
				got[i] = append(got[i], x.Len(at[i]))
			}
		})
	}
	wait.Wait()
	for i := range got {
		if fmt.Sprint(got[i]) != fmt.Sprint(want) {
			t.Errorf("sampler %d has %v batches, alone %v", i, got[i], want)
		}
		last := int64(0)
		ends := 0
		for _, p := range told[i] {
			if p[1] != 200 || p[0] <= last || p[0] > 200 {
				t.Errorf("sampler %d tells of %v", i, told[i])
			}
			if last = p[0]; last == 200 {
				last = 0
				ends++
			}
		}
		if ends != epochs {
			t.Errorf("sampler %d tells of %v: of %d epochs, want %d", i, told[i], ends, epochs)
		}
	}
	if n := s.asked.Load() - began; n != once {
		t.Errorf("%d samplers ask for the texts of a row %d times, one %d times", samplers, n, once)
	}
	if got := open(s, func(c *SamplerConfig) { c.Counts = &counts }).Restart(); got.Len(1) != want[1] || s.asked.Load()-began > once+100 {
		t.Errorf("a sampler that begins anew counts again")
	}

	// What has other batches has counts of its own.
	for name, more := range map[string]func(c *SamplerConfig){
		"seed":          func(c *SamplerConfig) { c.Seed = 2 },
		"global size":   func(c *SamplerConfig) { c.GlobalSize = 4 },
		"last batch":    func(c *SamplerConfig) { c.DropLast = false },
		"order":         func(c *SamplerConfig) { c.Shuffle = false },
		"window":        func(c *SamplerConfig) { c.Window.Rows = 40 },
		"rows left out": func(c *SamplerConfig) { c.Skip = []int64{3, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60} },
		"lengths":       func(c *SamplerConfig) { c.Lengths = lengthsOf(7) },
	} {
		want, asked := alone(more)
		quick := seenTexts{fixedTexts: texts, asked: new(atomic.Int64)}
		x := open(quick, func(c *SamplerConfig) {
			more(c)
			c.Counts = &counts
		})
		began := quick.asked.Load()
		for e := range epochs {
			if n := x.Len(e); n != want[e] {
				t.Errorf("%s: epoch %d has %d batches, want %d", name, e, n, want[e])
			}
		}
		if n := quick.asked.Load() - began; n != asked {
			t.Errorf("%s: the texts of a row are asked for %d times, alone %d times", name, n, asked)
		}
	}
	few := make(fixedTexts, len(texts)) // which have fewer batches
	for i := range few {
		few[i] = []uint64{uint64(i % 7)}
	}
	other := evenLayout(200, 10)
	other.Fingerprint.Lo++
	var lens [2]int64
	for i, c := range []*Counts{nil, &counts} {
		x, err := NewSampler(other, few, SamplerConfig{Seed: 1, GlobalSize: 5, Epochs: epochs, Shuffle: true, NoDuplicates: true, DropLast: true, Counts: c})
		if err != nil {
			t.Fatal(err)
		}
		lens[i] = x.Len(0)
	}
	if lens[0] != lens[1] || lens[0] == want[0] {
		t.Errorf("other data has %d batches, with the counts of these %d", lens[0], lens[1])
	}
}

// lengthsOf are lengths that go round.
type lengthsOf uint32

func (l lengthsOf) Lengths(dst []uint32, _ uint64, _ int, row int64) []uint32 {
	return append(dst, uint32(row*13)%uint32(l))
}

// Of what takes no time nobody hears.
func TestCountsQuiet(t *testing.T) {
	texts := make(fixedTexts, 100)
	for i := range texts {
		texts[i] = []uint64{uint64(i % 30)}
	}
	s, err := NewSampler(evenLayout(100, 10), texts, SamplerConfig{Seed: 1, GlobalSize: 7, Epochs: 1, NoDuplicates: true, Counting: func(done, total int64) { t.Errorf("%d of %d", done, total) }})
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Len(0); n == 0 {
		t.Error("no batches")
	}
}
