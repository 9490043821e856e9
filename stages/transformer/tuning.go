package transformer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"contraflow/gpustage"
)

// Tuning says what of a model trains. The zero value: everything.
type Tuning struct {
	FreezeEmbeddings bool // Param.Below
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
	Save    []string // modules that train as a whole, likewise; dense layers behind pooling ("2_Dense") train so, or not at all
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
	rng := NamedRand(l.Seed, p.Name)
	bound := 1 / math.Sqrt(float64(p.Cols))
	for i := range dst {
		dst[i] = float32((2*rng.Float64() - 1) * bound)
	}
}

const (
	loraASuffix = ".lora_A"
	loraBSuffix = ".lora_B"
)

// OptionError is a mistake in a model's Options, in the words of a recipe: Option is the key below "model" that it is about.
type OptionError struct {
	Option string // "lora.targets"
	Err    error
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Err.Error() }

func (e *OptionError) Unwrap() error { return e.Err }

func wrong(option, format string, args ...any) error {
	return &OptionError{option, fmt.Errorf(format, args...)}
}

// layout lists the parameters and places what is frozen in front.
func (c Config) layout(t Tuning) (*Layout, error) {
	ps := c.parameters()
	if t.FreezeLayers < 0 || t.FreezeLayers > c.Layers {
		return nil, wrong("freeze.layers", "%d layers are to be frozen, the model has %d", t.FreezeLayers, c.Layers)
	}
	n := c.names()
	for i, p := range ps {
		ps[i].Below = p.Layer < 0 && p.Module() != n.finalNorm && !c.IsDense(p) && (!p.Head || p.kind == embedding)
	}
	frozen := func(p Param) bool {
		return p.Layer >= 0 && p.Layer < t.FreezeLayers || p.Below && t.FreezeEmbeddings || p.kind == tokenWeight && c.Queries.Frozen
	}
	if t.LoRA != nil {
		var err error
		if ps, frozen, err = c.factorize(ps, t, frozen); err != nil {
			return nil, err
		}
	}
	l := newLayout(ps, frozen)
	if l.Trained() == 0 {
		return nil, wrong("freeze", "everything is frozen: nothing is left to train")
	}
	return l, c.checkFused(l)
}

// maxRank is beyond the width of any layer: a product of factors can't have a higher rank than that.
const maxRank = 1 << 16

func (l *LoRA) check() error {
	switch {
	case l.Rank < 1 || l.Rank > maxRank:
		return wrong("lora.rank", "is %d, want 1 to %d", l.Rank, maxRank)
	case l.Alpha <= 0 || !finite(float32(l.Alpha)):
		return wrong("lora.alpha", "is %v, want a positive number that float32 has", l.Alpha)
	case l.Dropout < 0 || l.Dropout >= 1 || math.IsNaN(l.Dropout):
		return wrong("lora.dropout", "is %v, want at least 0 and less than 1", l.Dropout)
	case len(l.Targets) == 0:
		return wrong("lora.targets", "are missing")
	case len(l.Targets) > 1 && slices.Contains(l.Targets, AllLinear):
		return wrong("lora.targets", "%s stands alone: it is every linear layer, the others that are named too", AllLinear)
	}
	return nil
}

// factorize adds the factors of LoRA's targets, each at the end of its layer, and says what is frozen besides them. What frozen tells
// stays frozen, whatever LoRA's names say; a name that leaves nothing is a mistake.
func (c Config) factorize(ps []Param, t Tuning, frozen func(Param) bool) ([]Param, func(Param) bool, error) {
	lora := t.LoRA
	if err := lora.check(); err != nil {
		return nil, nil, err
	}
	trains := map[string]bool{}
	saving, frozenSave := map[string]bool{}, map[string]bool{} // names of lora.Save: something is saved, is frozen
	for _, p := range ps {
		// A classification head trains as a whole, as modules that PEFT saves for that task: BERT's pooler is not among them, unless
		// it is new.
		if p.Head && p.kind != embedding && (!c.Tokens.None() || c.Scorer.New || strings.Contains(p.Module(), "classifier") || p.Module() == "score") {
			trains[p.Name] = true
		}
		if p.kind == tokenWeight && !frozen(p) {
			trains[p.Name] = true
		}
		for _, name := range lora.Save {
			switch {
			case !within(p.Module(), name):
			case frozen(p):
				frozenSave[name] = true
			default:
				trains[p.Name], saving[name] = true, true
			}
		}
	}
	for _, name := range lora.Save {
		switch {
		case saving[name]:
		case frozenSave[name]:
			return nil, nil, wrong("lora.modules_to_save", "all of %q is frozen by model.freeze: leave it out of one of them", name)
		default:
			return nil, nil, wrong("lora.modules_to_save", "%q is not in this model; there are %s",
				name, strings.Join(c.moduleNames(func(Param) bool { return true }), ", "))
		}
	}
	all := lora.Targets[0] == AllLinear
	targeted := map[string]bool{} // names of lora.Targets that are of some layer
	var out, factors []Param
	slot, count := 0, 0
	for i, p := range ps {
		if p.kind == weight && !frozen(p) && !p.Head && !c.IsDense(p) {
			target := all && !trains[p.Name]
			for _, name := range lora.Targets {
				if named(p.Module(), name) {
					target, targeted[name] = true, true
				}
			}
			if target && trains[p.Name] {
				return nil, nil, wrong("lora.targets", "%s is both a target of LoRA and in lora.modules_to_save: name it once", p.Module())
			}
			if target {
				factors = append(factors,
					Param{Name: p.Module() + loraASuffix + ".weight", Layer: p.Layer, Rows: lora.Rank, Cols: p.Cols, kind: loraA, slot: slot},
					Param{Name: p.Module() + loraBSuffix + ".weight", Layer: p.Layer, Rows: p.Rows, Cols: lora.Rank, kind: loraB, slot: slot})
				count++
			}
			slot++
		}
		out = append(out, p)
		if i+1 == len(ps) || ps[i+1].Layer != p.Layer {
			out, factors, slot = append(out, factors...), nil, 0
		}
	}
	for _, name := range lora.Targets {
		if !targeted[name] && !all {
			if slices.ContainsFunc(ps, func(p Param) bool { return p.Head && named(p.Module(), name) }) {
				return nil, nil, wrong("lora.targets", "%q is of the head, which has no factors: to train it as a whole, name it in lora.modules_to_save", name)
			}
			return nil, nil, wrong("lora.targets", "%q is no linear layer of this model%s; there are %s, or %s for all of them",
				name, aboveFrozen(t), strings.Join(c.moduleNames(func(p Param) bool { return p.kind == weight && !p.Head && !c.IsDense(p) }), ", "), AllLinear)
		}
	}
	if count == 0 { // PEFT could not load such an adapter
		return nil, nil, wrong("lora.targets", "%s leaves no linear layer beside lora.modules_to_save%s: without factors, model.freeze does it", AllLinear, aboveFrozen(t))
	}
	return out, func(p Param) bool { return !p.Factor() && !trains[p.Name] }, nil
}

func aboveFrozen(t Tuning) string {
	if t.FreezeLayers == 0 {
		return ""
	}
	return fmt.Sprintf(" above its %d frozen layers", t.FreezeLayers)
}

// checkFused finds projections of one product of which only some train as a whole.
func (c Config) checkFused(l *Layout) error {
	n := c.names()
	for layer := range c.Layers {
		prefix := fmt.Sprintf(n.layer, layer)
		for _, group := range [][]string{n.qkv, n.up, c.ownDistances(n)} {
			if len(group) == 0 {
				continue
			}
			first, _ := l.Find(prefix + group[0] + ".weight")
			for _, name := range group[1:] {
				if p, _ := l.Find(prefix + name + ".weight"); l.Trains(p) != l.Trains(first) {
					return wrong("lora.modules_to_save", "%s are computed together: save all of them or none", strings.Join(group, ", "))
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
			name = strings.TrimPrefix(name, fmt.Sprintf(c.names().layer, p.Layer))
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
	if scale == 0 { // MatMul's Alpha of 0 stands for 1
		return nil
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
