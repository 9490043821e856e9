package recipe

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/scoring"
)

// task is something that a run's model is measured on. Its documents are ranked, by their embeddings or, what BM25 has found, by a reranker; or it has pairs of
// texts, whose scores are compared with what is known of them. Eval.tasks says what the recipe names, and openTask reads it.
type task struct {
	key     string   // eval.retrieval, or of several eval.retrieval[1]
	name    string   // tells it from others; "": it is the only one
	nano    string   // of NanoBEIR: what it is called there
	of      string   // of NanoBEIR: the name of those that count as one, by their mean; "": it counts alone
	from    string   // its files, for the model card
	files   []string // what it is read from
	prompts *Prompts // of this task alone

	load   func(context.Context) (*dataset.Retrieval, error) // documents to rank; nil: kind and source say which pairs it has
	rerank *Rerank                                           // which of them a reranker ranks; nil: an embedder ranks all
	mined  bool                                              // they are the queries, among which paraphrases are to be found
	kind   *scoring.Kind
	source scoring.Source
	cut    int // dimensions of the embeddings that are compared; 0: all

	// Of a task that is open.
	data      *dataset.Retrieval
	retrieval *embedder.Task // of data
	first     evaluate.Run   // what is reranked; nil: all documents are ranked by their embeddings
	scored    *scoring.Task
}

// at is where the recipe names it, and of NanoBEIR's which it is.
func (t *task) at() string {
	if t.of != "" {
		return t.key + ", " + t.name
	}
	return t.key
}

// defaultTop is how many of BM25's documents are reranked.
const defaultTop = 100

// each are the dimensions of the tasks that some make.
func each(cuts Cuts) []int {
	if len(cuts) == 0 {
		return []int{0}
	}
	return cuts
}

// cutTo has the task compare so many dimensions.
func (t *task) cutTo(cut int) {
	if t.cut = cut; cut > 0 {
		t.from += ", " + spelling.Count(cut, "dimension", "dimensions")
	}
}

// alike tells whether tasks have the same texts, read alike, and differ by their dimensions alone.
func (t *task) alike(o *task) bool {
	a, b := t.source, o.source
	a.Instead, b.Instead = nil, nil
	return t.kind == o.kind && t.mined == o.mined && t.nano == o.nano && slices.Equal(t.files, o.files) && reflect.DeepEqual(a, b) &&
		reflect.DeepEqual(t.prompts, o.prompts) && reflect.DeepEqual(t.rerank, o.rerank)
}

// taskName is what a task is called if its recipe gives no name: its folder, or its file without the ending, with the dimensions that embeddings are cut to.
func taskName(name, path string, cut int) string {
	if name != "" || path == "" {
		return name
	}
	return shorter(dataset.TaskName(path), cut)
}

// shorter is what is called by a name where embeddings are cut to so many dimensions.
func shorter(name string, cut int) string {
	if cut == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, cut)
}

func taskKey(kind string, i, n int) string {
	if n == 1 {
		return "eval." + kind
	}
	return fmt.Sprintf("eval.%s[%d]", kind, i)
}

// tasks are all of them, in the order in which they are measured.
func (e Eval) tasks() (all []task) {
	ranked := func(kind string, i, n int, queries, corpus, qrels string) task {
		return task{
			key: taskKey(kind, i, n), from: shortTask(queries), files: []string{queries, corpus, qrels},
			load: func(ctx context.Context) (*dataset.Retrieval, error) {
				return dataset.LoadRetrieval(ctx, queries, corpus, qrels)
			},
		}
	}
	// add adds a task for each of cuts.
	add := func(t task, name string, cuts Cuts) {
		for _, cut := range each(cuts) {
			t := t
			t.name = taskName(name, t.files[0], cut)
			if name != "" && len(cuts) > 1 {
				t.name = shorter(name, cut)
			}
			t.cutTo(cut)
			all = append(all, t)
		}
	}
	scored := func(kind *scoring.Kind, i, n int, name string, prompts *Prompts, cuts Cuts, s scoring.Source) {
		t := task{key: taskKey(kind.Key, i, n), from: shortPath(s.Path), files: []string{s.Path}, prompts: prompts, kind: kind, source: s}
		if name != "" {
			t.from = name + ": " + t.from
		}
		t.source.Instead = func(role string) string {
			return fmt.Sprintf("it takes another file (%s.path) or column (%[1]s.%s), or no eval.%s", t.key, role, kind.Key)
		}
		add(t, name, cuts)
	}
	for i, r := range e.Retrieval {
		t := ranked("retrieval", i, len(e.Retrieval), r.Queries, r.Corpus, r.Qrels)
		t.prompts = r.Prompts
		add(t, r.Name, r.Dimensions)
	}
	nano := e.nano()
	if len(nano) > 0 && nano[0].kind == nil {
		all, nano = append(all, nano...), nil
	}
	for i, r := range e.Rerank {
		t := ranked("rerank", i, len(e.Rerank), r.Queries, r.Corpus, r.Qrels)
		t.from, t.rerank = t.from+", BM25's candidates", &r
		add(t, r.Name, nil)
	}
	for i, s := range e.STS {
		scored(scoring.STS, i, len(e.STS), s.Name, s.Prompts, s.Dimensions, scoring.Source{Path: s.Path, Columns: []string{s.A, s.B, s.Score}})
	}
	for i, p := range e.Paraphrases {
		t := ranked("paraphrases", i, len(e.Paraphrases), p.Texts, p.Texts, p.Pairs)
		t.load, t.mined, t.prompts = paraphrases(t.load), true, p.Prompts
		add(t, p.Name, p.Dimensions)
	}
	for i, p := range e.PairClassification {
		scored(scoring.PairClassification, i, len(e.PairClassification), p.Name, p.Prompts, p.Dimensions, scoring.Source{Path: p.Path, Columns: []string{p.A, p.B, p.Label}})
	}
	for i, t := range e.Triplets {
		scored(scoring.Triplets, i, len(e.Triplets), t.Name, t.Prompts, t.Dimensions, scoring.Source{Path: t.Path, Columns: []string{t.Query, t.Positive, t.Negative}, Margin: t.Margin})
	}
	for i, c := range e.Candidates {
		scored(scoring.Candidates, i, len(e.Candidates), c.Name, c.Prompts, c.Dimensions, scoring.Source{
			Path: c.Path, Columns: []string{c.Query, c.Positive, c.Negative}, Documents: c.Documents, Found: c.Found, Measures: e.candidateMeasures(),
		})
	}
	return append(all, nano...) // a reranker's are candidates
}

// candidateMeasures are those of candidates, eval.metric first, where it is one.
func (e Eval) candidateMeasures() []evaluate.Measure {
	m, err := evaluate.ParseMeasure(e.ranks())
	if err != nil {
		return evaluate.CandidateMeasures() // another task's, or the recipe was refused
	}
	return evaluate.CandidateMeasures(m)
}

// checkTasks checks what a model is measured on.
func (c *checker) checkTasks(e Eval, kind string) {
	names := map[string]string{}
	for _, t := range e.nano() {
		_, twice := names[t.name]
		c.require(!twice, t.key, "names %s twice: it would count twice in the mean", t.name)
		names[t.name] = t.key
	}
	for _, t := range e.nano() {
		names[t.of] = t.key // their mean
	}
	var own []string // figures that tasks go by, whatever eval.metric says
	ranks := false
	for _, t := range e.tasks() {
		switch {
		case t.mined:
			own = append(own, minedMetric)
		case t.kind != nil && t.kind.Metric != "":
			own = append(own, t.kind.Metric)
		default:
			ranks = true
		}
		c.require(!t.mined || kind == "embedder", t.key, "is for a model.kind: embedder")
		c.require(t.cut == 0 || t.cut > 0 && kind == "embedder", t.key+".dimensions", "is %d, want at least 1, of the embeddings of a model.kind: embedder", t.cut)
		c.checkTaskPrompts(t, kind)
		if t.of != "" {
			continue // checkNano did
		}
		if other, ok := names[t.name]; ok && other == t.key {
			c.fail(t.key+".dimensions", "has %d twice", t.cut)
		} else if ok {
			c.fail(t.key+".name", "%q is that of %s too: several tasks are told apart by their names", t.name, other)
		}
		if t.name != "" {
			names[t.name] = t.key
		}
		c.checkTask(e, t)
	}
	own = slices.Compact(own)
	if e.Metric == lossMetric {
		c.require(len(e.Loss) > 0, "eval.metric", "loss needs eval.loss: the rows that it is measured on")
	} else if _, err := evaluate.ParseMeasure(e.Metric); err != nil && (ranks || !slices.Contains(own, e.Metric)) {
		also := ""
		if own != nil {
			also = fmt.Sprintf("; it is of retrieval, rerank, candidates and nanobeir, and what else is measured here goes by %s", strings.Join(own, " and "))
		}
		c.fail("eval.metric", "%v%s; or loss, of the rows of eval.loss", err, also)
	}
}

// checkTaskPrompts refuses prompts that nothing would have.
func (c *checker) checkTaskPrompts(t task, kind string) {
	if t.prompts == nil {
		return
	}
	key := t.key + ".prompts"
	c.require(kind != "reranker", key, "are for embedders: a reranker has those of data.train")
	c.require(t.prompts.Positive+t.prompts.Negative == "", key, "positive and negative are for training: queries and documents are measured")
	alike := kind == "embedder" && (t.mined || t.kind != nil && !t.kind.Asked)
	c.require(!alike || t.prompts.Document == "", key, "document stands before none of its texts: all of them have query")
}

// checkTask checks one that is none of NanoBEIR.
func (c *checker) checkTask(e Eval, t task) {
	switch f, s := t.files, t.source; {
	case t.mined:
		c.require(f[0] != "" && f[2] != "", t.key, "needs texts, a file of ids and texts, and pairs, of the ids of those that say the same, as qrels are")
	case t.kind == nil:
		c.require(f[0] != "" && (f[1] == "") == (f[2] == ""), t.key, "needs queries, corpus and qrels, or as queries a folder that has all three in BEIR's or MTEB's layout")
		c.require(t.rerank == nil || t.rerank.Top >= 0, t.key+".top", "is negative")
	case t.kind == scoring.Candidates:
		query, positive, negative := s.Columns[0], s.Columns[1], s.Columns[2]
		c.require(s.Path != "" && query != "" && positive != "" && (negative == "") != (s.Documents == ""), t.key, "needs path and the columns query, positive and one of negative and documents")
		c.require(!s.Found || s.Documents != "", t.key+".found", "is of documents: which of them are positives; with negative all positives are ranked")
		c.checkCandidateMeasure(e)
	default:
		last := len(t.kind.Roles) - 1
		c.require(s.Path != "" && !slices.Contains(s.Columns, ""), t.key, "needs path and the columns %s and %s", strings.Join(t.kind.Roles[:last], ", "), t.kind.Roles[last])
		c.require(s.Margin >= 0, t.key+".margin", "is %v, want a number of at least 0", s.Margin)
	}
}

// checkCandidateMeasure refuses an eval.metric that ranks documents otherwise than candidates can be.
func (c *checker) checkCandidateMeasure(e Eval) {
	if m, err := evaluate.ParseMeasure(e.ranks()); err == nil {
		if err := evaluate.CheckCandidateMeasure(m); err != nil {
			c.fail("eval.metric", "%v", err)
		}
	}
}

// paraphrases are what load reads, if there are any to find. A pair of which a text is not there is left out, whichever of the two it is.
func paraphrases(load func(context.Context) (*dataset.Retrieval, error)) func(context.Context) (*dataset.Retrieval, error) {
	return func(ctx context.Context) (*dataset.Retrieval, error) {
		r, err := load(ctx)
		if err != nil {
			return nil, err
		}
		r.Unknown, r.Missed = r.Unknown+len(r.Missed), nil
		return r, embedder.CheckParaphrases(r)
	}
}

// checkFiles finds files that are not there, before what takes longer: the model and the data are opened first.
func (x *Run) checkFiles() error {
	check := func(key string, paths []string) error {
		for _, p := range paths {
			if p == "" || p == "-" { // a folder has them, or it is refused where it is read
				continue
			}
			if err := dataset.Missing(p); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
		}
		return nil
	}
	for _, t := range x.Recipe.Eval.tasks() {
		if x.passedOver(t.key, t.files...) {
			continue
		}
		if err := check(t.at(), t.files); err != nil {
			return err
		}
	}
	for key, h := range x.Recipe.Eval.heldOut() {
		if x.passedOver(key, h.source().paths()...) {
			continue
		}
		if err := check(key, h.source().paths()); err != nil {
			return err
		}
	}
	return nil
}

// openTasks opens those that are here.
func (x *Run) openTasks(ctx context.Context) error {
	ctx = hfmodel.ListOnce(ctx) // of NanoBEIR's 13 tasks 4 tables each, of one dataset
	for _, t := range x.Recipe.Eval.tasks() {
		if x.passedOver(t.key, t.files...) {
			continue
		}
		if err := x.openTask(ctx, &t); err != nil {
			return fmt.Errorf("%s: %w", t.at(), err)
		}
		x.tasks = append(x.tasks, t)
	}
	return nil
}

// checkCut finds a task of more dimensions than the model's embeddings have.
func (x *Run) checkCut(t *task) error {
	if all := x.model.EmbeddingSize(); t.cut > all {
		return fmt.Errorf("dimensions: is %d, and the model's embeddings have %d", t.cut, all)
	}
	return nil
}

func (x *Run) openTask(ctx context.Context, t *task) (err error) {
	noting := x.noting(ctx, t.at())
	if err := x.checkCut(t); err != nil {
		return err
	}
	for i := range x.tasks {
		if o := &x.tasks[i]; o.alike(t) {
			t.data, t.retrieval, t.first, t.scored = o.data, o.retrieval, o.first, o.scored
			return nil
		}
	}
	if t.kind != nil {
		t.scored, err = t.kind.Load(noting, t.source)
		return err
	}
	if t.data, err = t.load(noting); err != nil {
		return err
	}
	if note := t.data.Note(); note != "" {
		x.obs.note("%s: %s", t.at(), note)
	}
	text := x.evalText(t)
	if t.rerank != nil { // which reads pairs
		text = embedder.Text{}
	}
	if t.retrieval, err = embedder.NewTask(noting, t.data, text); err != nil || t.rerank == nil {
		return err
	}
	if t.first = (evaluate.Run{}); !x.planned {
		t.first, err = t.retrieval.RankBM25(ctx, cmp.Or(t.rerank.Top, defaultTop))
	}
	return err
}

// noting has what is to be known of a key's files become notes of the run, and the observer hear of their download.
func (x *Run) noting(ctx context.Context, key string) context.Context {
	if !x.Main() {
		return dataset.WithNote(dataset.WithProgress(ctx, nil), nil)
	}
	ctx = dataset.WithProgress(ctx, nil)
	if tell := x.obs.Download; tell != nil {
		ctx = dataset.WithProgress(ctx, func(file string, done, total int64) { tell(hfmodel.Progress{File: file, Done: done, Total: total}) })
	}
	if tell := x.obs.Reading; tell != nil {
		ctx = dataset.WithReading(ctx, func(what string, texts int) { tell(key+": "+what, texts) })
	}
	return dataset.WithNote(ctx, func(message string) { x.obs.note("%s: %s", key, message) })
}

// passedOver tells of files that a plan does without, for they are elsewhere: what is measured changes none of its figures but the memory of ranking.
func (x *Run) passedOver(key string, paths ...string) bool {
	if !x.planned || !slices.ContainsFunc(paths, dataset.Remote) {
		return false
	}
	if !slices.Contains(x.unread, key) { // NanoBEIR's tasks have one
		x.obs.note("%s is not downloaded for a plan: what measuring takes of memory, besides a pass, is not in it", key)
		x.unread = append(x.unread, key)
	}
	return true
}

// identity names what a task measures, and its content; fusion is what each part of an m3 counts.
func (t *task) identity(metric string, fusion map[string]float64) (name string, content any) {
	name, content = metric, t.data
	switch {
	case t.mined:
		name = minedMetric
	case t.scored != nil:
		name, content = t.scored.Counts(), t.scored.Content
	case t.first != nil:
		name = fmt.Sprintf("%s of %d", metric, t.rerank.Top)
	}
	if fusion != nil {
		name = fmt.Sprint(name, fusion)
	}
	if t.cut > 0 {
		name += fmt.Sprintf(" of %d dimensions", t.cut)
	}
	if t.of != "" {
		name += " in " + t.of
	}
	if t.prompts != nil {
		content = []any{content, *t.prompts}
	}
	return name, content
}
