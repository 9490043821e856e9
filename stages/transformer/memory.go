package transformer

import "contraflow/gpustage"

// Memory is what a sub-batch takes of an arena, in bytes.
type Memory struct {
	Forward  int // peak of a forward pass that keeps nothing
	Kept     int // what stays of a kept forward pass
	Backward int // peak of a kept or replayed forward pass and its backward, what it kept included
}

// Memory predicts what a sub-batch of the given rows takes. It runs the passes themselves on a device that computes
// nothing, so it is exact; only row lengths matter.
func (m *Model) Memory(lengths []int) Memory {
	dry := *m
	dry.Device, dry.Feed = gpustage.Dry{}, nil
	s, _ := dry.Device.OpenStream()
	rows := Rows{Cu: []int32{0}}
	for _, n := range lengths {
		rows.Cu = append(rows.Cu, rows.Cu[len(rows.Cu)-1]+int32(n))
	}
	rows.IDs = make([]int32, rows.Cu[len(lengths)])
	rows.Keys = make([]uint64, len(lengths))

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
