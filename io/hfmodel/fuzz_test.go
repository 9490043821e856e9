package hfmodel

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
	"contraflow/tokenize"
)

// FuzzOpen: a model's folder of which a file is a stranger's is read, all its tensors too, or refused.
func FuzzOpen(f *testing.F) {
	golden := func(name string) string { return goldens.Path(f, name) }
	var folders []string
	for _, dir := range []string{
		copyGolden(f, "st6"), denseFolderOf(f), copyGolden(f, "sharded"), copyGolden(f, "st2"), m3Folder(f), multiVectorFolder(f, nil), copyAdapter(f, "bert-qv", nil),
		staticFolder(f, "", floatsOf(f, staticTensor, []int{3, 2}, 1, 2, 3, 4, 5, 6)), golden("splade/encoder"), golden("rerank/cross"), golden("rerank/minicpm-layer"), golden("rerank/llama-yes-no"),
	} {
		own := f.TempDir() // which files are changed in
		if err := os.CopyFS(own, os.DirFS(dir)); err != nil {
			f.Fatal(err)
		}
		folders = append(folders, own)
	}
	type file struct{ dir, name string }
	var files []file
	for _, dir := range folders {
		for _, name := range slices.Sorted(maps.Keys(contents(f, dir))) {
			data := contents(f, dir)[name]
			if strings.HasSuffix(name, ".md") || len(data) > 64<<10 {
				continue
			}
			f.Add(uint8(len(files)), data)
			files = append(files, file{dir, name})
		}
	}
	f.Fuzz(func(t *testing.T, at uint8, data []byte) {
		changed := files[int(at)%len(files)]
		path := filepath.Join(changed.dir, filepath.FromSlash(changed.name))
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer os.WriteFile(path, was, 0o666)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		harness.Bounded(t, func() {
			m, err := Open(changed.dir)
			if err != nil {
				return
			}
			for _, name := range m.Names() {
				if x, err := m.Tensor(name); err != nil || len(x.Data) != x.Len()*x.DType.Bits()/8 {
					t.Errorf("%s: %v", name, err)
				}
			}
			m.Settings()
			tokenize.Load(m.TokenizerDir)
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	})
}

// contents are a folder's files by their names, with slashes.
func contents(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, line := range tree(t, dir) {
		name, _, _ := strings.Cut(line, " ")
		data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = data
	}
	return all
}

// FuzzDatasetCard: what a stranger's card of a dataset says of its files is read, or refused, in time.
func FuzzDatasetCard(f *testing.F) {
	f.Add([]byte("---\nlanguage: en\nconfigs:\n- config_name: pair\n  default: true\n  data_files:\n  - split: train\n    path: \"tr*\"\n- config_name: more\n  data_dir: sub\n---\n# A"), "sub/train.jsonl")
	f.Add([]byte("\ufeff---\r\n{configs: [{config_name: a, data_files: [\"**/*.jsonl\", a]}]}\r\n---\r\n"), "a/b/c/d.jsonl")
	f.Add([]byte("---\nconfigs:\n- data_files: '[!a]**/[.]b'\n---"), ".a/__b")
	f.Fuzz(func(t *testing.T, card []byte, name string) {
		files := []string{"train.jsonl", "test.jsonl", "sub/valid.jsonl", "data/train-00000-of-00001.parquet", "data/dev.csv", name}
		for _, split := range []string{"", "test"} {
			harness.Bounded(t, func() {
				found, err := whole{url: "hf://datasets/org/name", files: files, card: card, part: part{split: split}}.pick()
				for _, file := range found {
					if err != nil || !slices.Contains(files, file) {
						t.Errorf("%q, %v", file, err)
					}
				}
			})
		}
	})
}

// FuzzCard: whatever a run's texts are, the head of a model's card is YAML that has them, and below it no text is more than itself.
func FuzzCard(f *testing.F) {
	f.Add("m", "query: ", "data/*.parquet", "model: {path: m}\n")
	f.Add("a\n---\nb: [", "```\n## Usage", "a|b\nc", "````\n# x\n```")
	f.Add("\u2028 '\"\\", "`", "", "\n")
	f.Fuzz(func(t *testing.T, name, prompt, data, recipe string) {
		if !utf8.ValidString(name) || !utf8.ValidString(data) {
			t.Skip()
		}
		c := Card{Name: "n" + name, BaseModel: "org/" + data, TrainingData: []Dataset{{Name: data, Columns: []string{name}}}, Recipe: "r" + recipe, Metrics: []Metric{{Dataset: data, Name: name, Value: 0.5}}}
		spec := Spec{Prompts: map[string]string{"query": prompt}, Pooling: Pooling{Dimension: 3}}
		harness.Bounded(t, func() {
			card := string(c.render("folder", spec, spec.Pooling))
			_, rest, _ := strings.Cut(card, "---\n")
			head, rest, _ := strings.Cut(rest, "\n---\n")
			var got struct {
				Index []struct {
					Name    string
					Results []struct{ Dataset struct{ Name string } }
				} `yaml:"model-index"`
			}
			if err := yaml.Unmarshal([]byte(head), &got); err != nil || len(got.Index) != 1 || got.Index[0].Name != oneLine(c.Name) || len(got.Index[0].Results) != 1 || got.Index[0].Results[0].Dataset.Name != oneLine(data) {
				t.Fatalf("%+v, %v\n%s", got, err, head)
			}
			rest, below, _ := strings.Cut(rest, "\n## Recipe\n\n") // of a recipe it is the last
			fence, text, _ := strings.Cut(below, "yaml\n")
			if text != strings.TrimRight(c.Recipe, "\n")+"\n"+fence+"\n" || strings.Trim(fence, "`") != "" || strings.Contains(c.Recipe, fence) {
				t.Errorf("the recipe %q stands as %q", c.Recipe, below)
			}
			if n := strings.Count(rest, "\n## "); n != 4 {
				t.Errorf("%d headings:\n%s", n, rest)
			}
		})
	})
}
