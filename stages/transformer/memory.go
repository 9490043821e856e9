package transformer

import "contraflow/gpustage"

// Memory is what a sub-batch takes of an arena, in bytes.
type Memory struct {
	Forward      int // peak of a forward pass of training that keeps nothing; one that only embeds takes less
	Kept         int // what stays of a kept forward pass
	Lean         int // what stays of a lean one; no less than Kept where models do not lean
	Backward     int // peak of a kept or replayed forward pass and its backward, what it kept included
	LeanBackward int // that of a lean one
}

// Keeping is m with more for what stays of passes: places of equal size, say.
func (m Memory) Keeping(kept, lean int) Memory {
	m.Backward += kept - m.Kept
	m.LeanBackward += lean - m.Lean
	m.Kept, m.Lean = kept, lean
	return m
}

// LeanShare is how much of a forward pass's products, but for those of distances (Disentangled), a lean pass's way back computes again; 0 if it keeps all.
func (m *Model) LeanShare() float64 {
	if !m.Leans() {
		return 0
	}
	c, up := m.Config, 1
	if c.Gated {
		up = 2
	}
	fat, rest := c.queries()+2*c.keys()+up*c.FeedForward, c.queries()+c.FeedForward // features that products of Hidden make, and that they make it of
	return float64(fat*(c.Layers-m.Lowest())) / float64((fat+rest)*c.Layers)
}

// Memory predicts what a sub-batch of the given rows takes. It runs the passes themselves on a device that computes
// nothing, so it is exact in training; only row lengths matter, and where sub-batches are padded (Buckets) what they are padded to.
func (m *Model) Memory(lengths []int) Memory {
	rows := rowsOf(lengths)
	if !m.Buckets() || len(lengths) == 0 {
		return m.predict(rows)
	}
	return m.buckets.memory(rows.shape().bucket(m.Config.MaxPositions), func() Memory { return m.predict(rows) })
}

// WeighedMemory is Memory of queries that are weights of tokens.
func (m *Model) WeighedMemory(lengths []int) Memory {
	rows := rowsOf(lengths)
	rows.Weighed = true
	return m.predict(rows)
}

// rowsOf are some of the given lengths.
func rowsOf(lengths []int) Rows {
	rows := Rows{Cu: []int32{0}}
	for _, n := range lengths {
		rows.Cu = append(rows.Cu, rows.Cu[len(rows.Cu)-1]+int32(n))
	}
	rows.IDs = make([]int32, rows.Cu[len(lengths)])
	rows.Keys = make([]uint64, len(lengths))
	return rows
}

func (m *Model) predict(rows Rows) Memory {
	dry := *m
	dry.Device, dry.Feed = gpustage.Dry{Like: m.Device}, nil
	s, _ := dry.Device.OpenStream()
	grads, _ := gpustage.NewTensor(dry.Device, m.DType, 1, m.Layout.Trained())
	var mem Memory
	a := gpustage.DryArena()
	dry.Forward(s, a, rows, true, false)
	mem.Forward = a.Peak()
	there := func(how manner) (kept, peak int) {
		a := gpustage.DryArena()
		p := dry.forward(s, a, rows, true, true, how)
		kept = a.Used()
		p.BackwardTo(p.Parts(), Gradients{Flat: grads})
		return kept, a.Peak()
	}
	mem.Kept, mem.Backward = there(usual)
	mem.Lean, mem.LeanBackward = mem.Kept, mem.Backward
	if m.Leans() {
		mem.Lean, mem.LeanBackward = there(lean)
	}
	_, replayed := there(soon)
	mem.Backward = max(mem.Backward, replayed)
	return mem
}
