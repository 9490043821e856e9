package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/safetensors"
)

// MultiVector is what folders say of models that give a vector for each token (late interaction, ColBERT): those of sentence-transformers'
// MultiVectorEncoder, and what its loader makes of PyLate's and of Stanford's ColBERT. Folder.Dense are the projection then, of each token's
// hidden state, and Folder.Normalize is of tokens' vectors.
type MultiVector struct {
	QueryLength, DocumentLength int               // tokens at which texts of each role are cut; 0: MaxSeqLength
	Expansion                   *Expansion        // nil: queries are left as they are
	Skiplist                    []string          // tokens that have no vector
	SkipTasks                   []string          // "query", "document": the roles whose texts Skiplist is for
	Prefixes                    map[string]string // by role, of older folders: their prompts begin with them, and the tokenizer is to make one token of each if it has it

	legacy bool // of a format that has no module for the mask
}

// Expansion fills short queries up with a token, by default the tokenizer's mask.
type Expansion struct {
	Strategy string `json:"strategy"` // fixed: queries have Length tokens, neither less nor more; min: no less
	Attend   bool   `json:"attend"`   // whether other tokens see those
	Token    string `json:"token"`    // "": the tokenizer's mask, or if it has none its end of text
	Length   int    `json:"length"`
}

// Punctuation is the skiplist of ColBERT and of PyLate: Python's string.punctuation.
func Punctuation() []string { return strings.Split("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "") }

var roles = []string{"query", "document"}

const (
	modelFile    = "config_sentence_transformers.json"
	metadataFile = "artifact.metadata" // of Stanford's ColBERT
	multiVector  = "MultiVectorEncoder"
	stanfordHead = "linear.weight"
	tokenVectors = "token_embeddings"
	pylateDense  = "pylate.models.Dense.Dense"
	maskModule   = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
)

// findMultiVector finds out whether a folder's model is one.
func (f *Folder) findMultiVector() error {
	o, err := readObject(filepath.Join(f.Dir, modelFile))
	var kind string
	if err == nil {
		if _, err = o.get("model_type", &kind); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(f.Dir, modelFile), err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pylate := slices.ContainsFunc(f.Modules, func(m Module) bool { return m.Type == pylateDense })
	switch {
	case kind == multiVector:
		f.MultiVector = &MultiVector{}
	case kind == "ColBERT" || pylate:
		f.MultiVector = &MultiVector{legacy: true}
	}
	return nil
}

// readMask reads a MultiVectorMask module.
func (f *Folder) readMask(file string) error {
	m := f.MultiVector
	m.SkipTasks = []string{"document"}
	o, err := readObject(file)
	if err != nil {
		return err
	}
	var keep []int
	var tasks json.RawMessage
	if err := o.getAll(map[string]any{"skiplist_words": &m.Skiplist, "skiplist_tasks": &tasks, "keep_only_token_ids": &keep}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var one string
	if json.Unmarshal(tasks, &one) == nil && one != "" {
		m.SkipTasks = []string{one}
	} else if some := []string(nil); json.Unmarshal(tasks, &some) == nil && some != nil {
		m.SkipTasks = some
	}
	for _, t := range m.SkipTasks {
		if t != "query" && t != "document" {
			return fmt.Errorf("%s: skiplist_tasks %q is not supported; query and document are", file, t)
		}
	}
	if len(keep) > 0 {
		return fmt.Errorf("%s: keep_only_token_ids is not supported: it is of images", file)
	}
	return nil
}

// expansionOf reads a query_expansion; nil if it is null.
func expansionOf(raw json.RawMessage) (*Expansion, error) {
	var e *Expansion
	if err := unmarshal(raw, &e); err != nil || e == nil {
		return nil, err
	}
	return e, e.Check()
}

// Check finds an expansion that is none.
func (e *Expansion) Check() error {
	switch {
	case e.Strategy != "fixed" && e.Strategy != "min":
		return fmt.Errorf("query_expansion has the strategy %q, want fixed or min", e.Strategy)
	case e.Length < 1:
		return fmt.Errorf("query_expansion has the length %d, want at least 1", e.Length)
	}
	return nil
}

// roles reads what the first module's file says of queries and documents, in which a key that is there counts before what older folders say
// elsewhere.
func (m *MultiVector) roles(o *object) (err error) {
	if o == nil {
		return nil
	}
	if err := o.getAll(map[string]any{"query_length": &m.QueryLength, "document_length": &m.DocumentLength}); err != nil {
		return err
	}
	if raw, ok := o.values["query_expansion"]; ok {
		m.Expansion, err = expansionOf(raw)
	}
	return err
}

// readMultiVector completes what modules have said: by the first module's file, and by config_sentence_transformers.json as PyLate writes it.
func (f *Folder) readMultiVector() error {
	m := f.MultiVector
	if m == nil {
		return f.readStanford()
	}
	for _, module := range f.Modules {
		file := filepath.Join(f.Dir, filepath.FromSlash(module.Path), "config.json")
		switch module.Kind() {
		case "MultiVectorMask":
			if err := f.readMask(file); err != nil {
				return err
			}
		case "Normalize":
			if _, err := os.Stat(file); err != nil {
				return fmt.Errorf("%w: without it the module is of a text's embedding, which there is none of", err)
			}
		}
	}
	file := filepath.Join(f.Dir, modelFile)
	if o := f.modelJSON; o != nil {
		if err := f.readPyLate(o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if err := m.roles(f.transformerJSON); err != nil {
		return fmt.Errorf("%s: %w", f.TransformerDir, err)
	}
	return f.checkMultiVector()
}

func (f *Folder) checkMultiVector() error {
	m := f.MultiVector
	if e := m.Expansion; e != nil && m.QueryLength > 0 && m.QueryLength < e.Length {
		return fmt.Errorf("%s: query_length is %d, and query_expansion has the length %d, which can't be more", f.Dir, m.QueryLength, e.Length)
	}
	if m.QueryLength < 0 || m.DocumentLength < 0 {
		return fmt.Errorf("%s: query_length %d or document_length %d is negative", f.Dir, m.QueryLength, m.DocumentLength)
	}
	return nil
}

// readPyLate reads what PyLate has at the top of config_sentence_transformers.json, and sentence-transformers' loader takes from there.
func (f *Folder) readPyLate(o *object) error {
	m := f.MultiVector
	var expands, attends, attendsMask *bool
	var query, document *int
	var words *[]string
	if err := o.getAll(map[string]any{
		"do_query_expansion": &expands, "attend_to_expansion_tokens": &attends, "attend_to_mask_tokens": &attendsMask,
		"query_length": &query, "document_length": &document, "skiplist_words": &words,
	}); err != nil {
		return err
	}
	marked := false
	for _, key := range pylateKeys {
		_, ok := o.values[key]
		marked = marked || ok
	}
	if query != nil {
		m.QueryLength = *query
	}
	if document != nil {
		m.DocumentLength = *document
	}
	if raw, ok := o.values["query_expansion"]; ok {
		var err error
		if m.Expansion, err = expansionOf(raw); err != nil {
			return err
		}
	} else if marked && (expands == nil || *expands) {
		e := &Expansion{Strategy: "fixed", Length: 32}
		if m.QueryLength > 0 {
			e.Length, m.QueryLength = m.QueryLength, 0
		}
		if attends == nil {
			attends = attendsMask
		}
		e.Attend = attends != nil && *attends
		m.Expansion = e
	}
	if m.legacy {
		m.SkipTasks, m.Skiplist, f.Normalize = []string{"document"}, Punctuation(), true
		if words != nil {
			m.Skiplist = *words
		}
	}
	for _, role := range roles {
		var prefix *string
		if ok, err := o.get(role+"_prefix", &prefix); err != nil {
			return err
		} else if ok && prefix != nil {
			if f.Prompts == nil {
				f.Prompts = map[string]string{}
			}
			f.Prompts[role] = *prefix + strings.TrimPrefix(f.Prompts[role], *prefix)
			if m.Prefixes == nil {
				m.Prefixes = map[string]string{}
			}
			m.Prefixes[role] = *prefix
		}
	}
	return nil
}

// pylateKeys are PyLate's. Of these query_prefix and document_prefix stay where a model is saved: sentence-transformers' loader has the tokenizer
// take the prefixes as one token only where they are.
var pylateKeys = []string{
	"query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words",
	"query_prefix", "document_prefix",
}

// readStanford reads a folder of Stanford's ColBERT: its projection is among the encoder's weights, and artifact.metadata has the rest.
func (f *Folder) readStanford() error {
	var config struct{ Architectures []string }
	if json.Unmarshal(f.Config, &config) != nil || f.Modules != nil || !slices.Contains(config.Architectures, "HF_ColBERT") {
		return nil
	}
	file := filepath.Join(f.TransformerDir, metadataFile)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		o, err = newObject(), nil
	}
	if err != nil {
		return err
	}
	m := &MultiVector{SkipTasks: []string{"document"}}
	e := &Expansion{Strategy: "fixed"}
	query, document := "[unused0]", "[unused1]"
	masks := true
	if err := o.getAll(map[string]any{
		"query_token_id": &query, "doc_token_id": &document, "doc_maxlen": &m.DocumentLength, "query_maxlen": &e.Length, "attend_to_mask_tokens": &e.Attend, "mask_punctuation": &masks,
	}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if e.Length == 0 {
		e.Length = 32
	}
	if masks {
		m.Skiplist = Punctuation()
	}
	m.Expansion, m.Prefixes = e, map[string]string{"query": query + " ", "document": document + " "}
	f.Prompts = maps.Clone(m.Prefixes)
	f.MultiVector, f.Normalize = m, true
	return f.checkMultiVector()
}

// readStanfordHead finds the projection when weights are open.
func (f *Folder) readStanfordHead() error {
	if f.MultiVector == nil || f.Modules != nil {
		return nil
	}
	file := f.weights.index[stanfordHead]
	if file == nil {
		return fmt.Errorf("%s: %w", f.weights.dir, safetensors.NoTensor(stanfordHead, f.weights.names))
	}
	t, err := file.Tensor(stanfordHead)
	if err != nil {
		return err
	}
	if len(t.Shape) != 2 {
		return fmt.Errorf("%s: %s has the shape %v, want two sizes", file.Path(), stanfordHead, t.Shape)
	}
	f.Dense = []Dense{{Path: "1_Dense", In: t.Shape[1], Out: t.Shape[0], Activation: "identity", inline: &t}}
	return nil
}

// modules are those behind the transformer and the projection.
func (m *MultiVector) modules(list []module, files map[string][]byte, normalize bool) []module {
	add := func(kind, class string, o *object) {
		n := len(list)
		folder := fmt.Sprintf("%d_%s", n, kind)
		list = append(list, module{n, fmt.Sprint(n), folder, class})
		files[folder+"/config.json"] = o.bytes()
	}
	mask := newObject()
	mask.set("skiplist_words", slices.Concat([]string{}, m.Skiplist))
	mask.set("skiplist_tasks", slices.Concat([]string{}, m.SkipTasks))
	mask.set("keep_only_token_ids", nil)
	add("MultiVectorMask", maskModule, mask)
	if normalize {
		o := newObject()
		o.set("module_input_name", tokenVectors)
		o.set("module_output_name", tokenVectors)
		add("Normalize", "sentence_transformers.models.Normalize", o)
	}
	return list
}

// setRoles is what the first module's file says of queries and documents.
func (m *MultiVector) setRoles(o *object) {
	for i, n := range []int{m.QueryLength, m.DocumentLength} {
		key := roles[i] + "_length"
		if o.remove(key); n > 0 {
			o.set(key, n)
		}
	}
	if m.Expansion == nil {
		o.set("query_expansion", nil)
		return
	}
	e := newObject()
	e.set("strategy", m.Expansion.Strategy)
	e.set("attend", m.Expansion.Attend)
	e.set("token", nil)
	if m.Expansion.Token != "" {
		e.set("token", m.Expansion.Token)
	}
	e.set("length", m.Expansion.Length)
	o.set("query_expansion", json.RawMessage(e.bytes()))
}

// setModel makes config_sentence_transformers.json one of a MultiVectorEncoder.
func (m *MultiVector) setModel(o *object, prompts map[string]string) {
	o.set("model_type", multiVector)
	for _, key := range pylateKeys {
		o.remove(key)
	}
	for _, role := range roles {
		if prefix := m.Prefixes[role]; prefix != "" && strings.HasPrefix(prompts[role], prefix) {
			o.set(role+"_prefix", prefix)
		}
	}
}
