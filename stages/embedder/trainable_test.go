package embedder

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/testdata/goldens"
)

// What Save writes has the parameters as they are now, whatever else the folder had, and what the caller says of it.
func TestTrainableSave(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	texts := []string{"a cat on a mat", "the dog"}
	embed := func(folder string) (*Embedder, [][]float32) {
		t.Helper()
		e, err := Load(folder)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		vecs, err := e.EmbedPrompt(t.Context(), "", texts)
		if err != nil {
			t.Fatal(err)
		}
		return e, vecs
	}
	adapter := copyFolder(t, goldens.Path(t, "lora/bert-qv"))
	file := filepath.Join(adapter, "adapter_config.json")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	config = bytes.Replace(config, []byte("testdata/golden/bert/minilm-tiny"), []byte(filepath.ToSlash(goldens.Path(t, "bert/minilm-tiny"))), 1)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{goldens.Path(t, "bert/minilm-tiny"), adapter} {
		start := copyFolder(t, folder)
		was, before := embed(start)
		m, err := LoadTrainable(start, d)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		out := filepath.Join(t.TempDir(), "runs", "mine")
		if err := m.Save(out, Saving{Summary: "By hand."}); err != nil {
			t.Fatal(err)
		}
		same, after := embed(out)
		for i := range texts {
			if !slices.Equal(before[i], after[i]) {
				t.Errorf("%s: saved as it was, text %d has another embedding", folder, i)
			}
		}
		if same.MaxLength() != was.MaxLength() || len(same.prompts) != len(was.prompts) {
			t.Errorf("saved as it was, %d tokens and prompts %v have become %d and %v", was.MaxLength(), was.prompts, same.MaxLength(), same.prompts)
		}
		if card, err := os.ReadFile(filepath.Join(out, "README.md")); err != nil || !strings.Contains(string(card), "By hand.") {
			t.Errorf("%v: the card is %s", err, card)
		}

		s, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		p := m.Model.Layout.Params[0]
		vs, err := m.Model.Read(s, m.Model.Params, p)
		if err != nil {
			t.Fatal(err)
		}
		for i := range vs {
			vs[i] = float32(i%7) / 8 // what bf16 can hold
		}
		s.CopyIn(m.Model.Layout.View(m.Model.Params, p), gpustage.Bytes(vs))
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		s.Close()
		for i, dir := range []string{out, start} { // over a model, and over the one that it came from
			if err := m.Save(dir, Saving{MaxLength: 9 + i, Prompts: map[string]string{"query": "ask: "}, Precision: "bf16"}); err != nil {
				t.Fatal(err)
			}
			e, changed := embed(dir)
			if slices.Equal(changed[0], before[0]) || e.MaxLength() != 9+i || e.Prompt("query") != "ask: " || e.DefaultPrompt() != "" {
				t.Errorf("%s: embedding %v, %d tokens, prompts %v", dir, changed[0][:3], e.MaxLength(), e.prompts)
			}
			f, err := hfmodel.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w, err := f.Tensor(p.Name)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float32, w.Len())
			if err := w.Float32s(got); err != nil || !slices.Equal(got, vs) || w.DType != safetensors.BF16 {
				t.Errorf("%s has another %s (%v)", dir, p.Name, err)
			}
			if _, err := f.Tensor("pooler.dense.weight"); err != nil {
				t.Errorf("BERT's pooler: %v", err)
			}
		}
	}
}

func TestTrainableSaveErrors(t *testing.T) {
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	note := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(note, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]Saving{
		"holds no model": {}, `precision "f8"`: {Precision: "f8"}, "leaves no room for text": {MaxLength: 2}, "beyond the model's": {MaxLength: 1 << 20},
	} {
		if err := m.Save(dir, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	t.Chdir(dir)
	closed, err := LoadTrainable(goldens.Path(t, "bert/minilm-tiny"), d)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(closed.Close(), closed.Close()); err != nil {
		t.Error(err)
	}
	if err := closed.Save("new", Saving{}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := m.Save("", Saving{}); err == nil || !strings.Contains(err.Error(), "name is empty") {
		t.Error(err)
	}
	if _, err := os.Stat(note); err != nil {
		t.Error(err)
	}
}
