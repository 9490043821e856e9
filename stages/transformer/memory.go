package transformer

import "contraflow/gpustage"

// Memory is what a sub-batch takes of an arena, in bytes.
type Memory struct {
	Forward  int // peak of a forward pass of training that keeps nothing; one that only embeds takes less
	Kept     int // what stays of a kept forward pass
	Backward int // peak of a kept or replayed forward pass and its backward, what it kept included
}

// Keeping is m with more for what stays of a kept pass: places of equal size, say.
func (m Memory) Keeping(bytes int) Memory {
	m.Backward += bytes - m.Kept
	m.Kept = bytes
	return m
}

// Memory predicts what a sub-batch of the given rows takes. It runs the passes themselves on a device that computes
// nothing, so it is exact in training; only row lengths matter, and where sub-batches are padded (Buckets) what they are padded to.
func (m *Model) Memory(lengths []int) Memory {
	rows := Rows{Cu: []int32{0}}
	for _, n := range lengths {
		rows.Cu = append(rows.Cu, rows.Cu[len(rows.Cu)-1]+int32(n))
	}
	rows.IDs = make([]int32, rows.Cu[len(lengths)])
	rows.Keys = make([]uint64, len(lengths))
	if !m.Buckets() || len(lengths) == 0 {
		return m.predict(rows)
	}
	return m.buckets.memory(rows.shape().bucket(m.Config.MaxPositions), func() Memory { return m.predict(rows) })
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
	a = gpustage.DryArena()
	p := dry.Forward(s, a, rows, true, true)
	mem.Kept = a.Used()
	p.BackwardTo(p.Parts(), Gradients{Flat: grads})
	mem.Backward = a.Peak()
	a = gpustage.DryArena()
	p = dry.Replay(s, a, rows)
	p.BackwardTo(p.Parts(), Gradients{Flat: grads})
	mem.Backward = max(mem.Backward, a.Peak())
	return mem
}
