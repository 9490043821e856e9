package mix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"contraflow/io/checkpoint"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// source is an open model.
type source struct {
	name   string
	path   string
	folder *hfmodel.Folder
	config transformer.Config
	params []transformer.Param
	stored []safetensors.Tensor
	needed map[string]string // of stored, what embeddings or scores depend on: the parameter by the tensor's name

	state    *checkpoint.Checkpoint // of a checkpoint's folder; nil otherwise
	trained  map[string]string      // its parameters, by the name of the tensor of folder that each takes the place of
	reranker bool
	spec     *reranker.Spec // of a reranker that says so itself
}

// open opens a model. first is the first of those that are mixed; nil: this is it.
func open(m Model, first *source) (_ *source, err error) {
	s := &source{name: m.name(), path: m.Path, needed: map[string]string{}, trained: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	dir := m.Path
	if checkpoint.IsCheckpoint(dir) {
		if dir, err = filepath.EvalSymlinks(dir); err != nil { // what it is a checkpoint of is where it lies
			return nil, err
		}
		if s.state, err = checkpoint.LoadFolder(dir, checkpoint.Disk{}); err != nil {
			return nil, err
		}
		if dir, err = modelOf(dir); err != nil {
			return nil, err
		}
	}
	if hfmodel.IsAdapter(dir) {
		if s.state != nil {
			return nil, s.factorsAlone()
		}
		return nil, fmt.Errorf("%s is a LoRA adapter: contraflow merge --adapter %s --out MERGED makes a model of it, which can be mixed", s.name, s.path)
	}
	if s.folder, err = hfmodel.Open(dir); err != nil {
		return nil, err
	}
	if s.config, err = s.configured(first); err != nil {
		return nil, err
	}
	if s.stored, err = s.folder.Stored(); err != nil {
		return nil, err
	}
	s.params = s.config.Parameters()
	for _, p := range s.params {
		t, err := s.folder.Tensor(p.Name, s.config.Prefixes()...)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(t.Shape, p.Shape()) {
			return nil, fmt.Errorf("%s: tensor %q has shape %v, want %v", s.name, t.Name, t.Shape, p.Shape())
		}
		name := t.Name
		if s.folder.Static() {
			name = p.Name
		}
		s.needed[name] = p.Name
		if s.state != nil && s.state.Has(p.Name) {
			s.trained[name] = p.Name
		}
	}
	return s, s.checkState()
}

// modelOf is the model of the run that a checkpoint belongs to.
func modelOf(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	run := filepath.Dir(filepath.Dir(dir))
	model := filepath.Join(run, "model")
	if !hfmodel.IsModel(model) {
		return "", fmt.Errorf("%s is a checkpoint, which has parameters alone, and its run %s has no model yet, whose tokenizer and configuration belong to them: let the run end", dir, run)
	}
	return model, nil
}

// checkState compares a checkpoint's parameters with the model beside it.
func (s *source) checkState() error {
	if s.state == nil {
		return nil
	}
	if s.state.DType != string(safetensors.F32) || !slices.Contains(s.state.Vectors, weights) {
		return fmt.Errorf("%s has %q in %s, want %s in F32", s.name, s.state.Vectors, s.state.DType, weights)
	}
	shapes := map[string][]int{}
	for _, p := range s.params {
		shapes[p.Name] = p.Shape()
	}
	for _, p := range s.state.Parameters {
		if strings.HasSuffix(p.Name, ".lora_A.weight") {
			return s.factorsAlone()
		}
		if shape, ok := shapes[p.Name]; !ok || !slices.Equal(shape, p.Shape) {
			return fmt.Errorf("%s has the parameter %s of shape %v, and the model in %s has %s: they are not of one run", s.name, p.Name, p.Shape, s.folder.Dir, shapeOf(shape, ok))
		}
	}
	return nil
}

func (s *source) factorsAlone() error {
	return fmt.Errorf("%s is a checkpoint of a run with LoRA, which has the factors alone: such checkpoints are not mixed; the models of runs are, once their adapters are merged", s.name)
}

func shapeOf(shape []int, ok bool) string {
	if !ok {
		return "none of that name"
	}
	return fmt.Sprintf("%v", shape)
}

// weights is the vector of a checkpoint that has the parameters.
const weights = "weights"

// configured is the model's configuration with its heads.
func (s *source) configured(first *source) (transformer.Config, error) {
	f := s.folder
	if f.Queries != nil {
		return transformer.Config{}, fmt.Errorf("%s makes queries of weights of their tokens, without its transformer (a Router): such models are not mixed", s.name)
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		return c, err
	}
	if first != nil && !s.declares() {
		return s.as(first, c)
	}
	if f.Reranker == nil {
		return c, nil
	}
	s.reranker = true
	tok, err := tokenize.Load(f.TokenizerDir)
	if err != nil {
		return c, err
	}
	spec, err := reranker.Describe(f, tok, c, reranker.TextOptions{})
	if err != nil {
		return c, err
	}
	if spec.Scorer.New {
		return c, fmt.Errorf("%s has no head that scores, which reranker.json says of it", s.name)
	}
	spec.Configure(&c)
	s.spec = spec
	return c, nil
}

// declares tells whether the folder says how embeddings are made, or pairs scored. A base model's on the hub often does not.
func (s *source) declares() bool {
	f := s.folder
	return f.Modules != nil || f.Pooling != nil || f.Reranker != nil || f.M3 != nil || f.MultiVector != nil
}

// as is the configuration of a model that declares nothing, as one of the first's kind, where a head for language modelling is all that this takes.
func (s *source) as(first *source, c transformer.Config) (_ transformer.Config, err error) {
	raw := s.folder.Config
	switch h := first.config; {
	case len(h.Scorer.Tokens) > 0 && c.Causal:
		c.Scorer, err = c.TokenScorer(raw, h.Scorer.Tokens...)
		s.reranker = true
	case !h.MLMHead.None() && strings.HasSuffix(s.folder.Architecture(), maskedLM):
		c.MLMHead, err = c.MLM(raw, h.MLMHead.Twice)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return c, err
}

// What transformers' classes of language models end in.
const causalLM, maskedLM = "ForCausalLM", "ForMaskedLM"

// modeled are the modules of the head for language modelling that a folder which declares nothing has by its class, and the one of them that gives logits, if
// that is not the word embeddings. ok: it is of such a class, and of a family whose head is known here.
func (s *source) modeled() (modules []string, decoder string, ok bool) {
	if s.declares() || s.folder.Static() {
		return nil, "", false
	}
	switch class := s.folder.Architecture(); {
	case strings.HasSuffix(class, causalLM):
		if h, err := s.config.TokenScorer(s.folder.Config); err == nil {
			return []string{h.LMHead}, h.LMHead, true
		}
	case strings.HasSuffix(class, maskedLM):
		if h, err := s.config.MLM(s.folder.Config, false); err == nil {
			return append(h.Modules(), strings.TrimSuffix(h.Bias, ".bias")), h.Decoder, true
		}
	}
	return nil, "", false
}

// models tells whether a tensor is one of the head for language modelling that the folder's class has.
func (s *source) models(name string) bool {
	modules, _, _ := s.modeled()
	return slices.ContainsFunc(modules, func(m string) bool { return m != "" && (name == m+".weight" || name == m+".bias") })
}

// folders are what the model is read from.
func (s *source) folders() []string { return []string{s.path, s.folder.Dir} }

func (s *source) close() error {
	var errs []error
	if s.folder != nil {
		errs = append(errs, s.folder.Close())
	}
	if s.state != nil {
		errs = append(errs, s.state.Close())
	}
	return errors.Join(errs...)
}

// find is the tensor that the first model calls by a name. Parameters have names that do not depend on how a file calls them (gamma or weight, with a
// prefix or without), and modules the place in their order.
func (s *source) find(first *source, name string) (values, error) {
	if p, ok := first.needed[name]; ok {
		name = p
	}
	for i, d := range first.config.Dense {
		if rest, ok := strings.CutPrefix(name, d.Name+"."); ok && i < len(s.config.Dense) {
			name = s.config.Dense[i].Name + "." + rest
			break
		}
	}
	t, err := s.folder.Tensor(name, s.config.Prefixes()...)
	if err != nil {
		return values{}, fmt.Errorf("%s: %w", s.name, err)
	}
	own := t.Name
	if s.folder.Static() {
		own = name
	}
	v := values{of: s.name, name: own, tensor: t}
	if param, ok := s.trained[own]; ok {
		v.bytes = func(from int, dst []byte) error { return s.state.Read(weights, param, from, dst) }
	}
	return v, nil
}

// rest are the tensors that the names of the first model's do not come to.
func (s *source) rest(first *source) (names []string) {
	taken := map[string]bool{}
	for _, t := range first.stored {
		if v, err := s.find(first, t.Name); err == nil {
			taken[v.name] = true
		}
	}
	for _, t := range s.stored {
		if !taken[t.Name] && !whole(t.DType) {
			names = append(names, t.Name)
		}
	}
	return names
}

// fits tells why two models can't be mixed.
func (a *source) fits(b *source, note func(string)) error {
	differ := func(format string, args ...any) error {
		return fmt.Errorf("%s and %s can't be mixed: %s", a.name, b.name, fmt.Sprintf(format, args...))
	}
	kinds := func(s *source) string {
		f := s.folder
		switch {
		case s.reranker:
			return "a reranker"
		case !s.config.MLMHead.None():
			return "a sparse encoder"
		case f.MultiVector != nil:
			return "a model that gives a vector for each token"
		case f.M3 != nil:
			return "a model with M3's heads"
		}
		return "an embedding model"
	}
	if x, y := kinds(a), kinds(b); x != y {
		if a.first(b) {
			return differ(nothing)
		}
		return differ("the one is %s, the other %s", x, y)
	}
	if _, own, ok := a.modeled(); ok {
		if _, other, ok := b.modeled(); ok && own != other {
			return differ("the head for language modelling, which config.json says of both, is %s and %s (tie_word_embeddings)", decoder(own), decoder(other))
		}
	}
	x, y := a.folder, b.folder
	if x.ModelType != y.ModelType {
		return differ("config.json's model_type is %s and %s", x.ModelType, y.ModelType)
	}
	if err := a.sameModules(b, differ); err != nil {
		return err
	}
	if !reflect.DeepEqual(computed(a.config), computed(b.config)) {
		return differ("%s", configDiffers(x.Config, y.Config, computed(a.config), computed(b.config)))
	}
	if how, err := tokensDiffer(a, b); err != nil {
		return err
	} else if how != "" {
		return differ("%s", how)
	}
	for _, d := range []struct {
		what string
		is   bool
	}{
		{"prompts", !maps.Equal(x.Prompts, y.Prompts)},
		{fmt.Sprintf("default prompts (%q and %q)", x.DefaultPromptName, y.DefaultPromptName), b.declares() && x.DefaultPromptName != y.DefaultPromptName},
		{fmt.Sprintf("maximum lengths of a text (%d and %d tokens)", x.MaxSeqLength, y.MaxSeqLength), b.declares() && x.MaxSeqLength != y.MaxSeqLength},
		{fmt.Sprintf("similarities (%s and %s)", x.Similarity, y.Similarity), x.Similarity != "" && y.Similarity != "" && x.Similarity != y.Similarity},
	} {
		if d.is {
			note(fmt.Sprintf("%s and %s have different %s: the mixed model gets those of the first", a.name, b.name, d.what))
		}
	}
	if x.Reranker != nil && y.Reranker != nil && !reflect.DeepEqual(x.Reranker, y.Reranker) {
		note(fmt.Sprintf("%s and %s put different templates, instructions or prompts around pairs: the mixed model gets those of the first", a.name, b.name))
	}
	return nil
}

const nothing = "the first says nothing of how embeddings are made or pairs scored (it has no modules.json), and the second does: give that one first, whose files the mixed model gets"

// first tells whether the two could be mixed the other way round, for what their kinds say: see as.
func (a *source) first(b *source) bool {
	if a.declares() || !b.declares() {
		return false
	}
	return len(b.config.Scorer.Tokens) > 0 && a.config.Causal || !b.config.MLMHead.None() && strings.HasSuffix(a.folder.Architecture(), maskedLM)
}

func decoder(module string) string {
	if module == "" {
		return "the word embeddings"
	}
	return module + ".weight"
}

// sameModules compares pooling, normalization and Dense modules.
func (a *source) sameModules(b *source, differ func(string, ...any) error) error {
	x, y := a.folder, b.folder
	if a.reranker {
		return nil // configurations say it
	}
	says := func(f *hfmodel.Folder) bool { return f.Modules != nil || f.Pooling != nil || f.MultiVector != nil }
	switch {
	case !says(x) && says(y):
		return differ(nothing)
	case !slices.EqualFunc(a.config.Dense, b.config.Dense, func(d, e transformer.Dense) bool { e.Name = d.Name; return d == e }):
		return differ("their Dense modules differ: %s and %s", denses(x), denses(y))
	case !says(y):
		return nil // the first's, which the second has been made for or not: it doesn't tell
	case x.Pooling != nil && y.Pooling != nil && x.Pooling.Mode != y.Pooling.Mode:
		return differ("they pool otherwise: %s and %s", x.Pooling.Mode, y.Pooling.Mode)
	case x.Pooling != nil && y.Pooling != nil && x.Pooling.IncludePrompt != y.Pooling.IncludePrompt:
		return differ("one of them pools the tokens of a prompt too, the other does not (include_prompt of the pooling's config.json: %v and %v)", x.Pooling.IncludePrompt, y.Pooling.IncludePrompt)
	case x.Normalize != y.Normalize:
		return differ("one of them normalizes embeddings, the other does not (modules.json)")
	}
	return nil
}

// denses are a folder's Dense modules in words.
func denses(f *hfmodel.Folder) string {
	var list []string
	for _, d := range f.Dense {
		list = append(list, fmt.Sprintf("%s of %d features to %d, %s, %s", d.Path, d.In, d.Out, map[bool]string{true: "with bias", false: "without bias"}[d.Bias], d.Activation))
	}
	if list == nil {
		return "none"
	}
	return strings.Join(list, " and ")
}

// computed is what of a configuration decides what parameters mean. How much is dropped in training and how new weights begin do not, nor
// how long texts may be: learned positions have a shape. The folders of Dense modules may have other names.
func computed(c transformer.Config) transformer.Config {
	c.Dense = slices.Clone(c.Dense)
	for i := range c.Dense {
		c.Dense[i].Name = ""
	}
	c.HiddenDropout, c.AttentionDropout, c.Undropped, c.InitRange, c.MaxPositions, c.UsualLength = 0, 0, 0, 0, 0, 0
	return c
}

// aside are keys of config.json that say nothing of what is computed.
var aside = []string{"_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache", "id2label", "label2id", "initializer_range", "max_position_embeddings"}

// configDiffers names the keys of config.json by which two models differ; where none does, what follows from the folders.
func configDiffers(a, b []byte, x, y transformer.Config) string {
	var p, q map[string]json.RawMessage
	var list []string
	if json.Unmarshal(a, &p) == nil && json.Unmarshal(b, &q) == nil {
		all := maps.Clone(p)
		maps.Copy(all, q)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if !slices.Contains(aside, key) && !strings.Contains(key, "dropout") && !bytes.Equal(p[key], q[key]) {
				list = append(list, fmt.Sprintf("%s is %s and %s", key, brief(p[key]), brief(q[key])))
			}
		}
	}
	if len(list) > 0 {
		return "in config.json " + strings.Join(list, ", ")
	}
	u, v := reflect.ValueOf(x), reflect.ValueOf(y)
	for i := range u.NumField() {
		if !reflect.DeepEqual(u.Field(i).Interface(), v.Field(i).Interface()) {
			list = append(list, fmt.Sprintf("%s: %+v and %+v", u.Type().Field(i).Name, u.Field(i).Interface(), v.Field(i).Interface()))
		}
	}
	return strings.Join(list, ", ")
}

func brief(raw json.RawMessage) string {
	switch {
	case raw == nil:
		return "not there"
	case len(raw) > 40:
		return string(raw[:40]) + "..."
	}
	return string(raw)
}

// probes are texts in which tokenizers with the same vocabulary show that they differ: in case, accents, spaces, digits, scripts and characters that they clean away.
var probes = []string{
	"The Quick brown FOX: naïve café, Straße, ﬁne ①", "it's 123,456.78 dollars -- isn't it?\n\t  Two  spaces", "中文测试, 日本語のテスト, 한국어", "Привет мир, مرحبا, שלום 🙂", "func main() { return x_y + 0x1F }",
}

// tokensDiffer tells where two tokenizers give other ids; "": nowhere that shows.
func tokensDiffer(a, b *source) (string, error) {
	x, err := tokenize.Load(a.folder.TokenizerDir)
	if err != nil {
		return "", err
	}
	y, err := tokenize.Load(b.folder.TokenizerDir)
	if err != nil {
		return "", err
	}
	if x.Hash() == y.Hash() {
		return "", nil
	}
	if x.VocabSize() != y.VocabSize() {
		return fmt.Sprintf("their vocabularies have %d and %d tokens", x.VocabSize(), y.VocabSize()), nil
	}
	for id := range int32(x.VocabSize()) {
		if x.Token(id) != y.Token(id) {
			return fmt.Sprintf("their vocabularies differ: token %d is %q and %q", id, x.Token(id), y.Token(id)), nil
		}
	}
	for _, text := range probes {
		if p, q := x.Encode(text, 0), y.Encode(text, 0); !slices.Equal(p, q) {
			return fmt.Sprintf("their tokenizers differ: %q has the ids %v and %v", text, p, q), nil
		}
	}
	if !a.reranker {
		return "", nil
	}
	var ids, kinds [2][]int32
	for i, tok := range []*tokenize.Tokenizer{x, y} { // both in the first's template, of which a note says where they have different ones
		p, err := tok.NewPairs(tokenize.PairOptions{Template: a.spec.Folder.Template, Instruction: a.spec.Folder.Instruction})
		if err != nil {
			return "", err
		}
		if ids[i], kinds[i], _, err = p.Append(nil, nil, probes[0], probes[1]); err != nil {
			return "", err
		}
	}
	switch {
	case !slices.Equal(ids[0], ids[1]):
		return fmt.Sprintf("their tokenizers differ in pairs of texts: one has the ids %v and %v", ids[0], ids[1]), nil
	case !slices.Equal(kinds[0], kinds[1]):
		return fmt.Sprintf("their tokenizers differ in pairs of texts, whose tokens have the types %v and %v", kinds[0], kinds[1]), nil
	}
	return "", nil
}
