package hfmodel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/internal/plainfile"
	"contraflow/io/safetensors"
	"contraflow/tokenize"
)

// Reranker is what a folder says of scoring pairs of texts: the class of its model (config.json's architectures), the module
// LogitScore of sentence-transformers' CrossEncoder, and reranker.json, a file of our own, for what neither has a place for. A
// CrossEncoder reads templates as chat templates, which Save writes besides; they are programs, and not read here.
type Reranker struct {
	Template    tokenize.Template `json:"template,omitempty"`
	Instruction string            `json:"instruction,omitempty"`
	Truncation  string            `json:"truncation,omitempty"` // longest_first or only_second; "": the first. Of the first module's processing_kwargs too

	QueryPrompt    string `json:"query_prompt,omitempty"` // put before each
	DocumentPrompt string `json:"document_prompt,omitempty"`

	// The tokens of a language model whose logits are the score: that of True, less that of False. Ids are LogitScore's.
	True  string `json:"true_token,omitempty"`
	False string `json:"false_token,omitempty"`

	TrueID, FalseID *int32 `json:"-"`

	Chat bool `json:"-"` // CrossEncoder puts pairs into the tokenizer's chat template
}

const (
	flagEmbedding = "[FlagEmbedding](https://github.com/FlagOpen/FlagEmbedding)" // in a card

	rerankerFile = "reranker.json"
	onlySecond   = "only_second" // a truncation, which transformers has by this name
)

func (f *Folder) reranks() *Reranker {
	if f.Reranker == nil {
		f.Reranker = &Reranker{}
	}
	return f.Reranker
}

func (f *Folder) readLogitScore(file string) error {
	o, err := readObject(file)
	if err != nil {
		return err
	}
	r := f.reranks()
	if err := o.getAll(map[string]any{"true_token_id": &r.TrueID, "false_token_id": &r.FalseID}); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if r.TrueID == nil {
		return fmt.Errorf("%s: no true_token_id", file)
	}
	return nil
}

// readReranker reads reranker.json, if there is one, and looks at the model's class.
func (f *Folder) readReranker() error {
	if strings.HasSuffix(f.Architecture(), "ForSequenceClassification") && f.Pooling == nil || f.LayerWise() { // an embedder may begin as a classifier
		f.reranks()
	}
	file := filepath.Join(f.Dir, rerankerFile)
	data, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		if r := f.Reranker; r != nil && !r.Chat { // to which it would be a message of the system
			r.QueryPrompt = f.Prompts[f.DefaultPromptName] // which CrossEncoder puts before the first text of each pair
		}
		return nil
	}
	if err != nil {
		return err
	}
	r := f.reranks()
	if err := unmarshal(data, r); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if r.Template != nil {
		if err := r.Template.Check(); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// Architecture is the class that config.json names first: "BertForSequenceClassification"; "" if it names none.
func (f *Folder) Architecture() string {
	var c struct{ Architectures []string }
	if json.Unmarshal(f.Config, &c) != nil || len(c.Architectures) == 0 {
		return ""
	}
	return c.Architectures[0]
}

// classes are transformers' classes of models for sequence classification, without that ending, by model_type.
var classes = map[string]string{
	"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "mpnet": "MPNet", "deberta-v2": "DebertaV2", "distilbert": "DistilBert", "electra": "Electra",
	"ernie": "Ernie", "data2vec-text": "Data2VecText", "jina_embeddings_v3": "JinaEmbeddingsV3", "gemma": "Gemma",
	"modernbert": "ModernBert", "gte": "Gte", "new": "New", "llama": "Llama", "mistral": "Mistral", "ministral": "Ministral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2",
	"gemma3_text": "Gemma3Text",
}

// coded are those of classes that transformers does not have, but a repository's code: the configuration's class, and what comes before the others.
// It is from there where config.json's auto_map names none.
var coded = map[string][2]string{
	"New":      {"Alibaba-NLP/new-impl--configuration.NewConfig", "Alibaba-NLP/new-impl--modeling."},
	"JinaBert": {"jinaai/jina-bert-implementation--configuration_bert.JinaBertConfig", "jinaai/jina-bert-implementation--modeling_bert."},
}

// classOf is what the classes of a config.json's models begin with: "Bert" of "BertForMaskedLM"; "" if there is none for sequence classification.
func classOf(config *object) (modelType, class string, err error) {
	var positions any
	if _, err := config.get("model_type", &modelType); err != nil {
		return "", "", fmt.Errorf("config.json: %w", err)
	}
	if config.get("position_embedding_type", &positions); modelType == "bert" && positions == "alibi" { // what it is else, is its family's to say
		return modelType, "JinaBert", nil
	}
	return modelType, classes[modelType], nil
}

// setClass has config.json name a model's class. Of one that transformers does not have auto_map names the code, and auto is the class that loads it.
func setClass(config *object, class, head, auto string) (inCode bool) {
	config.set("architectures", []string{class + head})
	code, ok := coded[class]
	if !ok {
		return false
	}
	var named map[string]any
	config.get("auto_map", &named) // what is none leads nowhere
	code[1] += class + head
	for key, v := range named {
		of, _ := v.(string)
		switch end := strings.LastIndex(of, "."); {
		case !strings.Contains(of, "--"): // a file that does not come along
		case key == "AutoConfig":
			code[0] = of
		case key == auto, key == "AutoModel" && named[auto] == nil:
			code[1] = of[:end+1] + class + head
		}
	}
	config.set("auto_map", map[string]string{"AutoConfig": code[0], auto: code[1]})
	return true
}

// causalClasses are transformers' classes of language models, by the model_type of decoders. Those have none for masked language modelling.
var causalClasses = map[string]string{
	"gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
	"ministral": "MinistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}

// CheckReranker finds a model that SaveReranker can't write: there is no class for a reranker of its model_type.
func (f *Folder) CheckReranker() error {
	if f.LayerWise() {
		return nil
	}
	config, err := parseObject(f.Config)
	if err != nil {
		return fmt.Errorf("config.json: %w", err)
	}
	_, err = rerankerClass(config)
	return err
}

func rerankerClass(config *object) (string, error) {
	modelType, class, err := classOf(config)
	if err == nil && class == "" {
		err = fmt.Errorf("a reranker of model_type %q is not supported", modelType)
	}
	return class, err
}

// RerankerSpec is what SaveReranker writes.
type RerankerSpec struct {
	Config       []byte // config.json; its architectures and labels are made to fit
	Tensors      []safetensors.Tensor
	Prefix       string   // of the base model within the larger one ("bert.")
	Head         []string // the modules of the head: their tensors have no prefix, but for a pooler's in families other than DeBERTa
	Reranker     Reranker // with TrueID for a language model's tokens
	Pad          *int32   // config.json's pad_token_id; nil: as it is
	Layers       int      // of a layer-wise reranker
	MaxSeqLength int
	Base         *Folder
	Tokenizer    func(dir string) error
	Card         Card
}

// SaveReranker writes a folder that transformers and sentence-transformers' CrossEncoder load, and Open reads, as [Save] does. A layer-wise
// reranker's is one that FlagEmbedding loads.
func SaveReranker(dir string, s RerankerSpec) error {
	if err := Replaceable(dir); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	list := s.files
	if s.layerWise() {
		list = s.layerWiseFiles
	}
	files, err := list(dir)
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	var tensors []safetensors.Tensor
	for _, t := range s.Tensors {
		if !slices.ContainsFunc(s.Head, func(h string) bool { return strings.HasPrefix(t.Name, h+".") }) || strings.HasPrefix(t.Name, "pooler.") && s.Prefix != "deberta." {
			t.Name = s.Prefix + t.Name
		}
		tensors = append(tensors, t)
	}
	return writeModel(dir, s.Tokenizer, files, map[string][]safetensors.Tensor{weightsFile: tensors}, nil)
}

func (s RerankerSpec) files(dir string) (map[string][]byte, error) {
	config, err := parseObject(s.Config)
	if err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	class, err := rerankerClass(config)
	if err != nil {
		return nil, err
	}
	tokens := s.Reranker.TrueID != nil
	task, out, output := "sequence-classification", "scores", "logits"
	if tokens {
		task, out = "text-generation", "causal_logits"
		var modelType string
		config.get("model_type", &modelType) // rerankerClass has looked for its error
		causal, ok := causalClasses[modelType]
		if !ok {
			return nil, fmt.Errorf("a reranker of model_type %q by the logits of tokens is not supported: it is no language model", modelType)
		}
		config.set("architectures", []string{causal})
		config.remove("auto_map")
	} else {
		if !setClass(config, class, "ForSequenceClassification", "AutoModelForSequenceClassification") {
			config.remove("auto_map")
		}
		config.set("id2label", map[string]string{"0": "LABEL_0"})
		config.set("label2id", map[string]int{"LABEL_0": 0})
		config.remove("num_labels")
		if s.Pad != nil {
			config.set("pad_token_id", s.Pad)
		}
	}
	spec := Spec{Config: config.bytes(), Tensors: s.Tensors}
	modules := []module{{0, "0", "", "sentence_transformers.base.modules.transformer.Transformer"}}
	files := map[string][]byte{"config.json": spec.configBytes(config)}
	if tokens {
		modules = append(modules, module{1, "1", "1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"})
		o := newObject()
		o.set("true_token_id", s.Reranker.TrueID)
		o.set("false_token_id", s.Reranker.FalseID)
		o.set("module_input_name", "causal_logits")
		files["1_LogitScore/config.json"] = o.bytes()
	}
	modality := map[string]any{"text": map[string]string{"method": "forward", "method_output_name": output}}
	if s.Reranker.Template != nil {
		modality["message"] = map[string]string{"method": "forward", "method_output_name": output, "format": "flat"}
		files["chat_template.jinja"] = []byte(chatTemplate(s.Reranker))
	}
	o := newObject()
	o.set("transformer_task", task)
	o.set("modality_config", modality)
	o.set("module_output_name", out)
	o.set("max_seq_length", s.MaxSeqLength)
	if s.Reranker.Truncation == onlySecond && s.Reranker.Template == nil {
		o.set("processing_kwargs", map[string]any{"text": map[string]string{"truncation": onlySecond}})
	}
	files["sentence_bert_config.json"] = o.bytes()

	o = newObject()
	if s.Base != nil && s.Base.modelJSON != nil {
		o = s.Base.modelJSON.clone()
		for _, key := range []string{"similarity_fn_name", "truncate_dim"} {
			o.remove(key)
		}
	}
	o.set("model_type", "CrossEncoder")
	activation, err := activationFn(o, config)
	if err != nil {
		return nil, err
	}
	o.set("activation_fn", activation)
	o.set("prompts", map[string]string{})
	o.set("default_prompt_name", nil)
	if s.promptsQueries() {
		o.set("prompts", map[string]string{"query": s.Reranker.QueryPrompt})
		o.set("default_prompt_name", "query")
	}
	files["config_sentence_transformers.json"] = o.bytes()
	if err := s.rerankerFiles(dir, files); err != nil {
		return nil, err
	}
	files["modules.json"], err = moduleFile(modules)
	return files, err
}

// activationFn is the function that CrossEncoder applies to scores: what the folder says, in the places where one of its versions has saved it, or a sigmoid.
func activationFn(model, config *object) (string, error) {
	var now, first string
	var then struct {
		Activation string `json:"activation_fn"`
	}
	if err := model.getAll(map[string]any{"activation_fn": &now}); err != nil {
		return "", fmt.Errorf("%s: %w", modelFile, err)
	}
	if err := config.getAll(map[string]any{"sentence_transformers": &then, "sbert_ce_default_activation_function": &first}); err != nil {
		return "", fmt.Errorf("config.json: %w", err)
	}
	return cmp.Or(now, then.Activation, first, "torch.nn.modules.activation.Sigmoid"), nil
}

// promptsQueries tells whether CrossEncoder's default prompt, which it puts before the first text of each pair and no other, is the reranker's. With a
// template prompts are a part of that.
func (s RerankerSpec) promptsQueries() bool {
	r := s.Reranker
	return r.QueryPrompt != "" && r.DocumentPrompt == "" && r.Template == nil
}

// chatTemplate is a template as CrossEncoder wants it: the pair is two messages, of the roles query and document.
func chatTemplate(r Reranker) string {
	var b strings.Builder
	quote := func(s string) string {
		data, _ := json.Marshal(s) // a string can't fail
		return "{{ " + string(data) + " }}"
	}
	prompt := func(s string) string {
		if s == "" {
			return ""
		}
		return quote(s)
	}
	for _, s := range r.Template {
		rest := strings.ReplaceAll(s.Text, "{instruction}", r.Instruction)
		for rest != "" {
			at, key, code := len(rest), "", ""
			for k, c := range map[string]string{
				"{query}":    prompt(r.QueryPrompt) + `{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}`,
				"{document}": prompt(r.DocumentPrompt) + `{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}`,
				"{bos}":      `{{ bos_token or "" }}`,
			} {
				if i := strings.Index(rest, k); i >= 0 && i < at {
					at, key, code = i, k, c
				}
			}
			if at > 0 {
				b.WriteString(quote(rest[:at]))
			}
			b.WriteString(code)
			rest = rest[at+len(key):]
		}
	}
	return b.String()
}

// flagLLM tells that pairs are read as FlagEmbedding's FlagLLMReranker reads them, which CrossEncoder's chat templates can't say: tokens are made of each
// text of a template by itself.
func (s RerankerSpec) flagLLM() bool {
	r := s.Reranker
	return r.TrueID != nil && r.FalseID == nil && slices.Equal(r.Template, tokenize.Templates["bge"].Template)
}

func (s RerankerSpec) card(name string) []byte {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	library, tags, peer := "sentence-transformers", "- sentence-transformers\n- cross-encoder", "[sentence-transformers](https://www.sbert.net)"
	if s.layerWise() {
		library, tags, peer = "transformers", "- layer-wise", flagEmbedding
	} else if s.flagLLM() {
		peer = flagEmbedding + " and " + peer
	}
	line("---\nlibrary_name: %s\npipeline_tag: text-ranking\ntags:\n%s\n- reranker\n- contraflow", library, tags)
	if id, ok := hubID(s.Card.BaseModel); ok {
		line("base_model: %s", yamlString(id))
	}
	s.Card.modelIndex(line, "text-ranking", name)
	line("---\n")
	line("# %s\n", oneLine(name))
	line("This reranker scores pairs of a query and a document. It was trained with contraflow and loads in %s.", peer)
	if s.Card.Summary != "" {
		line("\n%s", strings.TrimSpace(s.Card.Summary))
	}
	line("\n## The model\n")
	if s.Card.BaseModel != "" {
		line("- Trained from: %s", Code(s.Card.BaseModel))
	}
	line("- Maximum length: %d tokens", s.MaxSeqLength)
	for _, p := range [][2]string{{"query", s.Reranker.QueryPrompt}, {"document", s.Reranker.DocumentPrompt}} {
		if p[1] != "" {
			line("- Put before each %s: %s", p[0], Code(p[1]))
		}
	}
	query, document := "how are gradients accumulated?", "a first text"
	if !s.promptsQueries() && (s.Reranker.Template == nil || s.flagLLM()) {
		query, document = s.Reranker.QueryPrompt+query, s.Reranker.DocumentPrompt+document
	}
	if s.layerWise() {
		line("\n## Usage\n\n```python\nfrom FlagEmbedding import LayerWiseFlagLLMReranker\n\nmodel = LayerWiseFlagLLMReranker(%s, use_bf16=True)", yamlString(name))
		line("print(model.compute_score([(\"how are gradients accumulated?\", \"a first text\")], cutoff_layers=[%d]))\n```", s.Layers)
	} else if s.flagLLM() {
		prompt := ""
		if i := s.Reranker.Instruction; i != tokenize.Templates["bge"].Instruction {
			prompt = ", prompt=" + yamlString(i)
		}
		line("\n## Usage\n\n```python\nfrom FlagEmbedding import FlagLLMReranker\n\nmodel = FlagLLMReranker(%s, use_bf16=True%s)", yamlString(name), prompt)
		line("print(model.compute_score([(%s, %s)]))\n```", yamlString(query), yamlString(document))
		line("\nsentence-transformers' CrossEncoder loads it too, but makes other tokens where its tokenizer joins the ends of what surrounds a text, and so other scores.")
	} else {
		line("\n## Usage\n\n```python\nfrom sentence_transformers import CrossEncoder\n\nmodel = CrossEncoder(%s)", yamlString(name))
		line("print(model.predict([(%s, %s)]))\n```", yamlString(query), yamlString(document))
	}
	line("\nor without Python, with contraflow's binary and this folder:\n\n```sh\ncontraflow rerank --model . --input pairs.parquet --output scores.parquet\n```")
	s.Card.rest(line)
	return []byte(b.String())
}
