package stages_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// Ranks that were given different things train nothing: before the first update all of them end with an error that names what differs.
func TestRanksThatDiffer(t *testing.T) {
	type given struct {
		p parts
		wiring
		update stages.Update
		loss   loss.Loss
	}
	steeper := plain
	steeper.LR = 2e-3
	decays := plain
	decays.Optimizer = optim.AdamW{WeightDecay: 0.5}
	for want, change := range map[string]func(*given) error{
		"": func(*given) error { return nil },
		"the encoder's seed is 1 on rank 0, 2 on rank 1": func(x *given) error {
			x.seed = 1
			return nil
		},
		"LR: 0.002": func(x *given) error {
			x.update = steeper
			return nil
		},
		"WeightDecay: 0.5": func(x *given) error {
			x.update = decays
			return nil
		},
		"the loss is loss.InfoNCE{Scale: 20} on rank 0, loss.InfoNCE{Scale: 10} on rank 1": func(x *given) error {
			x.loss = loss.InfoNCE{Scale: 10}
			return nil
		},
		"the rows of batch 0.0 are ": func(x *given) error {
			x.order = dataset.SamplerConfig{Shuffle: true, Seed: 3}
			return nil
		},
		"give all ranks the same datasets": func(x *given) error {
			text, err := os.ReadFile(x.p.file)
			if err != nil {
				return err
			}
			return os.WriteFile(x.p.file, []byte(strings.Replace(string(text), "dog", "cat", 1)), 0o600)
		},
		"the model is ": func(x *given) error {
			m, err := embedder.LoadTrainable(filepath.Join(x.p.dir, "model"), x.p.device, embedder.ModelOptions(transformer.Options{Tuning: transformer.Tuning{FreezeEmbeddings: true}}))
			if err != nil {
				return err
			}
			err = x.p.model.Free()
			x.p.model = m.Model
			return err
		},
		"the weights that training begins with have hash ": func(x *given) error {
			s, err := x.p.device.OpenStream()
			if err != nil {
				return err
			}
			x.p.model.Change(s, func() { s.Fill(x.p.model.Params.Columns(7, 8), 0.25) })
			return errors.Join(s.Sync(), s.Close())
		},
	} {
		errs := make([]error, 2)
		var norms [2][]float64
		err := asRanks(t.Context(), 2, func(ranks *stages.Replicas) error {
			p, err := openParts(t.Context())
			if err != nil {
				return err
			}
			defer func() { p.Close() }()
			x := given{p: p, update: plain, loss: loss.InfoNCE{Scale: 20}}
			if ranks.Rank() == 1 {
				err = change(&x)
				p = x.p
			}
			if err == nil {
				norms[ranks.Rank()], err = wire(t.Context(), p, ranks, x.wiring, p.text, x.update, x.loss)
			}
			errs[ranks.Rank()] = err
			return err
		})
		if want == "" {
			if err != nil || len(norms[0]) != 2 || norms[0][0] != norms[1][0] {
				t.Errorf("alike: %v, %v", err, norms)
			}
			continue
		}
		if !errors.Is(err, stages.ErrDisagree) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		for rank, steps := range norms {
			if len(steps) > 0 {
				t.Errorf("%s: rank %d has made %d steps (%v)", want, rank, len(steps), errs[rank])
			}
		}
	}
}

// Settings tells values apart by what they are set to.
func TestSettings(t *testing.T) {
	type inner struct {
		N  int
		of *int
	}
	type mine struct {
		Name  string
		Deep  inner
		List  []float64
		Any   loss.Loss
		F     func()
		Small uint8
		On    bool
	}
	for want, v := range map[string]any{
		"nil": nil,
		"loss.InfoNCE{Scale: 20, MaskDuplicates: true}": loss.InfoNCE{Scale: 20, MaskDuplicates: true},
		"loss.CosineSimilarity{}":                       loss.CosineSimilarity{},
		"loss.CoSENT{Scale: 5}":                         &loss.CoSENT{Scale: 5},
		`stages_test.mine{Name: "a", Deep: stages_test.inner{N: 1, of: *int}, List: [0.5, NaN], Any: loss.CoSENT{}, F: func(), Small: 3, On: true}`: mine{
			"a", inner{1, new(int)}, []float64{0.5, math.NaN()}, loss.CoSENT{}, func() {}, 3, true},
	} {
		if got := stages.Settings(v); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	a, err := loss.Matryoshka(loss.InfoNCE{Scale: 20}, []int{8, 4}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := loss.Matryoshka(loss.InfoNCE{Scale: 20}, []int{8, 2}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if x, y := stages.Settings(a), stages.Settings(b); x == y || !strings.Contains(x, "Scale: 20") {
		t.Error(fmt.Sprint(x, " and ", y))
	}
}
