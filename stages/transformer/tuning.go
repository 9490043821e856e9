package transformer

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"contraflow/gpustage"
)

// Tuning says what of a model trains. The zero value: everything.
type Tuning struct {
	FreezeEmbeddings bool // what comes before the first layer: the embeddings, their norm, the relative attention bias
	FreezeLayers     int  // the lowest so many
	LoRA             *LoRA
}

// LoRA (Hu et al., arXiv 2106.09685) trains, in place of a linear layer's weight W [out, in], the factors A [r, in] and B [out, r] of
// what is added to it:
//
//	y = x Wᵀ + b + s dropout(x) Aᵀ Bᵀ,  s = Alpha/r, or with RSLoRA Alpha/sqrt(r) (Kalajdzievski, arXiv 2312.03732)
//
// Everything else is frozen but for Save. Names and first values are those of PEFT: B begins as zero, A uniform within 1/sqrt(in).
type LoRA struct {
	Rank    int // r
	Alpha   float64
	Dropout float64
	RSLoRA  bool
	Targets []string // linear layers, by the end of their names ("query", "self_attn.o_proj") or in full; or AllLinear
	Save    []string // modules that train as a whole, likewise
	Seed    uint64   // of A's first values
}

// AllLinear, as the only target, is every linear layer that is not in LoRA.Save.
const AllLinear = "all-linear"

// Scale is s.
func (l *LoRA) Scale() float64 {
	if l.RSLoRA {
		return l.Alpha / math.Sqrt(float64(l.Rank))
	}
	return l.Alpha / float64(l.Rank)
}

// first gives a factor its first values. They depend on the seed and the factor's name alone.
func (l *LoRA) first(p Param, dst []float32) {
	clear(dst)
	if p.kind != loraA {
		return
	}
	h := fnv.New64a()
	h.Write([]byte(p.Name))
	rng := rand.New(rand.NewPCG(l.Seed, h.Sum64()))
	bound := 1 / math.Sqrt(float64(p.Cols))
	for i := range dst {
		dst[i] = float32((2*rng.Float64() - 1) * bound)
	}
}

const (
	loraASuffix = ".lora_A"
	loraBSuffix = ".lora_B"
)

// layout lists the parameters and places what is frozen in front.
func (c Config) layout(t Tuning) (*Layout, error) {
	ps := c.parameters()
	if t.FreezeLayers < 0 || t.FreezeLayers > c.Layers {
		return nil, fmt.Errorf("%d layers are to be frozen, the model has %d", t.FreezeLayers, c.Layers)
	}
	n := families[c.Family].names
	frozen := func(p Param) bool {
		if p.Layer >= 0 {
			return p.Layer < t.FreezeLayers
		}
		return t.FreezeEmbeddings && p.Module() != n.finalNorm && !c.dense(p) && (!p.Head || p.kind == embedding)
	}
	if t.LoRA != nil {
		var err error
		if ps, frozen, err = c.factorize(ps, t); err != nil {
			return nil, err
		}
	}
	l := newLayout(ps, frozen)
	if l.Trained() == 0 {
		return nil, errors.New("everything is frozen: nothing is left to train")
	}
	return l, c.checkFused(l)
}

// factorize adds the factors of LoRA's targets, each at the end of its layer, and says what is frozen besides them.
func (c Config) factorize(ps []Param, t Tuning) ([]Param, func(Param) bool, error) {
	lora := t.LoRA
	switch {
	case lora.Rank < 1:
		return nil, nil, fmt.Errorf("LoRA's rank is %d, want at least 1", lora.Rank)
	case lora.Alpha <= 0 || math.IsInf(lora.Alpha, 0) || math.IsNaN(lora.Alpha):
		return nil, nil, fmt.Errorf("LoRA's alpha is %v, want a positive number", lora.Alpha)
	case lora.Dropout < 0 || lora.Dropout >= 1 || math.IsNaN(lora.Dropout):
		return nil, nil, fmt.Errorf("LoRA's dropout is %v, want at least 0 and less than 1", lora.Dropout)
	case len(lora.Targets) == 0:
		return nil, nil, errors.New("LoRA has no targets")
	}
	all := slices.Equal(lora.Targets, []string{AllLinear})
	used := map[string]bool{}
	any := func(list []string, is func(name string) bool) (found bool) {
		for _, name := range list {
			if is(name) {
				found, used[name] = true, true
			}
		}
		return found
	}
	saved := func(p Param) bool {
		// A classification head trains as a whole, as modules that PEFT saves for that task: BERT's pooler is not among them, unless
		// it is new.
		if p.Head && p.kind != embedding && (c.Scorer.New || strings.Contains(p.Module(), "classifier") || p.Module() == "score") {
			return true
		}
		return !c.dense(p) && any(lora.Save, func(name string) bool { return within(p.Module(), name) }) && (p.Layer < 0 || p.Layer >= t.FreezeLayers)
	}
	var out, factors []Param
	slot := 0
	for i, p := range ps {
		if p.kind == weight && p.Layer >= t.FreezeLayers {
			save := saved(p)
			target := !p.Head && any(lora.Targets, func(name string) bool { return named(p.Module(), name) })
			if target && save {
				return nil, nil, fmt.Errorf("%s is both a target of LoRA and a module to save: name it once", p.Module())
			}
			if target || all && !save && !p.Head {
				factors = append(factors,
					Param{Name: p.Module() + loraASuffix + ".weight", Layer: p.Layer, Rows: lora.Rank, Cols: p.Cols, kind: loraA, slot: slot},
					Param{Name: p.Module() + loraBSuffix + ".weight", Layer: p.Layer, Rows: p.Rows, Cols: lora.Rank, kind: loraB, slot: slot})
			}
			slot++
		}
		out = append(out, p)
		if i+1 == len(ps) || ps[i+1].Layer != p.Layer {
			out, factors, slot = append(out, factors...), nil, 0
		}
	}
	trains := map[string]bool{}
	for _, p := range out {
		trains[p.Name] = p.Factor() || saved(p)
	}
	for _, name := range lora.Targets {
		if !used[name] && !all {
			return nil, nil, fmt.Errorf("LoRA's target %q is no linear layer of this model%s; there are %s, or %s for all of them",
				name, aboveFrozen(t), strings.Join(c.moduleNames(func(p Param) bool { return p.kind == weight && !c.dense(p) }), ", "), AllLinear)
		}
	}
	for _, name := range lora.Save {
		if !used[name] {
			return nil, nil, fmt.Errorf("the module to save %q is not in this model; there are %s",
				name, strings.Join(c.moduleNames(func(p Param) bool { return !c.dense(p) }), ", "))
		}
	}
	return out, func(p Param) bool { return !trains[p.Name] }, nil
}

func aboveFrozen(t Tuning) string {
	if t.FreezeLayers == 0 {
		return ""
	}
	return fmt.Sprintf(" above its %d frozen layers", t.FreezeLayers)
}

// checkFused finds projections of one product of which only some train as a whole.
func (c Config) checkFused(l *Layout) error {
	n := families[c.Family].names
	for layer := range c.Layers {
		prefix := fmt.Sprintf(n.layer, layer)
		for _, group := range [][]string{n.qkv, n.up} {
			first, _ := l.Find(prefix + group[0] + ".weight")
			for _, name := range group[1:] {
				if p, _ := l.Find(prefix + name + ".weight"); l.Trains(p) != l.Trains(first) {
					return fmt.Errorf("%s are computed together: save all of them or none", strings.Join(group, ", "))
				}
			}
		}
	}
	return nil
}

// moduleNames lists modules of layers without their layer's name, and of what is outside.
func (c Config) moduleNames(is func(Param) bool) (list []string) {
	for _, p := range c.parameters() {
		name := p.Module()
		if p.Layer >= 0 {
			name = strings.TrimPrefix(name, fmt.Sprintf(families[c.Family].names.layer, p.Layer))
		}
		if is(p) && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// named tells whether a module has this name, or one that ends with it, as PEFT matches names.
func named(module, name string) bool {
	return module == name || strings.HasSuffix(module, "."+name)
}

// within tells whether a module is of this name or lies in one that is.
func within(module, name string) bool {
	for i, b := range module {
		if b == '.' && named(module[:i], name) {
			return true
		}
	}
	return named(module, name)
}

// AddProduct adds scale * B A to a weight's elements w: an adapter's factors A [r, in] and B [out, r], row-major. It computes on the
// model's device and leaves the model as it is.
func (m *Model) AddProduct(s gpustage.Stream, p Param, w, a, b []float32, rank int, scale float64) error {
	if p.kind != weight || len(a) != rank*p.Cols || len(b) != p.Rows*rank {
		return fmt.Errorf("factors of %d and %d elements do not fit %s with shape %v at rank %d", len(a), len(b), p.Name, p.Shape(), rank)
	}
	up := func(rows, cols int, vs []float32) (gpustage.Tensor, error) {
		t, err := gpustage.NewTensor(m.Device, m.DType, rows, cols)
		if err == nil {
			m.write(s, t, vs)
		}
		return t, err
	}
	da, err := up(rank, p.Cols, a)
	if err != nil {
		return err
	}
	defer da.Mem.Free()
	db, err := up(p.Rows, rank, b)
	if err != nil {
		return err
	}
	defer db.Mem.Free()
	dw, err := up(p.Rows, p.Cols, w)
	if err != nil {
		return err
	}
	defer dw.Mem.Free()
	s.MatMul(dw, db, da, gpustage.MatMul{Alpha: scale, Add: true})
	sum, err := m.ReadVector(s, dw)
	copy(w, sum)
	return err
}

// lora is nil without LoRA.
func (m *Model) lora() *LoRA { return m.Options.Tuning.LoRA }
