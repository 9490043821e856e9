package tokenize

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"
)

// chunkSize is how much text goes through the pipeline at a time, in bytes: it keeps the working set in the first-level
// cache, and a long text that is truncated costs what its beginning costs.
const chunkSize = 2048

// scratch is the working memory of one encoding. text and spans are what the next stage reads; it writes to spare and
// spareSpans and swaps.
type scratch struct {
	text, spare       []byte
	whole             []byte // the normalized text, while text is a stretch of it
	spans, spareSpans []span
	// Does text begin a piece between added tokens, or is it a later chunk of one? Does it begin the whole input?
	first, start bool

	runes        []rune
	ids, pairIDs []int32
	merging      merging
	path         []pathNode
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func (s *scratch) swap(out []byte) { s.text, s.spare = out, s.text }

func (s *scratch) swapSpans(out []span) { s.spans, s.spareSpans = out, s.spans }

// run is one text on its way through the pipeline.
type run struct {
	*Tokenizer
	s    *scratch
	ids  []int32
	stop int
}

// encode appends the ids of text, without special tokens, to ids[:0]. It may stop after the word with which there are
// stop of them.
func (t *Tokenizer) encode(s *scratch, ids []int32, text string, stop int) []int32 {
	raw := unsafe.Slice(unsafe.StringData(text), len(text)) // read only
	if !utf8.ValidString(text) {
		raw = []byte(string([]rune(text))) // each invalid byte becomes U+FFFD
	}
	r := run{Tokenizer: t, s: s, ids: ids[:0], stop: stop}
	t.rawTokens.split(raw, func(start, end int) bool { return r.piece(raw[start:end], start == 0) }, r.token)
	return r.ids
}

func (r *run) token(id int32) { r.ids = append(r.ids, id) }

// piece takes text between two added tokens, and whether the input begins with it; false says that there are ids enough.
func (r *run) piece(text []byte, start bool) bool {
	for first := true; len(text) > 0; first = false {
		n := len(text)
		if r.chunk > 0 {
			n = chunkEnd(text, r.chunk)
		}
		r.s.first, r.s.start = first, first && start
		r.s.text = append(r.s.text[:0], text[:n]...)
		text = text[n:]
		if r.normalizer != nil {
			r.normalizer.normalize(r.s)
		}
		if !r.normalized() {
			return false
		}
	}
	return true
}

// normalized takes the normalized text.
func (r *run) normalized() bool {
	if r.normalizedTokens.trie == nil {
		return len(r.s.text) == 0 || r.words()
	}
	// Pre-tokenizers may rewrite s.text: it gets one stretch between tokens after the other.
	r.s.text, r.s.whole = r.s.whole, r.s.text
	atStart, more := r.s.start, true
	r.normalizedTokens.split(r.s.whole, func(start, end int) bool {
		r.s.text = append(r.s.text[:0], r.s.whole[start:end]...)
		r.s.start = atStart && start == 0
		more = r.words()
		return more
	}, r.token)
	return more
}

// words takes a stretch of the normalized text.
func (r *run) words() bool {
	r.s.spans = append(r.s.spans[:0], span{0, len(r.s.text)})
	if r.preTokenizer != nil {
		r.preTokenizer.split(r.s)
	}
	r.ids = r.model.tokenize(r.ids, r.s, r.stop)
	return len(r.ids) < r.stop
}

// Encode returns the ids of text with the special tokens ([CLS] and [SEP]) around them. If there are more than maxLen,
// special tokens included, then the text's last ids are cut off; 0 is no limit. A maxLen too small for the special
// tokens cuts these too.
//
// Invalid UTF-8 counts as U+FFFD, one per invalid byte, as in a Go range loop.
func (t *Tokenizer) Encode(text string, maxLen int) []int32 {
	ids, _ := t.Append([]int32{}, text, maxLen)
	return ids
}

// Append is Encode that appends the ids to dst and says whether any of the text's were cut off. Beyond growing dst it doesn't
// allocate.
func (t *Tokenizer) Append(dst []int32, text string, maxLen int) (ids []int32, truncated bool) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	keep, stop := math.MaxInt, math.MaxInt
	if maxLen > 0 {
		keep = max(0, maxLen-t.singleSpecials)
		stop = keep + 1
	}
	s.ids = t.encode(s, s.ids, text, stop)
	truncated = len(s.ids) > keep
	body := s.ids[:min(len(s.ids), keep)]
	first := len(dst)
	dst = slices.Grow(dst, len(body)+t.singleSpecials)
	for _, p := range t.template.single {
		if p.ids != nil {
			dst = append(dst, p.ids...)
		} else {
			dst = append(dst, body...)
		}
	}
	if maxLen > 0 && len(dst)-first > maxLen {
		dst = dst[:first+maxLen]
	}
	return dst, truncated
}

// A Truncation says which of two texts loses ids when a pair is too long, in Hugging Face's words.
type Truncation int

const (
	LongestFirst Truncation = iota // the longer one, until both are of equal length; then both
	OnlyFirst                      // the first
	OnlySecond                     // the second, as cross-encoders do that must see the whole query
)

func (t Truncation) check() error {
	if t < LongestFirst || t > OnlySecond {
		return fmt.Errorf("truncation %d: want LongestFirst, OnlyFirst or OnlySecond", t)
	}
	return nil
}

// ErrTooShort is what AppendPair wraps if maxLen leaves no room.
var ErrTooShort = errors.New("max length too short")

// AppendPair appends the ids of a pair of texts ([CLS] a [SEP] b [SEP]) to dst, and each id's type (0 up to the first
// [SEP], then 1) to types. maxLen counts the special tokens; 0 is no limit. The error, which wraps ErrTooShort, says
// that shortening the text that how names isn't enough. Where there is room for the special tokens and no more, both texts are cut off, whatever how says, as
// Hugging Face does it.
func (t *Tokenizer) AppendPair(dst, types []int32, a, b string, maxLen int, how Truncation) (ids, typeIDs []int32, truncated bool, err error) {
	if err := how.check(); err != nil {
		return dst, types, false, err
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	keep := math.MaxInt
	if maxLen > 0 {
		keep = maxLen - t.pairSpecials
		if keep < 0 {
			return dst, types, false, fmt.Errorf("%w: %d is less than the %d special tokens of a pair", ErrTooShort, maxLen, t.pairSpecials)
		}
	}
	// Both to their ends: which one is longer decides who gets an odd id.
	s.ids = t.encode(s, s.ids, a, math.MaxInt)
	s.pairIDs = t.encode(s, s.pairIDs, b, math.MaxInt)
	na, nb := len(s.ids), len(s.pairIDs)
	if excess := na + nb - keep; excess > 0 {
		truncated = true
		switch {
		case keep == 0:
			na, nb = 0, 0
		case how == LongestFirst:
			na, nb = longestFirst(na, nb, keep)
		case how == OnlyFirst:
			na -= excess
		default:
			nb -= excess
		}
		if keep > 0 && how != LongestFirst && (how == OnlyFirst && na < 1 || how == OnlySecond && nb < 1) {
			other := len(s.pairIDs)
			if how == OnlySecond {
				other = len(s.ids)
			}
			return dst, types, false, fmt.Errorf("%w: the text that is not to be cut has %d ids, of %d for both; truncation longest_first cuts either", ErrTooShort, other, keep)
		}
	}
	bodies := [2][]int32{s.ids[:na], s.pairIDs[:nb]}
	for _, p := range t.template.pair {
		part := p.ids
		if part == nil {
			part = bodies[p.sequence]
		}
		dst = append(dst, part...)
		for range part {
			types = append(types, p.typeID)
		}
	}
	return dst, types, truncated, nil
}

// longestFirst shares keep ids between two texts that have more.
func longestFirst(na, nb, keep int) (int, int) {
	short := min(na, nb)
	long := max(short, keep-short)
	if short+long > keep {
		short = keep / 2
		long = short + keep%2
	}
	if na > nb {
		return long, short
	}
	return short, long
}

// EncodeAll is Encode for many texts, on up to threads goroutines (0: GOMAXPROCS). Result i is texts[i]'s, whatever
// the number of threads. The error is ctx's.
func (t *Tokenizer) EncodeAll(ctx context.Context, texts []string, maxLen, threads int) ([][]int32, error) {
	all, _, err := t.EncodeCut(ctx, texts, maxLen, threads)
	return all, err
}

// EncodeCut is EncodeAll, and counts the texts that were cut.
func (t *Tokenizer) EncodeCut(ctx context.Context, texts []string, maxLen, threads int) (all [][]int32, cut int, err error) {
	all = make([][]int32, len(texts))
	var sum atomic.Int64
	err = inBlocks(ctx, len(texts), threads, func() func(lo, hi int) {
		var ends [block]int
		var ids []int32
		return func(lo, hi int) {
			ids = ids[:0]
			for i := lo; i < hi; i++ {
				var truncated bool
				if ids, truncated = t.Append(ids, texts[i], maxLen); truncated {
					sum.Add(1)
				}
				ends[i-lo] = len(ids)
			}
			split(all[lo:hi], ids, ends[:])
		}
	})
	if err != nil {
		return nil, 0, err
	}
	return all, int(sum.Load()), nil
}

// block is how many texts a goroutine takes at a time; their ids get one slice.
const block = 64

// split gives each of the texts of a block its ids, of which ends tells where they end: a copy.
func split(to [][]int32, ids []int32, ends []int) {
	own, start := append([]int32(nil), ids...), 0
	for i := range to {
		to[i] = own[start:ends[i]:ends[i]]
		start = ends[i]
	}
}

// inBlocks shares n texts among up to threads goroutines (0: GOMAXPROCS), each with its own function from work. The error is ctx's.
func inBlocks(ctx context.Context, n, threads int, work func() func(lo, hi int)) error {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	run := func() {
		do := work()
		for ctx.Err() == nil {
			lo := int(next.Add(block)) - block
			if lo >= n {
				return
			}
			do(lo, min(lo+block, n))
		}
	}
	var group sync.WaitGroup
	for range min(threads, (n+block-1)/block) - 1 {
		group.Go(run)
	}
	run()
	group.Wait()
	return ctx.Err()
}
