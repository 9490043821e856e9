package dataset

import (
	"sync"
	"sync/atomic"
	"time"
)

// Counts remembers how many batches epochs without duplicates have. Each is counted once, by whoever asks first; others wait for it.
type Counts struct {
	mu  sync.Mutex
	all map[countKey]*count
}

// countKey is what the number of an epoch's batches is a function of, in a process in which data does not change.
type countKey struct {
	data                    Hash128
	seed                    uint64
	epoch, size             int
	window                  Window
	shuffle, drop, byLength bool
	skipped                 int
}

type count struct {
	done    chan struct{} // closed once n is there
	through atomic.Int64  // rows, so far
	n       int64
}

// of is how many batches a sampler has in an epoch. What it tells of progress it tells here, also of what another one counts.
func (c *Counts) of(s *Sampler, epoch int) int64 {
	key := countKey{
		data: s.layout.Fingerprint, seed: s.cfg.Seed, epoch: epoch, size: s.cfg.GlobalSize, window: s.cfg.Window, shuffle: s.cfg.Shuffle, drop: s.cfg.DropLast,
		byLength: s.cfg.Lengths != nil, skipped: len(s.cfg.Skip),
	}
	c.mu.Lock()
	is, begun := c.all[key]
	if !begun {
		if c.all == nil {
			c.all = map[countKey]*count{}
		}
		is = &count{done: make(chan struct{})}
		c.all[key] = is
	}
	c.mu.Unlock()
	told := progress{to: s.cfg.Counting, total: s.layout.total()}
	if !begun {
		defer close(is.done) // if it panics, too: nobody waits for good
		is.n = s.count(epoch, func(rows int64) {
			is.through.Store(rows)
			told.tell(rows)
		})
		told.end()
		return is.n
	}
	tick := time.NewTicker(countTick)
	defer tick.Stop()
	for {
		select {
		case <-is.done:
			told.end()
			return is.n
		case <-tick.C:
			told.tell(is.through.Load())
		}
	}
}

// countTick is how often one that waits for another's count looks how far that is.
const countTick = 100 * time.Millisecond

// countEvery is after how many rows a count says so. Tests change it.
var countEvery int64 = 1 << 17

// progress tells of what takes long: of what does not, nothing, for an epoch of few rows is counted at once.
type progress struct {
	to          func(done, total int64)
	done, total int64
}

func (p *progress) tell(done int64) {
	if p.to != nil && done/countEvery > p.done/countEvery && done < p.total {
		p.done = done
		p.to(done, p.total)
	}
}

func (p *progress) end() {
	if p.done > 0 {
		p.to(p.total, p.total)
	}
}

// count goes through an epoch for the number of its batches.
func (s *Sampler) count(epoch int, through func(rows int64)) (n int64) {
	f := s.fresh(epoch)
	for f.pos < f.order.Len() || f.waiting.n > 0 {
		if rows, full := f.fill(); len(rows) == 0 || !full && s.cfg.DropLast {
			break
		}
		n++
		through(f.pos)
	}
	return n
}
