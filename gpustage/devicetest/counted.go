package devicetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"contraflow/gpustage"
)

// Counted is a device that remembers what memory it has given out, and can have none left: what callers plan to hold is compared with what
// they hold, and their ways out of an allocation that fails are tried (OutOfMemory). Its device's memory must be the host's.
type Counted struct {
	gpustage.Device

	mu     sync.Mutex
	held   []gpustage.Memory
	peak   int
	refuse int // allocations until one is refused, and it; 0: none is
}

// Alloc is the device's, unless it is refused.
func (c *Counted) Alloc(bytes int) (gpustage.Memory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuse > 0 {
		if c.refuse--; c.refuse == 0 {
			return nil, fmt.Errorf("%d bytes: %w", bytes, gpustage.ErrOutOfMemory)
		}
	}
	m, err := c.Device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	c.held = append(c.held, m)
	c.peak = max(c.peak, c.bytes())
	return m, nil
}

// bytes are those of what is held. The lock is held, too.
func (c *Counted) bytes() (n int) {
	held := c.held[:0]
	for _, m := range c.held {
		if m.Bytes() > 0 { // what is freed has none
			held, n = append(held, m), n+m.Bytes()
		}
	}
	clear(c.held[len(held):])
	c.held = held
	return n
}

// Held is how many bytes have been given out and not given back.
func (c *Counted) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes()
}

// Peak is how many were at once, at most.
func (c *Counted) Peak() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peak
}

// Refuse has the n-th allocation from now on fail for want of memory, and no other; 0: none.
func (c *Counted) Refuse(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = n
}

// Refused tells whether what Refuse asked for has come.
func (c *Counted) Refused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refuse == 0
}

// OutOfMemory has open's first allocation refused, then its second, until there is none that would be. Every time open must fail for want of
// memory and hold no more than before. What it has opened in the end it gives back by the function that it returns. It returns how many
// allocations open makes.
func OutOfMemory(t *testing.T, c *Counted, open func() (func() error, error)) int {
	t.Helper()
	before := c.Held()
	for n := 1; ; n++ {
		c.Refuse(n)
		end, err := open()
		refused := c.Refused()
		c.Refuse(0)
		if refused && !errors.Is(err, gpustage.ErrOutOfMemory) {
			t.Fatalf("allocation %d is refused, and the error is: %v", n, err)
		}
		if !refused {
			if err != nil {
				t.Fatalf("of %d allocations none is refused, and the error is: %v", n-1, err)
			}
			if err := end(); err != nil {
				t.Errorf("giving back: %v", err)
			}
		}
		if held := c.Held(); held != before {
			t.Errorf("allocation %d (refused: %v): %d bytes are still held", n, refused, held-before)
		}
		if !refused {
			return n - 1
		}
	}
}
