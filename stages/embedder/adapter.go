package embedder

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
)

// adaptation is what a folder's adapter changes in a model. The zero value is that of a folder without one.
type adaptation struct {
	dir     string
	factors map[string]hfmodel.Factor // by the weight that they are added to
	whole   map[string]bool           // parameters that it has in the base's place
}

// adapted finds the parameters that an adapter changes, and what of it does not fit the model.
func adapted(f *hfmodel.Folder, m *transformer.Model) (adaptation, error) {
	out := adaptation{f.Dir, map[string]hfmodel.Factor{}, map[string]bool{}}
	if f.Adapter == nil {
		return out, nil
	}
	own := func(name string) (transformer.Param, bool) {
		for _, prefix := range append([]string{""}, m.Config.Prefixes()...) {
			if p, ok := m.Layout.Find(strings.TrimPrefix(name, prefix)); ok {
				return p, true
			}
		}
		return transformer.Param{}, false
	}
	elsewhere, err := otherLayers(f, m)
	if err != nil {
		return out, err
	}
	for _, x := range f.Adapter.Factors {
		p, ok := own(x.Module + ".weight")
		if !ok && (strings.HasPrefix(x.Module, "pooler.") || elsewhere(x.Module)) { // embeddings don't use it
			continue
		}
		if !ok {
			return out, fmt.Errorf("%s: the adapter is for a layer %q, which the base model does not have", f.Dir, x.Module)
		}
		if _, twice := out.factors[p.Name]; twice {
			return out, fmt.Errorf("%s: the adapter has factors of %s twice", f.Dir, p.Name)
		}
		out.factors[p.Name] = x
	}
	for _, t := range f.Adapter.Whole {
		name := strings.TrimPrefix(t.Name, hfmodel.AdapterPrefix)
		p, ok := own(name)
		if !ok && (strings.HasPrefix(name, "pooler.") || elsewhere(name)) {
			continue
		}
		if !ok {
			return out, fmt.Errorf("%s: the adapter has a tensor %q, which the base model does not have; a head's, which embeddings don't use, "+
				"can be left out of adapter_model.safetensors", f.Dir, t.Name)
		}
		if used, err := f.Tensor(p.Name, m.Config.Prefixes()...); err != nil || used.Name != t.Name {
			return out, errors.Join(fmt.Errorf("%s: the adapter's tensor %q would not be used: %s is read from %q", f.Dir, t.Name, p.Name, used.Name), err)
		}
		out.whole[p.Name] = true
	}
	return out, nil
}

// ofLayer finds the layer, counted from 0, that a tensor of a layer-wise reranker belongs to.
var ofLayer = regexp.MustCompile(`(?:^|\.)layers\.([0-9]+)\.`)

// otherLayers tells what the folder of a layer-wise reranker has and a model that scores by one of its layers has not: layers above that one, and other
// layers' heads.
func otherLayers(f *hfmodel.Folder, m *transformer.Model) (func(name string) bool, error) {
	if !f.LayerWise() {
		return func(string) bool { return false }, nil
	}
	whole, err := ConfigOf(f, nil)
	if err != nil {
		return nil, err
	}
	return func(name string) bool {
		if x := ofLayer.FindStringSubmatch(name); x != nil {
			l, err := strconv.Atoi(x[1])
			return err == nil && l >= m.Config.Layers && l < whole.Layers
		}
		return len(m.Config.Scorer.Below) == 0 && strings.HasPrefix(name, "lm_head.")
	}, nil
}

// CheckAdapter tells whether what trains of a model with LoRA is what a folder's adapter has, so that training can go on with it: factors of the
// same layers, of the same rank and scale, and the same modules as a whole. Heads and dense layers, which no adapter has, may train besides.
func CheckAdapter(f *hfmodel.Folder, m *transformer.Model) error {
	a, err := adapted(f, m)
	if err != nil {
		return err
	}
	return a.trains(m)
}

func (a adaptation) trains(m *transformer.Model) error {
	lora := m.Options.Tuning.LoRA
	for _, p := range m.Layout.Params {
		x, ok := a.factors[p.Name]
		switch {
		case !ok:
		case x.A.Shape[0] != lora.Rank:
			return fmt.Errorf("rank is %d, and the adapter's factors of %s have rank %d", lora.Rank, p.Module(), x.A.Shape[0])
		case x.Scale != lora.Scale():
			return fmt.Errorf("alpha %v, at rank %d, multiplies factors with %v, and the adapter's are multiplied with %v", lora.Alpha, lora.Rank, lora.Scale(), x.Scale)
		case x.A.Shape[1] != p.Cols || x.B.Shape[0] != p.Rows:
			return fmt.Errorf("%s: the adapter's factors of %s have shapes %v and %v, and the weight has %v", a.dir, p.Module(), x.A.Shape, x.B.Shape, p.Shape())
		}
	}
	targets := map[string]bool{}
	for _, p := range m.Layout.Training() {
		if _, ok := a.factors[p.Module()+".weight"]; p.Factor() && !ok {
			return fmt.Errorf("%s is a target, and the adapter has no factors of it", p.Module())
		}
		if !p.Factor() && !p.Head && !m.Config.IsDense(p) && !a.whole[p.Name] {
			return fmt.Errorf("%s would train as a whole, and the adapter does not have it", p.Name)
		}
		targets[p.Module()] = targets[p.Module()] || p.Factor()
	}
	for _, p := range m.Layout.Params {
		if _, ok := a.factors[p.Name]; ok && !targets[p.Module()] {
			return fmt.Errorf("the adapter has factors of %s, which is no target", p.Module())
		}
		if a.whole[p.Name] && !m.Layout.Trains(p) {
			return fmt.Errorf("the adapter has %s as a whole, which would not train", p.Name)
		}
	}
	return nil
}

// read gives a factor that trains its values.
func (a adaptation) read(p transformer.Param, dst []float32) error {
	x := a.factors[p.Module()+".weight"]
	t := x.B
	if p.Name == p.Module()+".lora_A.weight" {
		t = x.A
	}
	if err := t.Float32s(dst); err != nil {
		return err
	}
	if err := transformer.CheckFinite(t.Name, dst); err != nil {
		return fmt.Errorf("%s: %w", a.dir, err)
	}
	return nil
}

// merge adds an adapter's factors to a weight's elements.
func merge(m *transformer.Model, s gpustage.Stream, p transformer.Param, w []float32, x hfmodel.Factor) error {
	a, b := make([]float32, x.A.Len()), make([]float32, x.B.Len())
	if err := errors.Join(x.A.Float32s(a), x.B.Float32s(b)); err != nil {
		return err
	}
	if err := errors.Join(transformer.CheckFinite(p.Name, a), transformer.CheckFinite(p.Name, b)); err != nil {
		return fmt.Errorf("the adapter of %w", err)
	}
	return m.AddProduct(s, p, w, a, b, x.A.Shape[0], x.Scale)
}
