package imports

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// dataSettings name what trains.
var dataSettings = []string{"train_data", "train_dataset", "train_file", "dataset", "data_files"}

// part is a dataset that trains.
type part struct {
	name    string // what a mapping of datasets, or it itself, calls it
	files   []string
	columns []string // of texts, and behind them what else its loss takes
	texts   []string // those of texts
	prompts any
	put     string  // what data.train says of them
	loss    *recipe // its own; nil: the recipe's
	whole   bool    // its own is the recipe's
	alone   bool    // of FlagEmbedding: its rows have no negatives but their own
	heldOut bool    // its rows are not to train on
	labels  *int    // how long its label is, a list; 0: a number; nil: nothing tells
}

// of begins a remark on it.
func (p part) of() string {
	if p.name == "" {
		return ""
	}
	return p.name + ": "
}

// separate finds the datasets that train, and what each has for itself. Datasets in a mapping have names, by which losses, columns and prompts may
// be said, as sentence-transformers' trainer has them.
func (r *recipe) separate() {
	r.settings = maps.Clone(r.settings)
	named := false // by a mapping
	for _, key := range dataSettings {
		if v, ok := r.has(key); ok {
			parts, mapped := r.readParts(key, v)
			r.parts, named = append(r.parts, parts...), named || mapped
		}
	}
	seen := map[string]bool{}
	for _, p := range r.parts {
		named = named || p.name != ""
		if p.name != "" && seen[p.name] {
			r.fail("two datasets are called %s: what is said by name can be meant for one alone", p.name)
		}
		seen[p.name] = true
	}
	if len(r.parts) == 0 {
		r.parts = []part{{files: []string{"DATA"}}}
		if !named {
			r.open("data", "DATA")
			r.assume("no data is named: put parquet or JSONL files in place of DATA")
		} else {
			r.fail("the mapping of datasets is empty: want {NAME: FILES, ...}")
		}
	}
	if r.from == FlagEmbedding {
		return
	}
	if v, ok := r.has("columns"); ok {
		r.each("columns", v, func(v any) bool { _, all := v.([]any); return all }, func(p *part, v any) { p.columns = r.columns(p.of(), v) })
	}
	if v, ok := r.has("label_length"); ok {
		r.each("label_length", v, func(any) bool { return false }, func(p *part, v any) {
			if n, ok := asNumber(v); ok {
				length := int(n)
				p.labels = &length
			}
		})
	}
	if v, ok := r.has("prompts"); ok {
		m, mapped := v.(map[string]any)
		byName := false
		for k, inner := range m {
			_, deep := inner.(map[string]any)
			byName = byName || named && (deep || seen[k])
		}
		r.each("prompts", v, func(any) bool { return !mapped || !byName }, func(p *part, v any) { p.prompts = v })
	}
	r.routes()
	r.separateLosses()
}

// routes looks whether a Router's mapping of columns is what a recipe has anyway: each dataset's first column is a query, and others are documents.
func (r *recipe) routes() {
	v, ok := r.settings["router_mapping"].(map[string]any)
	if !ok {
		return
	}
	for _, p := range r.parts {
		of := v
		if own, ok := v[p.name].(map[string]any); ok {
			of = own
		}
		for i, c := range p.columns {
			if i == 0 && of[c] != "query" || i > 0 && of[c] != nil && of[c] != "document" {
				return
			}
		}
		if p.columns == nil {
			return
		}
	}
	r.used["router_mapping"] = true
}

// each gives all datasets what a setting says: the same, or to each what a mapping says by its name.
func (r *recipe) each(setting string, v any, forAll func(any) bool, give func(*part, any)) {
	m, mapped := v.(map[string]any)
	if !mapped || forAll(v) {
		for i := range r.parts {
			give(&r.parts[i], v)
		}
		return
	}
	var names []string
	for i, p := range r.parts {
		if p.name != "" {
			names = append(names, p.name)
		}
		if own, ok := m[p.name]; ok && p.name != "" {
			give(&r.parts[i], own)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		switch {
		case slices.Contains(names, name):
		case len(names) == 0:
			r.fail("%s: is a mapping, with %s: want datasets' names, which train_dataset: {NAME: FILES, ...} gives", setting, name)
		case setting == "prompts":
			r.without(setting, "%s: no dataset is called so, but %s", name, strings.Join(names, ", "))
		default:
			r.fail("%s: %s: no dataset is called so, but %s", setting, name, strings.Join(names, ", "))
		}
	}
}

// part reads a dataset: files, or a mapping with its path and what it has for itself.
func (r *recipe) part(key, name string, v any) part {
	p := part{name: name}
	m, mapped := v.(map[string]any)
	if !mapped {
		p.files = r.files(key, p.of(), v)
		return p
	}
	if own, ok := m["name"].(string); ok && name == "" {
		p.name = own
	}
	for _, option := range slices.Sorted(maps.Keys(m)) {
		switch v := m[option]; option {
		case "path":
			p.files = r.files(key, p.of(), v)
		case "columns", "loss", "prompts":
			r.fail("%s: %s%s: is said beside the datasets: %s: {%s: ...}", key, p.of(), option, option, cmp.Or(p.name, "NAME"))
		case "name":
			if p.name != v {
				r.without(key, "%sname: %s: path says which files are read", p.of(), show(v))
			}
		default:
			if !off(v) {
				r.without(key, "%s%s: %s: all rows of path's files are read, as they are", p.of(), option, show(v))
			}
		}
	}
	if m["path"] == nil {
		r.fail("%s: %swant files, or a mapping with their path, got %s", key, p.of(), show(v))
	}
	return p
}

// files reads a dataset's file or files.
func (r *recipe) files(key, of string, v any) (files []string) {
	all, list := v.([]any)
	if !list {
		all = []any{v}
	}
	for _, v := range all {
		file, ok := v.(string)
		if !ok || file == "" {
			r.fail("%s: %swant files, got %s", key, of, show(v))
			continue
		}
		files = append(files, file)
	}
	return files
}

const fewColumns = "columns: %swant a list of two names or more, in the order of the loss's inputs (single texts have a label or a teacher's embedding beside them), got %s"

// columns reads a dataset's columns; one alone is for source to judge, which knows the loss.
func (r *recipe) columns(of string, v any) (columns []string) {
	all, _ := v.([]any)
	for _, v := range all {
		columns = append(columns, fmt.Sprint(v))
	}
	if len(columns) == 0 || slices.Contains(all, nil) {
		r.fail(fewColumns, of, show(v))
	}
	return columns
}

// separateLosses finds the loss of all datasets, whose options are settings beside it, or each one's.
func (r *recipe) separateLosses() {
	switch m, mapped := r.settings["loss"].(map[string]any); {
	case !mapped:
		if inner, ok := r.settings["inner_loss"].(map[string]any); ok {
			r.merge("inner_loss", r.lossSettings("inner_loss", inner, "inner_loss"))
		}
	case m["name"] != nil:
		r.merge("loss", r.lossSettings("loss", m, "loss"))
	default:
		own := map[string]Settings{}
		r.each("loss", m, func(any) bool { return false }, func(p *part, v any) { own[p.name] = r.lossSettings("loss: "+p.name, v, "loss") })
		if len(r.errs) > 0 {
			return
		}
		same := true
		for _, p := range r.parts {
			if own[p.name] == nil {
				r.fail("loss: has none for the dataset %s", cmp.Or(p.name, strings.Join(p.files, ", ")))
			}
			same = same && reflect.DeepEqual(own[p.name], own[r.parts[0].name])
		}
		if same {
			r.merge("loss", own[r.parts[0].name])
			return
		}
		delete(r.settings, "loss")
		for i, p := range r.parts {
			r.parts[i].loss = &recipe{from: r.from, settings: own[p.name], devices: r.devices, keys: map[string]string{}, used: map[string]bool{}, asked: map[string]bool{}}
		}
		r.ofAll(own)
	}
}

// lossSettings reads a loss, its class's name or a mapping with name and options, into settings, with the name as that called key.
func (r *recipe) lossSettings(at string, v any, key string) Settings {
	if name, ok := v.(string); ok {
		return Settings{key: name}
	}
	m, _ := v.(map[string]any)
	name, ok := m["name"].(string)
	if !ok {
		r.fail("%s: want the name of its class, or {name: ..., scale: ..., ...} with its options, got %s", at, show(v))
		return nil
	}
	s := Settings{key: name}
	if _, none := noCounterpart[lossClass(name)]; none { // another is chosen, whose options are its own
		return s
	}
	for _, option := range slices.Sorted(maps.Keys(m)) {
		more, inner := Settings{option: m[option]}, option == "inner_loss" || option == "loss" // as MatryoshkaLoss calls it
		switch {
		case option == "name":
			continue
		case inner && key == "inner_loss":
			r.fail("%s: %s has a loss in it: want one that has none", at, name)
			continue
		case inner:
			more = r.lossSettings(at+": "+option, m[option], "inner_loss")
		}
		for _, k := range slices.Sorted(maps.Keys(more)) {
			v := more[k]
			if was, ok := s[k]; ok && !reflect.DeepEqual(was, v) {
				r.fail("%s: %s is %s and, in it, %s: leave one of them", at, k, show(was), show(v))
			}
			s[k] = v
		}
	}
	return s
}

// merge makes settings of a mapping's.
func (r *recipe) merge(key string, more Settings) {
	delete(r.settings, key)
	for _, k := range slices.Sorted(maps.Keys(more)) {
		if was, ok := r.settings[k]; ok && !reflect.DeepEqual(was, more[k]) {
			r.fail("%s is %s, and in %s %s: leave one of them", k, show(was), key, show(more[k]))
		}
		r.settings[k] = more[k]
	}
}

// ofAll makes settings of what datasets' losses say that is one for all here. How much goes through the model at once changes no result: it is the least
// that one says, where others say another number or, with null, nothing.
func (r *recipe) ofAll(own map[string]Settings) {
	for _, option := range []string{"mini_batch_size", "mini_batch_num_tokens", "gather_across_devices"} {
		var said []string
		values := map[string]any{}
		for _, p := range r.parts {
			if v, ok := own[p.name][option]; ok {
				said = append(said, fmt.Sprintf("%s for %s", show(v), p.name))
				values[show(v)] = v
				delete(own[p.name], option)
			}
		}
		_, beside := r.settings[option]
		if option != "gather_across_devices" && len(values) > 1 && !beside {
			least := math.Inf(1)
			for _, v := range values {
				if n, ok := asNumber(v); ok && n > 0 {
					least = min(least, n)
				}
			}
			if !math.IsInf(least, 1) {
				r.settings[option] = least
				r.assume("%s: is %s, and one for all datasets here: %.0f; it changes time and memory alone", option, strings.Join(said, ", "), least)
				continue
			}
		}
		switch {
		case len(values) > 1 || len(values) > 0 && beside && values[show(r.settings[option])] == nil:
			if beside {
				said = append(said, show(r.settings[option])+" beside them")
			}
			r.fail("%s: is %s, and is one for all datasets here: give it once, beside loss", option, strings.Join(said, ", "))
		case len(values) == 1:
			for _, v := range values {
				r.settings[option] = v
			}
		}
	}
}

// data: FlagEmbedding's files have query, pos and neg; sentence-transformers' columns are in the order of the loss's inputs.
func (r *recipe) data() {
	if r.from == FlagEmbedding {
		r.group = 8 // its default
		if n, ok := r.whole("train_group_size"); ok {
			r.group = n
		}
		if r.group < 2 {
			switch kd, _ := r.yes("knowledge_distillation"); {
			case r.reranks():
				r.without("train_group_size", "%d: of a positive alone its loss is 0, and nothing is learnt. Here that is an error; 2 takes a negative beside it", r.group)
			case kd:
				r.without("knowledge_distillation", "with train_group_size %d a teacher has nothing to compare with the positive", r.group)
			}
		}
	}
	r.ownLosses()
	entries := ""
	for i := range r.parts {
		entries += "\n    - " + r.source(&r.parts[i])
		if name := strings.Join(strings.Fields(r.parts[i].name), " "); name != "" {
			entries += " # " + name
		}
	}
	r.keys["data.train"] = entries

	if s, ok := r.word("multi_dataset_batch_sampler"); ok {
		s = strings.ToLower(s[strings.LastIndexByte(s, '.')+1:])
		r.set("data.mixing", plain(s), "proportional")
	}
}

// ownLosses reads the losses of datasets that have their own. One that has a guide is the recipe's: it reads all datasets.
func (r *recipe) ownLosses() {
	var guided *part
	for i := range r.parts {
		p := &r.parts[i]
		if p.loss == nil {
			continue
		}
		r.apart = true
		own := p.loss
		own.loss()
		own.remaining()
		for _, e := range own.errs {
			r.fail("%s%s", p.of(), e)
		}
		for _, s := range own.result.Assumed {
			r.assume("%s%s", p.of(), s)
		}
		for _, s := range own.result.Without {
			r.result.Without = append(r.result.Without, p.of()+s)
		}
		for _, s := range own.result.Open {
			r.result.Open = once(r.result.Open, s)
		}
		for _, s := range own.result.Unknown {
			r.result.Unknown = append(r.result.Unknown, p.of()+s)
		}
		for _, option := range slices.Sorted(maps.Keys(own.asked)) {
			if _, ok := r.settings[option]; ok && !r.used[option] { // by the trainer's rules
				r.without(option, "is said beside losses of datasets: it belongs into one of them, loss: {%s: {name: ..., %s: ...}}", r.parts[0].name, option)
			}
		}
		if own.keys["loss.name"] != "gist" {
			continue
		}
		if guided != nil && !maps.Equal(guided.loss.keys, own.keys) {
			r.fail("loss: %s and %s have guides with different options: the guide reads all datasets, and is one", guided.name, p.name)
		}
		guided = p
	}
	if guided == nil {
		return
	}
	maps.Copy(r.keys, guided.loss.keys)
	for i := range r.parts {
		if r.parts[i].loss.keys["loss.name"] == "gist" {
			r.parts[i].whole = true
		}
	}
}

// source is an entry of data.train: files, columns of texts, and what more there is to say of them.
func (r *recipe) source(p *part) string {
	loss := r
	if p.loss != nil {
		loss = p.loss
	}
	var files []string
	for _, file := range p.files {
		for _, f := range r.file(file, p.heldOut) {
			files = append(files, quote(f))
		}
	}
	if p.texts = p.columns; r.from == FlagEmbedding {
		if p.texts = []string{"query", "pos", "neg"}; r.group < 2 {
			p.texts = p.texts[:2]
		}
	}
	of := loss.peer()
	inputs := of.inputs
	if _, given := loss.settings["loss"]; len(p.columns) == 1 && (of.name != "" || !given) {
		r.fail(fewColumns, p.of(), show(p.columns))
		return ""
	}
	if r.from == FlagEmbedding {
		inputs = ""
	} else if len(p.texts) == 0 {
		p.texts = strings.Fields(cmp.Or(inputs, "anchor positive"))
		called := strings.Join(p.texts, ", ")
		say := "[" + called + "]"
		if len(r.parts) > 1 && p.name != "" {
			say = "{" + p.name + ": " + say + "}"
		}
		r.assume("%sthe columns are called %s (a setting called columns would say: columns: %s)", p.of(), called, say)
	}
	if r.from != FlagEmbedding && len(p.columns) > 0 {
		r.labelLast(p, of, loss)
	}
	if r.pairs {
		r.pairColumns(p, of)
	}
	if n := len(p.texts); of.name == "mega_batch_margin" && n > 2 {
		r.fail("columns: %s%v are %d: MegaBatchMarginLoss takes two, there as here, and finds its negatives among the positives of other rows; CachedMultipleNegativesRankingLoss takes more", p.of(), names(p.texts), n)
	}
	switch {
	case of.name == "margin_mse":
		inputs = r.margins(p, inputs)
	case of.name == "angle" && !slices.ContainsFunc(p.texts, func(c string) bool { return slices.Contains(labelColumns, c) }):
		inputs = "" // which takes negatives as well, and finds a label by its name
	}
	more := ""
	if last := inputs[strings.LastIndexByte(inputs, ' ')+1:]; last != "" { // of what kind the last column is, where it is no text
		n := len(p.texts) - 1
		more, p.texts = fmt.Sprintf(", %s: %s", last, plain(p.texts[n])), p.texts[:n]
	}
	if of.lists && len(p.texts) < 2 {
		r.fail("columns: %swant the query, a column of lists of documents and one of their labels, got %s", p.of(), show(p.columns))
		return ""
	}
	text := "{path: "
	if len(files) == 1 {
		text += files[0]
	} else {
		text += flow(files)
	}
	text += ", query: " + plain(p.texts[0])
	if of.lists {
		text += ", documents: " + plain(p.texts[1])
	} else if len(p.texts) > 1 {
		text += ", positive: " + plain(p.texts[1])
	} else if len(p.columns) == 1 { // of a loss to be chosen, which noCounterpart has learn so
		text += ", positive: " + plain(p.texts[0])
	}
	if len(p.texts) > 2 {
		text += ", negatives: " + names(p.texts[2:])
	}
	if r.from == FlagEmbedding {
		if r.group > 1 {
			text += fmt.Sprintf(", negatives_per_query: %d", r.group-1)
		}
		if r.teaches() {
			if same, _ := r.yes("same_dataset_within_batch"); same {
				r.assume("all files have pos_scores and neg_scores; there one without them learns without a teacher, from the contrastive loss alone")
			}
			text += ", scores: [pos_scores, neg_scores]"
		}
	}
	p.put = r.prompts(*p)
	text += more + ", prompts: " + p.put
	if p.loss != nil && !p.whole {
		text += ", loss: " + p.loss.ownLoss()
	}
	if p.alone {
		own := recipe{keys: r.flagOptions()}
		own.keys["loss.name"] = "cross_entropy"
		text += ", loss: " + own.ownLoss()
	}
	return text + "}"
}

// margins says what margin_mse's last column is: the difference of two documents' scores, or a list, with a score of each or with the differences of the
// first to the others.
func (r *recipe) margins(p *part, usual string) string {
	column, documents := p.texts[len(p.texts)-1], len(p.texts)-2
	switch {
	case p.labels != nil && *p.labels == 0:
		return "label"
	case p.labels != nil || documents > 2: // there, too, one number for all of several negatives is an error
		return "scores"
	case r.pairs:
		r.assume("%s%s has a list with a score of each document, the positive's first; if it is the difference of two, label: names it in the place of scores:", p.of(), column)
	}
	return usual
}

// labelColumns are names that make a column the label, wherever it stands; of several the first here is it (data_collator.py, DEFAULT_LABEL_COLUMNS).
var labelColumns = []string{"label", "labels", "score", "scores"}

// labelLast puts the label's column behind those of texts. A loss that takes none leaves it out.
func (r *recipe) labelLast(p *part, of peer, loss *recipe) {
	for _, name := range labelColumns {
		i := slices.Index(p.texts, name)
		if i < 0 {
			continue
		}
		_, said := loss.settings["loss"]
		switch others := slices.Delete(slices.Clone(p.texts), i, i+1); {
		case of.inputs != "":
			p.texts = append(others, name)
		case len(others) > 1 && (of.name != "" || !said):
			p.texts = others
			r.assume("%s%s is by its name the label, of which the loss reads nothing, and no text", p.of(), name)
		}
		return
	}
}

// ownLoss is the loss as a dataset's own.
func (r *recipe) ownLoss() string {
	options := []string{"name: " + cmp.Or(r.keys["loss.name"], "mnrl")}
	for _, key := range slices.Sorted(maps.Keys(r.keys)) {
		if key != "loss.name" && strings.HasPrefix(key, "loss.") {
			options = append(options, strings.TrimPrefix(key, "loss.")+": "+r.keys[key])
		}
	}
	return "{" + strings.Join(options, ", ") + "}"
}

// prompts are those of data.train: none where the settings have none, whatever the model has.
func (r *recipe) prompts(p part) string {
	var prompts []string
	add := func(role, prompt string) {
		if prompt != "" {
			prompts = append(prompts, role+": "+quote(prompt))
		}
	}
	task := "retrieval"
	if r.reranks() {
		task = "rerank"
	}
	fields := map[string]string{} // of rows, which FlagEmbedding takes in place of an instruction
	if r.reranks() {
		fields = map[string]string{"query": "query_prompt", "document": "passage_prompt"}
		if r.decoder() {
			r.assume("rows' own prompt, the question that is put to the model, is not read here: all rows have that of model.template")
		}
	} else if r.from == FlagEmbedding {
		fields["query"] = "prompt"
	}
	for _, s := range [][3]string{{"query_instruction_for_" + task, "query_instruction_format", "query"}, {"passage_instruction_for_" + task, "passage_instruction_format", "document"}} {
		instruction, ok := r.word(s[0])
		format, formatted := r.word(s[1])
		if !formatted {
			format = "{}{}"
		}
		if field := fields[s[2]]; ok && field != "" { // of an empty one too
			r.assume("rows' own %s, which stands in place of %s there, is not read here: all rows of a dataset have its prompts.%s. %s", field, s[0], s[2], r.rowsPrompt(field, format))
		}
		front := ""
		if r.reranks() && r.decoder() {
			front = map[string]string{"query": "A: ", "document": "B: "}[s[2]] // of model.template
		}
		if same, _ := r.yes("same_dataset_within_batch"); !ok && same && s[2] == "query" && !r.reranks() {
			r.assume("queries have nothing in front; there, with same_dataset_within_batch and without %s, each has the word None, unless rows have a prompt", s[0])
		}
		if !ok || instruction == "" {
			if front != "" {
				r.assume("a %s has %q in front, of model.template: so it is when FlagEmbedding scores; while it trains only %s puts something there", s[2], front, s[0])
			}
			continue
		}
		before, after, found := strings.Cut(strings.ReplaceAll(format, `\n`, "\n"), "{}")
		between, rest, found2 := strings.Cut(after, "{}")
		if !found || !found2 || rest != "" {
			r.fail("%s: %q does not put the text at its end, which is the one place where prompts go here", s[1], format)
		}
		switch prompt := before + instruction + between; front {
		case "":
			add(s[2], prompt)
		case prompt:
		default:
			r.without(s[0], "%q; model.template: bge puts %q there", prompt, front)
		}
	}
	switch v := p.prompts.(type) {
	case nil:
	case string:
		add("query", v)
		if !r.pairs { // of which the first text alone has it
			add("document", v)
		}
	case map[string]any:
		if r.pairs {
			r.fail("prompts: %sare one text of all datasets, or of each by its name: a CrossEncoder has none of columns", p.of())
			break
		}
		query, positive, negative := r.byColumn(v, p.texts, len(p.columns) > 0)
		add("query", query)
		if positive == negative {
			add("document", positive)
		} else {
			add("positive", positive)
			add("negative", negative)
		}
	default:
		r.wrong("prompts", "a text, or a mapping of columns, or of datasets, to texts", v)
	}
	return "{" + strings.Join(prompts, ", ") + "}"
}

// rowsPrompt says how rows' own prompts in a column are read after all.
func (r *recipe) rowsPrompt(field, format string) string {
	if !strings.HasSuffix(field, "query_prompt") && field != "prompt" {
		return "Documents are lists, before whose texts no column goes: put them into the texts"
	}
	template := strings.Replace(strings.ReplaceAll(format, `\n`, "\n"), "{}", "{"+field+"}", 1)
	return fmt.Sprintf("Where rows have one, query: %s reads it, without a query in prompts ({} is none)", quote(strings.Replace(template, "{}", "{query}", 1)))
}

// byColumn finds each role's prompt in a mapping of columns to prompts. A column that is not in it has none; one that it names may be another dataset's.
// Where nobody has said what columns are called, a role's name will do for them.
func (r *recipe) byColumn(prompts map[string]any, columns []string, named bool) (query, positive, negative string) {
	found := map[string]bool{}
	find := func(columns ...string) string {
		for _, c := range columns {
			if s, ok := prompts[c].(string); ok {
				found[c] = true
				return s
			}
		}
		return ""
	}
	asQuery, document := []string{"query"}, []string{"document", "passage", "corpus"}
	if named {
		asQuery, document = nil, nil
	}
	for _, c := range slices.Sorted(maps.Keys(prompts)) {
		if _, text := prompts[c].(string); !text && prompts[c] != nil && slices.Contains(columns, c) {
			r.wrong("prompts: "+c, "a text", prompts[c])
		}
	}
	query = find(slices.Concat(columns[:1], asQuery)...)
	positive = find(slices.Concat(columns[1:min(2, len(columns))], document)...)
	negative = positive
	for i, c := range columns[min(2, len(columns)):] {
		switch s := find(append([]string{c}, document...)...); {
		case i == 0:
			negative = s
		case s != negative:
			r.without("prompts", "%s has %q and %s %q: negatives have one prompt here, and all have that of %s", columns[2], negative, c, s, columns[2])
		}
	}
	var others []string
	for c, prompt := range prompts {
		if !found[c] && prompt != nil && !slices.ContainsFunc(r.parts, func(p part) bool { return slices.Contains(p.columns, c) }) {
			others = append(others, c)
		}
	}
	if slices.Sort(others); len(others) > 0 {
		r.without("prompts", "%s: no columns are called so, but %s; a dataset's own prompts are data.train[].prompts", strings.Join(others, ", "), strings.Join(columns, ", "))
	}
	return query, positive, negative
}
