package transformer

import (
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

func TestZZBits(t *testing.T) {
	f, _ := os.Create(os.Getenv("BITS"))
	defer f.Close()
	for _, name := range []string{"minilm-tiny", "gelu-new", "relu-one-head", "odd-sizes"} {
		for di := range 4 {
			for _, every := range []int{0, 2} {
				for _, bf := range []bool{false, true} {
					dt := gpustage.F32
					var d gpustage.Device = ref.New()
					if di == 1 {
						dt = gpustage.F64
					}
					if di >= 2 {
						d, _ = cpu.New(cpu.Kernels([]string{"avx2", "portable"}[di-2]), cpu.Threads(2))
					}
					g := goldens.Load(t, "bert/"+name)
					m, s := loadGolden(t, name, d, Head{Pooling: gpustage.MeanPooling, Normalize: true}, Options{DType: dt, CheckpointEvery: every, BF16: bf})
					m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.2
					rows := goldenRows(t, g, "")
					for b := range rows.Len() {
						rows.Keys = append(rows.Keys, gpustage.RowKey(1, 2, int64(b), 0))
					}
					a := newArena(t, d)
					grads, _ := m.NewGradients()
					p := m.Forward(s, a, rows, true, true)
					p.Backward(upload64(t, s, dt, rows.Len(), m.Config.Hidden, g.F64(t, "r")), grads)
					h := sha256.New()
					h.Write(gpustage.Bytes(floats(t, s, p.Embeddings())))
					h.Write(gpustage.Bytes(floats(t, s, grads)))
					mem := m.Memory([]int{3, 40, 7})
					fmt.Fprintf(f, "%s %d %d %v %x %v\n", name, di, every, bf, h.Sum(nil), mem)
					d.Close()
				}
			}
		}
	}
}
