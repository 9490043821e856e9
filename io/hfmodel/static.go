package hfmodel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"contraflow/io/safetensors"
)

// StaticType is the model_type of static embeddings: sentence-transformers' StaticEmbedding, and model2vec's models. Their folders have
// no config.json and no pooling, and texts get no special tokens. Open makes up the config.json; Save leaves it out.
const StaticType = "static_embedding"

const staticTensor = "embedding.weight"

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
	f.MaxSeqLength, err = truncation(filepath.Join(f.TransformerDir, "tokenizer.json"))
	f.LengthGiven = f.MaxSeqLength > 0
	return err
}

// truncation is where a tokenizer.json cuts texts, which nothing but StaticEmbedding heeds; 0: it does not.
func truncation(file string) (int, error) {
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // who needs the tokenizer will say so
	}
	if err != nil {
		return 0, err
	}
	var cut *struct {
		MaxLength int `json:"max_length"`
	}
	if _, err := o.get("truncation", &cut); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if cut == nil {
		return 0, nil
	}
	return max(0, cut.MaxLength), nil
}

// static is the table of static embeddings, under sentence-transformers' name: [vocabulary, features]. In a file of model2vec it is called
// otherwise, and may have fewer rows: then mapping says which of them each token has, and weights what that is multiplied with.
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
	if err != nil || ok {
		return t, errors.Join(err, wantDims(t, 2))
	}
	t, ok, err = find("embeddings")
	if err != nil {
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
		t.Name = staticTensor
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
	return safetensors.FromFloat32s(staticTensor, []int{len(index), cols}, out)
}

// wholes are a vector's numbers, each of which is a row of n.
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

// float64s are a vector's numbers.
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

func (s Spec) static() bool {
	var c struct {
		ModelType string `json:"model_type"`
	}
	return json.Unmarshal(s.Config, &c) == nil && c.ModelType == StaticType
}

// staticFiles is what of files a folder of static embeddings has.
func staticFiles(files map[string][]byte) {
	for _, name := range []string{"config.json", "1_Pooling/config.json", "sentence_bert_config.json"} {
		delete(files, name)
	}
}
