package hfmodel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"contraflow/io/safetensors"
)

// StaticType is the model_type of static embeddings: sentence-transformers' StaticEmbedding, and model2vec's models. Their folders have
// no config.json that says so and no pooling, and texts get no special tokens; where texts are cut is in tokenizer.json, for StaticEmbedding alone
// heeds that. Open makes up the config.json; Save leaves it out.
const StaticType = "static_embedding"

const (
	staticTensor   = "embedding.weight"
	model2vecTable = "embeddings" // the same in a folder of model2vec
	tokenizerJSON  = "tokenizer.json"
)

// StaticConfig is the config.json of static embeddings.
func StaticConfig(vocab, hidden int) []byte {
	data, _ := json.MarshalIndent(map[string]any{"model_type": StaticType, "vocab_size": vocab, "hidden_size": hidden}, "", "  ")
	return data
}

// Static tells whether the folder's model is static embeddings: its tokenizer then puts no special tokens around texts.
func (f *Folder) Static() bool { return f.ModelType == StaticType }

// readStatic is what Open does instead of reading config.json, the pooling and the transformer's settings.
func (f *Folder) readStatic() (err error) {
	if f.weights, err = openWeights(f.TransformerDir); err != nil {
		return err
	}
	table, err := f.weights.static()
	if err != nil {
		return fmt.Errorf("%s: %w", f.TransformerDir, err)
	}
	f.table = &table
	f.Config = StaticConfig(table.Shape[0], table.Shape[1])
	f.Pooling = &Pooling{Mode: Mean, Dimension: table.Shape[1], IncludePrompt: true}
	file := filepath.Join(f.TransformerDir, tokenizerJSON)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return noTokenizerJSON(f.TransformerDir)
	}
	if err != nil {
		return err
	}
	if f.MaxSeqLength, err = truncation(o); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	f.LengthGiven = f.MaxSeqLength > 0
	return nil
}

// truncation is where a tokenizer.json cuts texts; 0: nowhere.
func truncation(tokenizer *object) (int, error) {
	var cut *struct {
		MaxLength int `json:"max_length"`
	}
	if _, err := tokenizer.get("truncation", &cut); err != nil || cut == nil {
		return 0, err
	}
	if cut.MaxLength < 1 {
		return 0, fmt.Errorf("truncation: max_length is %d, want at least 1", cut.MaxLength)
	}
	return cut.MaxLength, nil
}

// noTokenizerJSON is an error about a folder; "": of which nobody knows.
func noTokenizerJSON(dir string) error {
	of, at := dir, dir
	if dir == "" {
		of, at = "the tokenizer", "FOLDER"
	}
	return fmt.Errorf(`%s has no %s, from which alone sentence-transformers takes the tokenizer of static embeddings; transformers writes one beside a vocab.txt: `+
		`python -c "from transformers import BertTokenizerFast as T; T.from_pretrained(r'%s').save_pretrained(r'%[3]s')"`, of, tokenizerJSON, at)
}

// cuttingTokenizer writes the tokenizer's files, and into tokenizer.json where texts are cut and that they are not padded, which sentence-transformers
// sees to by itself.
func (s Spec) cuttingTokenizer(dir string) error {
	if err := s.Tokenizer(dir); err != nil {
		return err
	}
	file := filepath.Join(dir, tokenizerJSON)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return noTokenizerJSON("")
	}
	if err != nil {
		return err
	}
	var padding any
	padded, err := o.get("padding", &padding)
	if err != nil {
		return fmt.Errorf("%s: %w", tokenizerJSON, err)
	}
	if n, err := truncation(o); err == nil && n == s.MaxSeqLength && !padded {
		return nil
	}
	o.set("padding", nil)
	o.set("truncation", nil)
	if s.MaxSeqLength > 0 {
		o.set("truncation", map[string]any{"direction": "Right", "max_length": s.MaxSeqLength, "strategy": "LongestFirst", "stride": 0})
	}
	return os.WriteFile(file, o.bytes(), 0o666)
}

// readModel2vec recognizes a folder that model2vec wrote before it wrote a modules.json: by its config.json's model_type, or if that has none by
// the table's name.
func (f *Folder) readModel2vec() error {
	file := filepath.Join(f.Dir, "config.json")
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		o, err = newObject(), nil
	}
	var kind string
	var normalize bool
	if err == nil {
		_, err = o.get("model_type", &kind)
	}
	if err != nil || kind != "" && kind != "model2vec" {
		return nil // readConfig will say so
	}
	if kind == "" {
		w, err := safetensors.Open(filepath.Join(f.Dir, weightsFile))
		if err != nil {
			return nil
		}
		defer w.Close()
		if !slices.Contains(w.Names(), model2vecTable) {
			return nil
		}
	}
	if _, err := o.get("normalize", &normalize); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	f.ModelType, f.Normalize = StaticType, normalize
	f.Modules = []Module{{Name: "0", Type: "sentence_transformers.models.StaticEmbedding"}}
	return nil
}

// static is the table of static embeddings: [vocabulary, features]. In a file of model2vec it may have fewer rows: then mapping says which of them
// each token has, and weights what that is multiplied with.
func (w *weights) static() (t safetensors.Tensor, err error) {
	find := func(name string) (safetensors.Tensor, bool, error) {
		file := w.index[name]
		if file == nil {
			return safetensors.Tensor{}, false, nil
		}
		t, err := file.Tensor(name)
		return t, true, err
	}
	t, ok, err := find(staticTensor)
	if err != nil {
		return t, err
	}
	if ok {
		return t, wantDims(t, 2)
	}
	if t, ok, err = find(model2vecTable); err != nil {
		return t, err
	}
	if !ok {
		return t, safetensors.NoTensor(staticTensor, w.names)
	}
	mapping, mapped, err := find("mapping")
	if err != nil {
		return t, err
	}
	factors, weighted, err := find("weights")
	if err != nil {
		return t, err
	}
	if err := wantDims(t, 2); err != nil {
		return t, err
	}
	if !mapped && !weighted {
		return t, nil
	}
	return fold(t, mapping, factors, mapped, weighted)
}

func wantDims(t safetensors.Tensor, n int) error {
	if len(t.Shape) != n {
		return fmt.Errorf("tensor %v: want %d dimensions", t, n)
	}
	return nil
}

// fold is row[id] = embeddings[mapping[id]] * weights[id], in double precision and rounded once.
func fold(rows, mapping, factors safetensors.Tensor, mapped, weighted bool) (safetensors.Tensor, error) {
	n, cols := rows.Shape[0], rows.Shape[1]
	vs := make([]float32, rows.Len())
	if err := rows.Float32s(vs); err != nil {
		return rows, err
	}
	var index []int
	if mapped {
		var err error
		if index, err = wholes(mapping, n); err != nil {
			return rows, err
		}
	} else {
		for i := range n {
			index = append(index, i)
		}
	}
	var by []float64
	if weighted {
		var err error
		if by, err = float64s(factors); err != nil {
			return rows, err
		}
		if len(by) != len(index) {
			return rows, fmt.Errorf("tensor %v: want a number for each of %d tokens", factors, len(index))
		}
		for i, v := range by {
			if v-v != 0 {
				return rows, fmt.Errorf("tensor %q: element %d is %v", factors.Name, i, v)
			}
		}
	}
	out := make([]float32, len(index)*cols)
	for id, from := range index {
		for j, v := range vs[from*cols : (from+1)*cols] {
			if weighted {
				v = float32(float64(v) * by[id])
			}
			out[id*cols+j] = v
		}
	}
	return safetensors.FromFloat32s(rows.Name, []int{len(index), cols}, out)
}

// wholes reads a vector of whole numbers from 0 to n-1.
func wholes(t safetensors.Tensor, n int) ([]int, error) {
	if err := wantDims(t, 1); err != nil {
		return nil, err
	}
	out := make([]int, t.Shape[0])
	for i := range out {
		switch t.DType {
		case safetensors.I64:
			out[i] = int(int64(binary.LittleEndian.Uint64(t.Data[8*i:])))
		case safetensors.I32:
			out[i] = int(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
		default:
			return nil, fmt.Errorf("tensor %v: want whole numbers, I64 or I32", t)
		}
		if out[i] < 0 || out[i] >= n {
			return nil, fmt.Errorf("tensor %q: element %d is %d, and there are %d rows of embeddings", t.Name, i, out[i], n)
		}
	}
	return out, nil
}

// float64s reads a vector of numbers.
func float64s(t safetensors.Tensor) ([]float64, error) {
	if err := wantDims(t, 1); err != nil {
		return nil, err
	}
	out := make([]float64, t.Shape[0])
	if t.DType == safetensors.F64 {
		for i := range out {
			out[i] = math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:]))
		}
		return out, nil
	}
	narrow := make([]float32, len(out))
	if err := t.Float32s(narrow); err != nil {
		return nil, err
	}
	for i, v := range narrow {
		out[i] = float64(v)
	}
	return out, nil
}

// static tells whether the model is static embeddings.
func (s Spec) static() bool {
	var c struct {
		ModelType string `json:"model_type"`
	}
	return json.Unmarshal(s.Config, &c) == nil && c.ModelType == StaticType
}
