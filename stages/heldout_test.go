package stages_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/testdata/goldens"
)

// What can't be measured is said, with the row where it is one; what can is a sum and a weight, of all batches.
func TestHeldOut(t *testing.T) {
	d := &devicetest.Counted{Device: ref.New()}
	defer d.Close()
	model, err := embedder.LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	file := filepath.Join(t.TempDir(), "dev.jsonl")
	if err := os.WriteFile(file, []byte(strings.Repeat(`{"q": "a cat", "p": "a dog", "w": 0}`+"\n", 3)+strings.Repeat(`{"q": "fish swim", "p": "in water", "w": 2}`+"\n", 4)), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(weight string) *dataset.Dataset {
		data, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{file}, Query: "q", Positive: "p", Weight: weight})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { data.Close() })
		return data
	}
	if _, err := stages.NewHeldOut(t.Context(), open(""), stages.TextOf(model), 0, 1); err == nil || !strings.Contains(err.Error(), "batches of 0 rows") {
		t.Error(err)
	}
	digests := map[string]bool{}
	var held *stages.HeldOut
	for _, weight := range []string{"", "w"} {
		for _, rows := range []int{3, 4} {
			if held, err = stages.NewHeldOut(t.Context(), open(weight), stages.TextOf(model), rows, 1); err != nil {
				t.Fatal(err)
			}
			digests[held.Digest()] = true
		}
	}
	if len(digests) != 4 || held.Rows() != 7 {
		t.Errorf("%d digests, %d rows", len(digests), held.Rows())
	}
	for _, row := range []string{ // of as many tokens, rows and numbers
		`{"q": "a cat", "p": "a dog", "w": 1, "l": 0.5}`, `{"q": "a dog", "p": "a cat", "w": 1, "l": 0.5}`, `{"q": "a cat", "p": "a dog", "w": 2, "l": 0.5}`, `{"q": "a cat", "p": "a dog", "w": 1, "l": 0.25}`,
		`{"q": "a cat", "p": "a dog", "w": 0, "l": 0.5}`,
	} {
		file := filepath.Join(t.TempDir(), "dev.jsonl")
		if err := os.WriteFile(file, []byte(row+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		data, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{file}, Query: "q", Positive: "p", Weight: "w", Label: "l"})
		if err != nil {
			t.Fatal(err)
		}
		one, err := stages.NewHeldOut(t.Context(), data, stages.TextOf(model), 4, 1)
		if strings.Contains(row, `"w": 0`) {
			if err == nil || !strings.Contains(err.Error(), "all their weights are 0") {
				t.Error(err)
			}
		} else if err != nil || digests[one.Digest()] {
			t.Errorf("%s: %v, or the digest of other rows", row, err)
		} else {
			digests[one.Digest()] = true
		}
		data.Close()
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	engine := &embedder.Engine{Model: model.Model, Stream: s}
	defer engine.Close()
	sizes := ""
	own := func(of func(b *loss.Batch) (float64, float64)) loss.Host {
		return func(b *loss.Batch, _, _ [][]float32) (loss.Result, error) {
			sum, weight := of(b)
			return loss.Result{Sum: sum, Weight: weight}, nil
		}
	}
	for _, c := range []struct {
		l    loss.Loss
		want string
	}{
		{nil, "there is no loss to measure"},
		{loss.InfoNCE{Scale: -1}, "scale is -1"},
		{loss.CoSENT{Scale: 20}, "the loss needs labels"},
		{loss.InfoNCE{Scale: 20, Guide: &loss.Guide{}}, "the loss needs a guide model's embeddings"},
		{own(func(*loss.Batch) (float64, float64) { return 1, 0 }), "it is the mean over nothing"},
		{own(func(*loss.Batch) (float64, float64) { return math.Inf(1), 1 }), "the loss is not finite"},
		{own(func(*loss.Batch) (float64, float64) { return 1, -1 }), "Result.Weight -1"},
	} {
		if r, err := held.Loss(t.Context(), engine, c.l); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %v, want %q", r, err, c.want)
		} else if got, want := errors.Is(err, loss.ErrNotFinite), strings.Contains(c.want, "nothing") || strings.Contains(c.want, "finite"); got != want {
			t.Errorf("%v: that there is no figure: %v", err, got)
		}
	}
	before := d.Held() // with what the engine's passes have taken by now
	r, err := held.Loss(t.Context(), engine, own(func(b *loss.Batch) (sum, weight float64) {
		sizes += string(rune('0' + b.Rows))
		for i := range b.Rows {
			sum, weight = sum+b.Weight(i)*float64(i+1), weight+b.Weight(i)
		}
		return sum, weight
	}))
	if err != nil || sizes != "43" || r.Weight != 8 || r.Sum != 2*(4+1+2+3) || r.Mean() != 2.5 {
		t.Errorf("%v: %+v of batches of %s", err, r, sizes)
	}
	// Each batch draws for itself, the same each time; and an error names the row in the file, also in the second batch.
	draws := func() (all []uint64) {
		if _, err := held.Loss(t.Context(), engine, own(func(b *loss.Batch) (float64, float64) { all = append(all, b.Draw); return 1, 1 })); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if first, again := draws(), draws(); len(first) != 2 || first[0] == first[1] || !slices.Equal(first, again) {
		t.Errorf("draws %v, then %v", first, again)
	}
	_, err = held.Loss(t.Context(), engine, loss.Host(func(b *loss.Batch, _, _ [][]float32) (loss.Result, error) {
		if b.Rows == 3 {
			return loss.Result{}, &loss.LabelError{Row: 1, Why: "so it is"}
		}
		return loss.Result{Sum: 1, Weight: 1}, nil
	}))
	if want := file + ":6: so it is"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	// What a loss takes of the device is given back, also where there is no more of it.
	for n, refused := 1, true; refused; n++ {
		d.Refuse(n)
		_, err := held.Loss(t.Context(), engine, loss.InfoNCE{Scale: 20})
		refused = d.Refused()
		d.Refuse(0)
		if refused != errors.Is(err, gpustage.ErrOutOfMemory) || d.Held() != before {
			t.Errorf("allocation %d (refused: %v): %d bytes are held, %d before; %v", n, refused, d.Held(), before, err)
		}
	}
}

// Where rank 0 has no figure for a batch, all ranks have still embedded them all: they are at the same place afterwards.
func TestHeldOutOnRanks(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held, err := stages.NewHeldOut(t.Context(), animals(t), p.text, 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	bad := loss.Host(func(b *loss.Batch, _, _ [][]float32) (loss.Result, error) {
		if b.Rows == 3 {
			return loss.Result{}, &loss.LabelError{Why: "so it is"}
		}
		return loss.Result{Sum: 1, Weight: 1}, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := asRanks(ctx, 2, func(ranks *stages.Replicas) error {
		model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), ref.New())
		if err != nil {
			return err
		}
		defer model.Close()
		enc, err := stages.NewEncoder(pipeline.New("evaluates"), model.Model, 0, -1, 1, stages.With(ranks))
		if err != nil {
			return err
		}
		defer enc.Close()
		engine := enc.Engine()
		if engine.Stream, err = model.Model.Device.OpenStream(); err != nil {
			return err
		}
		defer engine.Stream.Close()
		for i, l := range []loss.Loss{bad, loss.InfoNCE{Scale: 20}} {
			r, err := held.Loss(ctx, engine, l)
			if main := ranks.Rank() == 0; (err != nil) != (main && i == 0) || (r != nil) != (main && i == 1) || err != nil && !strings.Contains(err.Error(), "so it is") {
				return fmt.Errorf("loss %d: %+v, %v", i, r, err)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
