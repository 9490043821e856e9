package hfmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
)

// Queries are weights of tokens, of which a sparse encoder's queries are made without its transformer: a SparseStaticEmbedding, which a Router sends queries
// to, and documents to a transformer with SpladePooling. Such a folder has
//
//	modules.json                         a Router, and perhaps Normalize
//	router_config.json                   the modules of each route, by their subfolders
//	query_0_SparseStaticEmbedding/       config.json, the tokenizer, and in model.safetensors the weights ("weight", [V])
//	document_0_MLMTransformer/           or "": the folder itself, as OpenSearch's models have it
//	document_1_SpladePooling/
//
// Open reads a Router of these two routes alone. Its weights may be in a file of token to weight, which config.json names ("path": "idf.json").
type Queries struct {
	Frozen    bool
	MaxLength int // tokens at which sentence-transformers cuts queries, its tokenizer's model_max_length; 0: none is given

	router string // the file that says what a Router's modules are, in the folder
	path   string // of the module
	file   *safetensors.File
	idf    string // the file in its place; "": there is none
}

// QueryTensor is the name under which Folder.Tensor finds the weights of queries, and Spec.Tensors has them.
const QueryTensor = "queries.weight"

const (
	routerFile   = "router_config.json"
	queryFolder  = "query_0_SparseStaticEmbedding"
	pooledFolder = "document_1_SpladePooling"
)

// readRouter has the modules of documents stand in the place of a Router, which is the first of the folder's.
func (f *Folder) readRouter() error {
	router := f.Modules[0]
	dir := filepath.Join(f.Dir, filepath.FromSlash(router.Path))
	file := filepath.Join(dir, routerFile)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) { // as it was called at first
		file = filepath.Join(dir, "config.json")
		o, err = readObject(file)
	}
	if err != nil {
		return err
	}
	var types map[string]string
	var structure map[string][]string
	var parameters struct {
		Route    *string           `json:"default_route"`
		Mappings map[string]string `json:"route_mappings"`
	}
	err = o.getAll(map[string]any{"types": &types, "structure": &structure, "parameters": &parameters})
	routes := sortedKeys(structure)
	switch {
	case err != nil:
	case len(routes) == 0:
		return fmt.Errorf("%s: there is no %s, which says what the modules of a Router are", dir, routerFile)
	case !slices.Equal(routes, []string{"document", "query"}):
		err = fmt.Errorf("a Router with the routes %q is not supported; one with query and document is", routes)
	case len(parameters.Mappings) > 0:
		err = errors.New("route_mappings are not supported: the routes are named query and document without them")
	case parameters.Route == nil: // which with allow_empty_key is the first of structure, and without it an error for texts of no role
		err = errors.New(`there is no default_route; with "document" texts of which nobody says what they are, are documents, as in Router.for_query_document: write that into parameters`)
	case *parameters.Route != "document":
		err = fmt.Errorf(`default_route %q is not supported; with "document" texts of which nobody says what they are, are documents, as in Router.for_query_document`, *parameters.Route)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	modules := map[string][]Module{}
	for _, route := range routes {
		for _, id := range structure[route] {
			at := path.Join(router.Path, id)
			if err := checkPath(at); err != nil && at != "" {
				return fmt.Errorf("%s: module %w", file, err)
			}
			m := Module{Name: fmt.Sprint(len(modules[route])), Path: at, Type: types[id]}
			if m.Type == "" {
				return fmt.Errorf("%s: module %q of the route %s has no type", file, id, route)
			}
			modules[route] = append(modules[route], m)
		}
	}
	query, document := modules["query"], modules["document"]
	if len(query) != 1 || query[0].Kind() != "SparseStaticEmbedding" || !strings.HasPrefix(query[0].Type, "sentence_transformers.") || len(document) != 2 || document[1].Kind() != "SpladePooling" {
		return fmt.Errorf("%s: the modules %s of queries and %s of documents are not supported; SparseStaticEmbedding of queries, and a transformer with SpladePooling of documents are",
			file, kindsOf(query), kindsOf(document))
	}
	f.Queries = &Queries{path: query[0].Path, router: path.Join(router.Path, filepath.Base(file))}
	f.Modules = append(document, f.Modules[1:]...)
	return nil
}

func kindsOf(modules []Module) string {
	var kinds []string
	for _, m := range modules {
		kinds = append(kinds, m.Kind())
	}
	return "[" + strings.Join(kinds, ", ") + "]"
}

// readQueries reads the module of queries, behind everything else.
func (f *Folder) readQueries() error {
	q := f.Queries
	if q == nil {
		return nil
	}
	if f.Adapter != nil {
		return errRouted(f.TransformerDir)
	}
	dir := filepath.Join(f.Dir, filepath.FromSlash(q.path))
	file := filepath.Join(dir, "config.json")
	o, err := readObject(file)
	if err != nil {
		return err
	}
	named := ""
	if err := o.getAll(map[string]any{"frozen": &q.Frozen, "path": &named}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if err := f.sameTokenizer(dir); err != nil {
		return err
	}
	if q.MaxLength, err = modelMaxLength(dir); err != nil {
		return err
	}
	if strings.HasSuffix(named, ".json") {
		for _, at := range []string{dir, f.Dir} {
			name := filepath.Join(at, path.Base(named))
			if _, err := os.Stat(name); err == nil {
				q.idf = name
				return nil
			}
		}
		return fmt.Errorf("%s: path %q: neither %s nor %s has that file: put it there", file, named, dir, f.Dir)
	}
	q.file, err = openTensors(dir, weightsFile)
	if errors.Is(err, fs.ErrNotExist) {
		q.file, err = openTensors(dir, torchWeightsFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has neither %s nor %s, with the weights of queries' tokens", dir, weightsFile, torchWeightsFile)
	}
	return err
}

// sameTokenizer refuses a tokenizer of queries that is not the documents': features are ids of tokens, and products of embeddings compare them. What
// transformers leaves in tokenizer.json of the last call, padding and truncation, may differ, and so may where special tokens stand.
func (f *Folder) sameTokenizer(dir string) error {
	tokenizer := func(dir string) (*object, error) {
		o, err := readObject(filepath.Join(dir, "tokenizer.json"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err == nil {
			o.remove("padding")
			o.remove("truncation")
			o.remove("post_processor") // of special tokens, without which queries are read
		}
		return o, err
	}
	mine, err := tokenizer(dir)
	if err != nil {
		return err
	}
	documents, err := tokenizer(f.TokenizerDir)
	if err != nil {
		return err
	}
	switch {
	case mine == nil || documents == nil: // of old ones the vocabulary is a file of its own
		for _, name := range tokenizerFiles {
			if strings.HasSuffix(name, "_config.json") || strings.HasSuffix(name, "_map.json") {
				continue
			}
			a, errA := plainfile.Read(filepath.Join(dir, name))
			b, errB := plainfile.Read(filepath.Join(f.TokenizerDir, name))
			if errA == nil && errB == nil && bytes.Equal(a, b) {
				return nil
			}
		}
	case slices.Equal(mine.keys, documents.keys):
		same := true
		for _, key := range mine.keys {
			same = same && bytes.Equal(compact(mine.values[key]), compact(documents.values[key]))
		}
		if same {
			return nil
		}
	}
	return fmt.Errorf("the tokenizer of queries in %s is not that of documents in %s: features are ids of its tokens, so two are not supported", dir, f.TokenizerDir)
}

func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// tensor is the weights [V], by a tokenizer's ids of the tokens if they are in a file of these.
func (q *Queries) tensor() (safetensors.Tensor, error) {
	t, err := q.file.Tensor("weight")
	t.Name = QueryTensor
	return t, err
}

// TokenWeights are the weights of a file of token to weight (idf.json) for a vocabulary, those of tokens that it does not have 0. id gives a token's id. A token that is none is an error.
func TokenWeights(file string, vocab int, id func(token string) (int32, bool)) ([]float32, error) {
	data, err := plainfile.Read(file)
	if err != nil {
		return nil, err
	}
	var weights map[string]*float64
	if err := unmarshal(data, &weights); err != nil {
		return nil, fmt.Errorf("%s: want an object of token to weight, such as {\"search\": 5.1}: %w", file, err)
	}
	if len(weights) == 0 {
		return nil, fmt.Errorf("%s: no weights: want an object of token to weight, such as {\"search\": 5.1}", file)
	}
	out := make([]float32, vocab)
	for _, token := range sortedKeys(weights) {
		n, ok := id(token)
		if !ok || int(n) >= vocab {
			return nil, fmt.Errorf("%s: %q is no token of the model's vocabulary: the weights are another model's", file, token)
		}
		if weights[token] == nil {
			return nil, fmt.Errorf("%s: the weight of %q is null: want a number", file, token)
		}
		w := float32(*weights[token])
		if w-w != 0 {
			return nil, fmt.Errorf("%s: the weight of %q, %v, is not a finite number of 32 bits", file, token, *weights[token])
		}
		out[n] = w
	}
	return out, nil
}

// WeightsFile is the file of token to weight that the folder has the weights of queries in, for [TokenWeights]; "": they are a tensor.
func (q *Queries) WeightsFile() string { return q.idf }

// routerFiles are those of a SparseEncoder whose queries are weights of tokens, in the place of files for a transformer and SpladePooling: the transformer's
// own stay where they are, which transformers then loads too.
func (s Spec) routerFiles(modules []module, files map[string][]byte) []module {
	const sparse = "sentence_transformers.sparse_encoder.models."
	files[pooledFolder+"/config.json"] = files[spladeFolder+"/config.json"]
	delete(files, spladeFolder+"/config.json")
	router := newObject()
	router.set("types", map[string]string{queryFolder: sparse + "SparseStaticEmbedding", "": modules[0].Type, pooledFolder: modules[1].Type})
	router.set("structure", map[string][]string{"query": {queryFolder}, "document": {"", pooledFolder}})
	router.set("parameters", map[string]any{"default_route": "document", "allow_empty_key": true})
	files[routerFile] = router.bytes()
	query := newObject()
	query.set("frozen", s.Queries.Frozen)
	files[queryFolder+"/config.json"] = query.bytes()
	return []module{{0, "0", "", "sentence_transformers.models.Router"}}
}

// withQueries has a tokenizer's files written for queries as well: their module has its own, which says where they are cut.
func (s Spec) withQueries(dir string) error {
	if err := s.Tokenizer(dir); err != nil {
		return err
	}
	to := filepath.Join(dir, queryFolder)
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	if err := s.Tokenizer(to); err != nil {
		return err
	}
	file := filepath.Join(to, tokenizerConfig)
	o, err := readObject(file)
	if errors.Is(err, fs.ErrNotExist) {
		o, err = newObject(), nil
	}
	if err != nil {
		return err
	}
	if s.Queries.MaxLength > 0 {
		o.set("model_max_length", s.Queries.MaxLength)
	} else {
		o.remove("model_max_length") // documents'
	}
	if _, ok := o.values["tokenizer_class"]; !ok { // which transformers finds by config.json's model_type elsewhere
		o.set("tokenizer_class", "PreTrainedTokenizerFast")
	}
	return os.WriteFile(file, o.bytes(), 0o666)
}

// splitQueries takes the weights of queries from the others.
func (s Spec) splitQueries(tensors []safetensors.Tensor) (rest, queries []safetensors.Tensor, err error) {
	for _, t := range tensors {
		if t.Name == QueryTensor {
			t.Name = "weight"
			queries = append(queries, t)
			continue
		}
		rest = append(rest, t)
	}
	if len(queries) != 1 {
		return nil, nil, fmt.Errorf("%d tensors %s, want the weights of queries' tokens", len(queries), QueryTensor)
	}
	return rest, queries, nil
}
