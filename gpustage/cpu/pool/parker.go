package pool

import (
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// spinFor is how long a thread looks for what it waits for, and yieldFor how long it goes on with that while it lets
	// other goroutines run between looks. Then it sleeps. What lies between two operations of a training step is a few us.
	spinFor  = 50 * time.Microsecond
	yieldFor = 100 * time.Microsecond
	// looks is how often it looks before it asks for the time.
	looks = 32
)

// parker is where one goroutine waits.
type parker struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [48]byte
}

func newParker() *parker { return &parker{wake: make(chan struct{}, 1)} }

// wait returns when done returns true, or for no reason. Whoever makes done true must call unpark after. In a crowd,
// where the thread waited for may be waiting for this processor, it lets others run at once.
func (k *parker) wait(crowd bool, done func() bool) {
	start := time.Now()
	for waited := time.Duration(0); waited < spinFor+yieldFor; waited = time.Since(start) {
		for range looks {
			if done() {
				return
			}
			if crowd || waited >= spinFor {
				runtime.Gosched()
			} else {
				pause()
			}
		}
	}
	k.parked.Store(true)
	if done() && k.parked.CompareAndSwap(true, false) {
		return
	}
	<-k.wake // it is asleep, or a wake-up is under way
}

// unpark wakes the goroutine that waits here, if it has fallen asleep.
func (k *parker) unpark() {
	if k.parked.Load() && k.parked.CompareAndSwap(true, false) {
		k.wake <- struct{}{}
	}
}
