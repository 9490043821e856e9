package dataset

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"unsafe"

	"github.com/parquet-go/parquet-go/format"
)

// Token ids at rest, as contraflow prep writes them. Beside a column of texts, "query", stand
//
//	query_hash       list<int64>  both halves of each text's Hash128
//	query_ids        list<int32>  the ids of the row's texts, one after the other
//	query_id_counts  list<int32>  if it is a column of lists: how many ids each text has
//
// and the footer says under TokenKey what made them. With Source.Tokens a dataset reads these in place of the texts: a text is then the
// bytes of its ids, in the same blocks and arenas, and its identity is still the text's.
const (
	HashSuffix   = "_hash"
	IDsSuffix    = "_ids"
	CountsSuffix = "_id_counts"

	TokenKey = "contraflow.tokens"
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

// PreparedTokens says what made the ids in the files that the source names; nil if some have none.
func PreparedTokens(ctx context.Context, src Source) (*TokenInfo, error) {
	paths, err := expand(ctx, src.Paths)
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
		i, err := parseTokenInfo(path, p.tokenInfo())
		if err != nil || i == nil || info != nil && *i != *info {
			return nil, err
		}
		info = i
	}
	return info, nil
}

func (p *parquetFile) tokenInfo() string {
	for _, kv := range p.meta.KeyValueMetadata {
		if kv.Key == TokenKey {
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

// settleTokens makes sure that all files have ids of one tokenizer.
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
	}
	return nil
}

// tokenChunks are what stands beside a column of texts in a row group.
type tokenChunks struct{ hashes, ids, counts *chunk }

// tokenReaders read them.
type tokenReaders struct {
	hashes, ids, counts columnReader
	longs, ints         fixedLists
}

// tokenChunks finds the ids of all text columns.
func (f *dataFile) tokenChunks(d *Dataset) error {
	p := f.parquet
	if len(d.joins) > 0 {
		return fail(ErrMissingColumn, "the template %q has no token ids: name the column that prep wrote", d.joins[0].name)
	}
	if f.info = p.tokenInfo(); f.info == "" {
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

// readTokens is readColumn for the ids of text column k.
func (r *blockReader) readTokens(f *dataFile, ref *blockRef, k int, b *Block) error {
	if r.tokens == nil {
		r.tokens = make([]tokenReaders, r.d.firstNumber)
	}
	if len(b.hashes) == 0 {
		b.hashes = make([][]Hash128, r.d.firstNumber)
	}
	c, q, t := &f.tokens[ref.part][k], &r.tokens[k], &b.texts[k]
	from, to := ref.from, ref.from+int64(ref.rows)
	read := func(cr *columnReader, c *chunk, v *fixedLists) error {
		v.starts, v.data = v.starts[:0], v.data[:0]
		cr.reset(r.f, c)
		cr.sparse = true
		return cr.readFixed(v, from, to)
	}
	if err := read(&q.hashes, c.hashes, &q.longs); err != nil {
		return fmt.Errorf("its hashes: %w", err)
	}
	b.hashes[k] = b.hashes[k][:0]
	for h := q.longs.data; len(h) >= 16; h = h[16:] {
		b.hashes[k] = append(b.hashes[k], Hash128{binary.LittleEndian.Uint64(h), binary.LittleEndian.Uint64(h[8:])})
	}
	ids := fixedLists{starts: q.ints.starts, data: t.arena}
	if err := read(&q.ids, c.ids, &ids); err != nil {
		return fmt.Errorf("its ids: %w", err)
	}
	t.arena = ids.data
	if !t.list {
		q.ints.starts = ids.starts
		for i := range int(ref.rows) {
			t.spans = append(t.spans, span{4 * ids.starts[i], 4 * (ids.starts[i+1] - ids.starts[i])})
			if q.longs.starts[i+1] != uint32(2*i+2) {
				return fmt.Errorf("row %d of the row group: %d halves of hashes for one text", from+int64(i), q.longs.starts[i+1]-q.longs.starts[i])
			}
		}
		return nil
	}
	begins := ids.starts
	q.ints.starts = nil
	if err := read(&q.counts, c.counts, &q.ints); err != nil {
		return fmt.Errorf("its counts of ids: %w", err)
	}
	for i := range int(ref.rows) {
		t.starts = append(t.starts, uint32(len(t.spans)))
		at := begins[i]
		for _, n := range idsOf(q.ints.data[4*q.ints.starts[i] : 4*q.ints.starts[i+1]]) {
			if n < 0 || uint32(n) > begins[i+1]-at {
				return fmt.Errorf("row %d of the row group: more ids are counted than there are", from+int64(i))
			}
			t.spans = append(t.spans, span{4 * at, 4 * uint32(n)})
			at += uint32(n)
		}
		if at != begins[i+1] {
			return fmt.Errorf("row %d of the row group: fewer ids are counted than there are", from+int64(i))
		}
	}
	t.starts = append(t.starts, uint32(len(t.spans)))
	if len(b.hashes[k]) != len(t.spans) {
		return fmt.Errorf("%d hashes for %d texts", len(b.hashes[k]), len(t.spans))
	}
	return nil
}

// hash is the identity of a text, the p-th of a row and source column.
func (b *Block) hash(source int, text []byte, row, p int) Hash128 {
	if b.d.tokens == nil {
		return hashBytes(text)
	}
	if t := &b.texts[source]; t.list {
		row = int(t.starts[row]) + p
	} else {
		row += p
	}
	return b.hashes[source][row]
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
