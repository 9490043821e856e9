package launch

// Ring cuts a buffer that the host writes, and that the device reads later, into parts that go round: a host that waits for the device
// before each sub-batch's ids leaves it idle while it prepares the next one's launches. E is the moment when a part has been read.
// Parts are read in the order in which they were given out.
type Ring[E any] struct {
	Size  int
	next  int       // where the next part begins
	parts []part[E] // that may not have been read yet, the oldest first
}

type part[E any] struct {
	from, to int
	read     E
}

// ringAlign bounds the number of parts.
const ringAlign = 4 << 10

// Take is where n bytes may be written, n at most Size. If something there may not have been read yet, wait is called with the last such part's
// moment; all parts up to it are then given to free.
func (r *Ring[E]) Take(n int, wait func(E) error, free func(E)) (at int, err error) {
	if at = r.next; at+n > r.Size {
		at = 0
	}
	last := -1
	for i, p := range r.parts {
		if p.from < at+n && at < p.to {
			last = i
		}
	}
	if last < 0 {
		return at, nil
	}
	if err := wait(r.parts[last].read); err != nil {
		return 0, err
	}
	r.drop(last+1, free)
	return at, nil
}

// Put tells when what was written to the n bytes at at, as Take gave them, has been read.
func (r *Ring[E]) Put(at, n int, read E) {
	to := (at + n + ringAlign - 1) / ringAlign * ringAlign
	r.parts = append(r.parts, part[E]{at, to, read})
	r.next = to
}

// Drop forgets all parts.
func (r *Ring[E]) Drop(free func(E)) { r.drop(len(r.parts), free) }

func (r *Ring[E]) drop(n int, free func(E)) {
	for _, p := range r.parts[:n] {
		free(p.read)
	}
	r.parts = append(r.parts[:0], r.parts[n:]...)
}
