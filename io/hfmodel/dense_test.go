package hfmodel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/safetensors"
	"contraflow/io/torchfile"
	"contraflow/testdata/goldens"
)

// denseFolderOf adds two Dense modules to a copy of a golden folder, as sentence-transformers saves them: from 16 to 3 features and from 3
// to 2.
func denseFolderOf(t testing.TB) string {
	t.Helper()
	dir := copyGolden(t, "st6")
	put(t, dir, "modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
		{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
		{"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"},
		{"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"},
		{"idx": 4, "name": "4", "path": "4_Normalize", "type": "sentence_transformers.models.Normalize"}]`)
	put(t, dir, "2_Dense/config.json", `{"in_features": 16, "out_features": 3, "bias": false, "activation_function": "torch.nn.modules.linear.Identity", "other": 7}`)
	put(t, dir, "3_Dense/config.json", `{"in_features": 3, "out_features": 2, "bias": true, "activation_function": "torch.nn.modules.activation.Tanh"}`)
	write := func(folder string, values map[string][]float32, shapes map[string][]int) {
		var all []safetensors.Tensor
		for _, name := range sortedKeys(values) {
			x, err := safetensors.FromFloat32s(name, shapes[name], values[name])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, x)
		}
		if err := safetensors.Write(filepath.Join(dir, folder, weightsFile), all, nil); err != nil {
			t.Fatal(err)
		}
	}
	wide := make([]float32, 48)
	wide[5] = 5
	write("2_Dense", map[string][]float32{"linear.weight": wide}, map[string][]int{"linear.weight": {3, 16}})
	write("3_Dense", map[string][]float32{"linear.weight": {1, 2, 3, 4, 5, 6}, "linear.bias": {7, 8}}, map[string][]int{"linear.weight": {2, 3}, "linear.bias": {2}})
	return dir
}

// Of several values that are wrong it is always the same that is told.
func TestFirstMistake(t *testing.T) {
	for range 20 {
		dir := denseFolderOf(t)
		put(t, dir, "2_Dense/config.json", `{"in_features": "a", "out_features": "b", "bias": "c", "activation_function": 4}`)
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "activation_function: got 4") {
			t.Fatal(err)
		}
	}
}

func TestDense(t *testing.T) {
	f := open(t, denseFolderOf(t))
	check := func(f *Folder, bias float32) {
		t.Helper()
		if len(f.Dense) != 2 || !f.Normalize {
			t.Fatalf("%d dense modules, normalized %v", len(f.Dense), f.Normalize)
		}
		for i, want := range []Dense{{Path: "2_Dense", In: 16, Out: 3, Activation: "identity"}, {Path: "3_Dense", In: 3, Out: 2, Bias: true, Activation: "tanh"}} {
			if d := f.Dense[i]; d.Path != want.Path || d.In != want.In || d.Out != want.Out || d.Bias != want.Bias || d.Activation != want.Activation {
				t.Errorf("%+v", d)
			}
		}
		for name, want := range map[string][]float32{"3_Dense.linear.weight": {1, 2, 3, 4, 5, 6}, "3_Dense.linear.bias": {bias, 8}} {
			x, err := f.Tensor(name, "bert.")
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, x.Len())
			if err := x.Float32s(got); err != nil || !slices.Equal(got, want) || x.Name != name {
				t.Errorf("%s is %v, %v", x, got, err)
			}
		}
		if _, err := f.Tensor("2_Dense.linear.bias"); err == nil {
			t.Error("2_Dense has a bias")
		}
	}
	check(f, 7)

	// As versions before safetensors wrote them.
	old := denseFolderOf(t)
	for _, name := range []string{"2_Dense", "3_Dense"} {
		tensors, err := f.Dense[name[0]-'2'].tensors()
		if err != nil {
			t.Fatal(err)
		}
		data, err := torchfile.Encode("archive", tensors)
		if err != nil {
			t.Fatal(err)
		}
		put(t, old, name+"/"+torchWeightsFile, string(data))
		if err := os.Remove(filepath.Join(old, name, weightsFile)); err != nil {
			t.Fatal(err)
		}
	}
	check(open(t, old), 7)
	if err := complete(old, false); err != nil {
		t.Error(err)
	}
	if files, err := f.neededFiles([]string{"config.json", "model.safetensors", "2_Dense/pytorch_model.bin", "3_Dense/pytorch_model.bin", "3_Dense/model.safetensors"}, false); err != nil ||
		!slices.Contains(files, "2_Dense/pytorch_model.bin") || !slices.Contains(files, "3_Dense/model.safetensors") || slices.Contains(files, "3_Dense/pytorch_model.bin") {
		t.Errorf("%q: %v", files, err)
	}
	evil, err := os.ReadFile(filepath.Join(goldens.Path(t, "m3/files"), "module.pt"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, old, "3_Dense/"+torchWeightsFile, string(evil)) // which no command is given for that would run it
	if _, err := Open(old); !errors.Is(err, torchfile.ErrUnsafe) || strings.Contains(err.Error(), "python") {
		t.Errorf("of a pickle that runs code: %v", err)
	}
	if err := os.Remove(filepath.Join(old, "3_Dense", torchWeightsFile)); err != nil {
		t.Fatal(err)
	}
	if err := complete(old, false); err == nil || !strings.Contains(err.Error(), "3_Dense has neither") {
		t.Errorf("without weights: %v", err)
	}

	// Without tensors those of the folder are saved, else those given.
	s := specOf(t, f)
	s.Dense = f.Dense
	dir := filepath.Join(t.TempDir(), "m")
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	check(open(t, dir), 7)
	config, err := os.ReadFile(filepath.Join(dir, "2_Dense", "config.json"))
	if err != nil || !strings.Contains(string(config), `"other": 7`) || !strings.Contains(string(config), `"torch.nn.modules.linear.Identity"`) {
		t.Errorf("%s, %v", config, err)
	}
	card, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil || !strings.Contains(string(card), "a vector of 2 dimensions") {
		t.Errorf("%s, %v", card, err)
	}
	for name, vs := range map[string][]float32{"3_Dense.linear.weight": {1, 2, 3, 4, 5, 6}, "3_Dense.linear.bias": {70, 8}} {
		shape := []int{2, 3}
		if len(vs) == 2 {
			shape = []int{2}
		}
		x, err := safetensors.FromFloat32s(name, shape, vs)
		if err != nil {
			t.Fatal(err)
		}
		s.Tensors = append(s.Tensors, x)
	}
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
	check(open(t, dir), 70)
}

// Activations are torch.nn's, by their classes.
func TestDenseActivations(t *testing.T) {
	dir := denseFolderOf(t)
	for class, want := range map[string]string{
		"linear.Identity": "identity", "activation.Tanh": "tanh", "activation.ReLU": "relu", "activation.GELU": "gelu", "activation.SiLU": "silu",
	} {
		edit(t, dir, "2_Dense/config.json", map[string]any{"activation_function": "torch.nn.modules." + class})
		if got := open(t, dir).Dense[0].Activation; got != want {
			t.Errorf("%s is %q", class, got)
		}
	}
}

func TestDenseErrors(t *testing.T) {
	first := denseFolderOf(t)
	edit(t, first, "2_Dense/config.json", map[string]any{"in_features": 15})
	if _, err := Open(first); err == nil || !strings.Contains(err.Error(), "2_Dense/config.json: in_features 15, but what comes before it gives 16") {
		t.Errorf("of another pooling: %v", err)
	}
	dir := denseFolderOf(t)
	edit(t, dir, "3_Dense/config.json", map[string]any{"in_features": 4})
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "in_features 4, but what comes before it gives 3") {
		t.Errorf("error %v", err)
	}
	dir = denseFolderOf(t)
	edit(t, dir, "3_Dense/config.json", map[string]any{"bias": false})
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), `has the tensors ["linear.bias" "linear.weight"], where config.json wants ["linear.weight"]`) {
		t.Errorf("error %v", err)
	}
}
