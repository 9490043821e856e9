package stages

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/stages/transformer"

	"github.com/zeebo/xxh3"
)

// What ranks must have alike is compared before their first update, whoever has made their graphs: what stages were given travels with the
// header of each batch, and what weights a run begins with beside its first step's losses. Ranks that differ in any of it would train on, as
// many models as there are ranks.

// tell takes note of what a stage of this rank's graph was given; of nobody's graph (nil) there is nothing to compare.
func (r *Replicas) tell(name, value string) {
	if r == nil {
		return
	}
	terms := maps.Clone(r.terms) // headers that are under way hold the one before
	if terms == nil {
		terms = map[string]string{}
	}
	terms[name] = value
	r.terms = terms
}

// termsAlike compares what the ranks' graphs were given.
func termsAlike(peers []Peer) error {
	all := make([]map[string]string, len(peers))
	for rank, p := range peers {
		all[rank] = p.Terms
	}
	return alike(all)
}

// layoutTerm is what of a model's parameters must be alike, whatever is in them.
func layoutTerm(m *transformer.Model) string {
	h := xxh3.New()
	for _, p := range m.Layout.Params {
		fmt.Fprintln(h, p.Name, p.Rows, p.Cols)
	}
	return fmt.Sprintf("%d parameters in %s, of which %d train (%s)", m.Layout.Len, m.DType, m.Layout.Trained(), Digest(h))
}

// orderTerm is which rows a batch has on all ranks, in their order, and of which dataset, and how many documents of others each gets.
func orderTerm(d *dataset.Dataset, b dataset.Batch, inBatch int) string {
	h := xxh3.New()
	var row [8]byte
	for _, r := range b.Rows {
		binary.LittleEndian.PutUint64(row[:], uint64(r))
		h.Write(row[:])
	}
	text := fmt.Sprintf("%s of pass %d over dataset %v", Digest(h), b.Pass, d.Fingerprint())
	if inBatch != 0 {
		text += fmt.Sprintf(" with %d in-batch negatives", inBatch)
	}
	return text
}

// Digest prints a hash, as ranks and checkpoints compare them.
func Digest(h *xxh3.Hasher) string {
	sum := h.Sum128().Bytes()
	return hex.EncodeToString(sum[:8])
}

// ComparedWeights takes note that a program has compared the ranks' weights itself: the first step then does not read all of them once more.
func (r *Replicas) ComparedWeights() { r.compared = true }

// weightsTerm is a hash of the parameters that this rank holds.
func (e *Encoder) weightsTerm(s gpustage.Stream) (string, error) {
	const most = 1 << 22 // elements at once on the host
	h := xxh3.New()
	for from, all := 0, e.Model.Params; from < all.Cols; from += most {
		vs, err := e.Model.ReadVector(s, all.Columns(from, min(all.Cols, from+most)))
		if err != nil {
			return "", err
		}
		h.Write(gpustage.Bytes(vs))
	}
	return Digest(h), nil
}

// weightsAlike compares the ranks' weights, each rank's with those of the first one that holds the same ones.
func (e *Encoder) weightsAlike(hashes []string) error {
	first := map[int]int{} // by the shard
	for rank, hash := range hashes {
		shard := 0
		if e.ranks.streams() {
			_, shard = e.ranks.Comm.Mesh.Place(rank)
		}
		of, there := first[shard]
		if !there {
			first[shard] = rank
		} else if hash != hashes[of] {
			return fmt.Errorf("%w: the weights that training begins with have hash %s on rank %d and %s on rank %d: give all ranks the same model, and after a checkpoint its state (Encoder.Restore)",
				ErrDisagree, hashes[of], of, hash, rank)
		}
	}
	return nil
}

// Settings tells a loss, an optimizer or another value by its type and those of its fields that are set, so that two of them can be compared: what
// functions do, what lies behind pointers in it and what maps hold is not told.
func Settings(v any) string {
	if v == nil {
		return "nil"
	}
	x := reflect.ValueOf(v)
	for x.Kind() == reflect.Pointer && !x.IsNil() {
		x = x.Elem()
	}
	return settings(x)
}

func settings(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case reflect.String:
		return strconv.Quote(v.String())
	case reflect.Interface:
		if v.IsNil() {
			return "nil"
		}
		return settings(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			parts = append(parts, settings(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				parts = append(parts, v.Type().Field(i).Name+": "+settings(f))
			}
		}
		return v.Type().String() + "{" + strings.Join(parts, ", ") + "}"
	}
	return v.Type().String() // a pointer, function, map or channel
}

// alike is an error that names what some rank has said otherwise than the first one.
func alike(all []map[string]string) error {
	names := map[string]bool{}
	for _, facts := range all {
		for name := range facts {
			names[name] = true
		}
	}
	said := func(rank int, name string) string {
		if v, ok := all[rank][name]; ok && v != "" {
			return v
		}
		return "not set"
	}
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		for rank := range all { // of many ranks, one that differs is enough
			if first, v := said(0, name), said(rank, name); v != first {
				differ = append(differ, fmt.Sprintf("%s is %s on rank 0, %s on rank %d", name, first, v, rank))
				break
			}
		}
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrDisagree, strings.Join(differ, "; "))
}

// Agree compares facts, by name, with those of the other ranks. All ranks call it before they train; a difference is an
// error naming both sides. Of a graph's model, seed, loss, update and order of rows the ranks find it themselves, before their first update.
func (r *Replicas) Agree(ctx context.Context, facts map[string]string) error {
	all, err := exchange(collective.For(ctx, "comparing what ranks were given"), r.header, facts)
	if err != nil {
		return err
	}
	return alike(all)
}
