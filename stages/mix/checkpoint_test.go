package mix_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/io/safetensors"
	"contraflow/stages/mix"
	"contraflow/testdata/goldens"
)

const words = "embeddings.word_embeddings.weight"

// saved writes a run's checkpoint of one parameter, with the numbers that at gives.
func saved(t *testing.T, run string, step int, dtype safetensors.DType, name string, shape []int, at func(i int) float32) string {
	t.Helper()
	store := checkpoint.Open(filepath.Join(run, "checkpoints"), checkpoint.Disk{})
	p := checkpoint.Parameter{Name: name, Shape: shape}
	var raw []byte
	for i := range p.Len() {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(at(i)))
	}
	raw = raw[:p.Len()*map[safetensors.DType]int{safetensors.F32: 4, safetensors.BF16: 2}[dtype]]
	err := store.Begin(step, int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	part, err := store.WritePart(step, 0, dtype, []checkpoint.Piece{{Vector: "weights", Name: name, Data: raw}})
	if err != nil {
		t.Fatal(err)
	}
	err = store.Commit(checkpoint.State{Step: step, Vectors: []string{"weights"}, DType: string(dtype), Parameters: []checkpoint.Parameter{p}, Parts: []checkpoint.Part{part}}, 9)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(run, "checkpoints", filepath.Base(glob(t, filepath.Join(run, "checkpoints"), "step-*")[step-1]))
}

// A checkpoint's tensors are read piece by piece, each from its place, and what the run has frozen is the model's.
func TestCheckpointPieces(t *testing.T) {
	defer mix.SetChunk(7)()
	run := t.TempDir()
	model := filepath.Join(run, "model")
	if err := os.CopyFS(model, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	was := stored(t, model)
	shape := was[words].Shape
	a := saved(t, run, 1, safetensors.F32, words, shape, func(i int) float32 { return float32(i) })
	b := saved(t, run, 2, safetensors.F32, words, shape, func(i int) float32 { return float32(3*i + 2) })
	for method, want := range map[mix.Method]func(i int) float32{
		mix.Linear: func(i int) float32 { return float32(2*i + 1) },
		mix.SLERP:  func(i int) float32 { return float32(2*i + 1) }, // of nearly parallel ones it is the mean
	} {
		for name, x := range stored(t, mixed(t, mix.Options{Method: method}, two(a, b)...)) {
			vs := floats(t, x)
			if name != words {
				if !slices.Equal(vs, floats(t, was[name])) {
					t.Errorf("%s is not the model's", name)
				}
				continue
			}
			for i, v := range vs {
				if v != want(i) {
					t.Fatalf("%s: %s[%d] is %v, want %v", method, name, i, v, want(i))
				}
			}
		}
	}
	if err := mix.CheckLoss(a); err == nil || !strings.Contains(err.Error(), "is a checkpoint: losses are measured of models' folders") {
		t.Error(err)
	}
	link := filepath.Join(t.TempDir(), "best")
	if err := os.Symlink(a, link); err == nil { // on Windows it takes a right
		if vs := floats(t, stored(t, mixed(t, mix.Options{}, two(link, b)...))[words]); vs[1] != 3 {
			t.Errorf("by a link to it, %v", vs[:9])
		}
	}
	at20 := func(v float32) func(int) float32 {
		return func(i int) float32 { return map[bool]float32{true: v}[i == 20] }
	}
	refuses(t, two(a, saved(t, run, 3, safetensors.F32, words, shape, at20(float32(math.NaN())))), "b: tensor \""+words+"\": element 20 is NaN")
	large := two(a, saved(t, run, 4, safetensors.F32, words, shape, at20(3e38)))
	large[0].Weight, large[1].Weight = -1, 2
	refuses(t, large, "tensor \""+words+"\": element 20 becomes 6")
	refuses(t, two(a, saved(t, run, 5, safetensors.F32, "encoder.layer.0.output.dense.lora_A.weight", []int{2, 3}, func(int) float32 { return 1 })), "b is a checkpoint of a run with LoRA, which has the factors alone")
	refuses(t, two(a, saved(t, run, 6, safetensors.BF16, words, shape, func(int) float32 { return 1 })), `b has ["weights"] in BF16, want weights in F32`)
}

// The truth is Python's math: sin(0.3 t)/sin(t) and sin(0.7 t)/sin(t) of t = acos(0.9993). From a cosine of 0.9995 on, and of what has no length, it is the mean.
func TestSLERPConstants(t *testing.T) {
	w := []float64{0.3, 0.7}
	for _, c := range []struct {
		a, b, dot float64
		want      []float64
	}{
		{1, 1, 0.9993, []float64{0.30006371743986965, 0.7000833204726175}},
		{2, 3, 6 * 0.9993, []float64{0.30006371743986965, 0.7000833204726175}},
		{1, 1, 0.9996, w},
		{1, 1, -0.9996, w},
		{0.9e-8, 1, 0, w},
		{1, 0.9e-8, 0, w},
		{1.1e-8, 1, 0, []float64{math.Sin(0.3 * math.Pi / 2), math.Sin(0.7 * math.Pi / 2)}},
	} {
		for i, got := range mix.Slerp(c.a, c.b, c.dot, w) {
			if !(math.Abs(got-c.want[i]) <= 1e-11) { // acos loses three digits near 1
				t.Errorf("lengths %v and %v, product %v: factor %d is %v, want %v", c.a, c.b, c.dot, i, got, c.want[i])
			}
		}
	}
}
