package dataset

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/parquet-go/parquet-go/format"

	"contraflow/io/spelling"
)

// Token ids at rest, as contraflow prep writes them. Beside a column of texts, "query", stand
//
//	query_hash       list<int64>  both halves of each text's Hash128
//	query_ids        list<int32>  the ids of the row's texts, one after the other
//	query_id_counts  list<int32>  if it is a column of lists: how many ids each text has
//
// and the footer says under TokenKey what made them, and under CutKey how many texts of each column lost tokens then: {"query": 20}. With
// Source.Tokens a dataset reads these in place of the texts: a text is then the bytes of its ids, in the same blocks and arenas, and its identity is
// still the text's.
const (
	HashSuffix   = "_hash"
	IDsSuffix    = "_ids"
	CountsSuffix = "_id_counts"

	TokenKey = "contraflow.tokens"
	CutKey   = "contraflow.cut"
)

// TokenInfo says what made the ids of a file.
type TokenInfo struct {
	Tokenizer string    `json:"tokenizer"` // its hash
	Query     TokenRole `json:"query"`
	Document  TokenRole `json:"document"`
}

// TokenRole is how the texts of a role became ids.
type TokenRole struct {
	MaxLength int    `json:"max_length"`
	Prompt    string `json:"prompt,omitempty"`
}

// Tokens says what made the ids that are read in place of texts; nil without Source.Tokens.
func (d *Dataset) Tokens() *TokenInfo { return d.tokens }

// Cut is how many texts of the files had lost tokens already when they became the ids that are read in place of texts: of the columns in use, 0 of
// files that don't say it.
func (d *Dataset) Cut() int64 { return d.cut }

// PreparedTokens says what made the ids in files that train, named or globbed as in [Source]; nil if some have none.
func PreparedTokens(ctx context.Context, patterns []string) (*TokenInfo, error) {
	paths, err := Files(ctx, patterns, Train)
	if err != nil {
		return nil, err
	}
	var info *TokenInfo
	for _, path := range paths {
		if !isParquet(path) {
			return nil, nil
		}
		p, err := openParquet(path)
		if err != nil {
			return nil, err
		}
		i, err := parseTokenInfo(path, p.said(TokenKey))
		if err != nil || i == nil || info != nil && *i != *info {
			return nil, err
		}
		info = i
	}
	return info, nil
}

// said is what the footer says under a key; "": nothing.
func (p *parquetFile) said(key string) string {
	for _, kv := range p.meta.KeyValueMetadata {
		if kv.Key == key {
			return kv.Value
		}
	}
	return ""
}

func parseTokenInfo(path, s string) (*TokenInfo, error) {
	if s == "" {
		return nil, nil
	}
	info := new(TokenInfo)
	if err := json.Unmarshal([]byte(s), info); err != nil {
		return nil, fail(ErrCorrupt, "%s: what its footer says of token ids (%s) can't be read: %w", path, TokenKey, err)
	}
	return info, nil
}

// cutIn is how many texts of the columns in use a file says to have cut.
func (d *Dataset) cutIn(f *dataFile) (n int64, err error) {
	if f.cut == "" {
		return 0, nil // prep did not always say it
	}
	var cut map[string]int64
	if err := json.Unmarshal([]byte(f.cut), &cut); err != nil {
		return 0, fail(ErrCorrupt, "%s: what its footer says of cut texts (%s) can't be read: %w", f.path(), CutKey, err)
	}
	for i := range d.firstNumber {
		n += cut[d.sources[i].name]
	}
	return n, nil
}

// settleTokens makes sure that all files have ids of one tokenizer, and counts the texts that are cut in them.
func (d *Dataset) settleTokens() error {
	if !d.src.Tokens {
		return nil
	}
	for i := range d.files {
		f := &d.files[i]
		info, err := parseTokenInfo(f.path(), f.info)
		if err != nil {
			return err
		}
		switch {
		case info == nil:
			return fail(ErrMissingColumn, "%s has no token ids: contraflow prep writes them into parquet files", f.path())
		case d.tokens != nil && *info != *d.tokens:
			return fail(ErrColumnType, "%s has other token ids than %s: of tokenizer %.12s, the other of %.12s, or cut or prompted otherwise", f.path(), d.files[0].path(), info.Tokenizer, d.tokens.Tokenizer)
		}
		d.tokens = info
		n, err := d.cutIn(f)
		if err != nil {
			return err
		}
		d.cut += n
	}
	if d.cut > 0 {
		d.notes = append(d.notes, fmt.Sprintf("%s longer than max_length {query: %d, document: %d} when contraflow prep made the token ids, and cut", spelling.Count(d.cut, "text was", "texts were"), d.tokens.Query.MaxLength, d.tokens.Document.MaxLength))
	}
	return nil
}

// tokenChunks are what stands beside a column of texts in a row group.
type tokenChunks struct{ hashes, ids, counts *chunk }

// tokenReaders read them.
type tokenReaders struct{ hashes, ids, counts listReader }

// listReader reads a column of lists, and has those of the block at hand.
type listReader struct {
	columnReader
	fixedLists
}

// tokenChunks finds the ids of all text columns.
func (f *dataFile) tokenChunks(d *Dataset) error {
	p := f.parquet
	if len(d.joins) > 0 {
		return fail(ErrMissingColumn, "the template %q has no token ids: name the column that prep wrote", d.joins[0].name)
	}
	f.cut = p.said(CutKey)
	if f.info = p.said(TokenKey); f.info == "" {
		return nil // settleTokens says so
	}
	for g := range p.meta.RowGroups {
		all := make([]tokenChunks, d.firstNumber)
		for i := range all {
			s := &d.sources[i]
			open := func(suffix string, typ format.Type) (*chunk, error) {
				name := s.name + suffix
				col, n, err := p.column(name)
				if err != nil {
					return nil, err
				}
				if !col.list || col.leaf.elem.Type.V != typ {
					return nil, fail(ErrColumnType, "%s: column %q is %s, want a list of %v", p.path, name, n.typeName(), typ)
				}
				c, err := p.chunk(g, col)
				if err != nil {
					return nil, p.wrapColumn(g, name, err)
				}
				return c, nil
			}
			var err error
			if all[i].hashes, err = open(HashSuffix, format.Int64); err != nil {
				return err
			}
			if all[i].ids, err = open(IDsSuffix, format.Int32); err != nil {
				return err
			}
			if s.list {
				if all[i].counts, err = open(CountsSuffix, format.Int32); err != nil {
					return err
				}
			}
		}
		f.tokens = append(f.tokens, all)
	}
	return nil
}

// readTokens reads what stands beside text column k; weave makes texts of it.
func (r *Scanner) readTokens(f *dataFile, ref *blockRef, k int, b *Block) error {
	if r.tokens == nil {
		r.tokens = make([]tokenReaders, r.d.firstNumber)
	}
	q := &r.tokens[k]
	read := func(l *listReader, c *chunk) error {
		l.fixedLists = fixedLists{l.starts[:0], l.data[:0]}
		l.reset(r.f, c)
		l.sparse = true
		return l.readFixed(&l.fixedLists, ref.from, ref.from+int64(b.Rows))
	}
	c := &f.tokens[ref.part][k]
	if err := read(&q.hashes, c.hashes); err != nil {
		return fmt.Errorf("its hashes: %w", err)
	}
	if err := read(&q.ids, c.ids); err != nil {
		return fmt.Errorf("its ids: %w", err)
	}
	if c.counts != nil {
		if err := read(&q.counts, c.counts); err != nil {
			return fmt.Errorf("its counts of ids: %w", err)
		}
	}
	return nil
}

// hashSize is the bytes of a hash, which stands before the ids of each text of a block.
const hashSize = 16

// weave puts all that a row has in one place, for that is how a shuffled batch comes for it: of each column, of each text, the identity and
// then the ids. Columns apart would be twice the cache lines and, each in a page of its own, five times the searches for where a page is.
func (r *Scanner) weave(f *dataFile, ref *blockRef, b *Block) error {
	size := 0
	for k := range r.tokens {
		size += len(r.tokens[k].hashes.data) + len(r.tokens[k].ids.data)
	}
	if size > math.MaxUint32 {
		return f.parquet.wrap(errors.New("a block of more than 4 GiB of ids"))
	}
	b.raw = slices.Grow(b.raw[:0], size)
	for row := range b.Rows {
		for k := range r.tokens {
			q, t := &r.tokens[k], &b.texts[k]
			hashes, ids := q.hashes.row(row, 8), q.ids.row(row, 4)
			if !t.list && len(hashes) == hashSize { // nearly all there are
				b.raw = append(append(b.raw, hashes...), ids...)
				t.values = append(t.values, span{uint32(len(b.raw) - len(ids)), uint32(len(ids))})
				continue
			}
			reason := ""
			if !t.list {
				reason = fmt.Sprintf("%d halves of hashes for one text", len(hashes)/8)
			} else {
				reason = b.weaveList(t, hashes, ids, idsOf(q.counts.row(row, 4)))
			}
			if reason != "" {
				return f.parquet.wrapColumn(int(ref.part), r.d.sources[k].name, fmt.Errorf("row %d of the row group: %s", ref.from+int64(row), reason))
			}
		}
	}
	for k := range r.tokens {
		t := &b.texts[k]
		t.arena = b.raw
		t.end(b.Rows)
	}
	return nil
}

// weaveList is weave for a row of a column of lists; reason tells what doesn't fit.
func (b *Block) weaveList(t *textColumn, hashes, ids []byte, counts []int32) (reason string) {
	t.begin()
	if len(hashes) != hashSize*len(counts) {
		return fmt.Sprintf("%d halves of hashes for %d texts", len(hashes)/8, len(counts))
	}
	for k, n := range counts {
		if n < 0 || int(n) > len(ids)/4 {
			return "more ids are counted than there are"
		}
		b.raw = append(append(b.raw, hashes[hashSize*k:hashSize*(k+1)]...), ids[:4*n]...)
		t.values = append(t.values, span{uint32(len(b.raw)) - 4*uint32(n), 4 * uint32(n)})
		ids = ids[4*n:]
	}
	if len(ids) > 0 {
		return "fewer ids are counted than there are"
	}
	return ""
}

// identity is what tells a text from others.
func (b *Block) identity(t *textColumn, s span) Hash128 {
	if t.of != nil {
		return t.of.hashes[s.off]
	}
	if b.d.tokens == nil {
		return hashBytes(t.bytes(s))
	}
	h := t.arena[s.off-hashSize : s.off]
	return Hash128{binary.LittleEndian.Uint64(h), binary.LittleEndian.Uint64(h[8:])}
}

// littleEndian is nearly every machine there is.
var littleEndian = func() bool { x := uint16(1); return *(*byte)(unsafe.Pointer(&x)) == 1 }()

// idsOf sees bytes as ids, without copying where that can be.
func idsOf(b []byte) []int32 {
	n := len(b) / 4
	if n == 0 {
		return nil
	}
	if p := unsafe.Pointer(unsafe.SliceData(b)); littleEndian && uintptr(p)%4 == 0 {
		return unsafe.Slice((*int32)(p), n)
	}
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return ids
}
