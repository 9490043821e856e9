package recipe

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"contraflow/stages/loss"
)

// Loss is the objective and its options. Each loss has options of its own (the commented recipes of [Template] have them); what a loss does not have is an error
// where a recipe says it, and is left out where one is written. A name alone is a loss with its defaults, and a list of losses their sum.
type Loss struct {
	Name               string           `yaml:"name"`
	Weight             float64          `yaml:"weight,omitempty"` // of a term of a sum; 0: 1
	Scale              float64          `yaml:"scale"`
	Temperature        float64          `yaml:"temperature,omitempty"` // of losses with a scale resolved into that
	StudentTemperature float64          `yaml:"student_temperature,omitempty"`
	TeacherTemperature float64          `yaml:"teacher_temperature,omitempty"`
	Directions         []loss.Direction `yaml:"directions"`
	PartitionMode      string           `yaml:"partition_mode"`
	HardnessMode       loss.Hardness    `yaml:"hardness_mode,omitempty"`
	HardnessStrength   float64          `yaml:"hardness_strength,omitempty"`
	Similarity         string           `yaml:"similarity"`
	Distance           string           `yaml:"distance,omitempty"`
	Margin             float64          `yaml:"margin,omitempty"`
	MaskDuplicates     bool             `yaml:"mask_duplicates"`
	Matryoshka         *Matryoshka      `yaml:"matryoshka,omitempty"`
	Flops              *Flops           `yaml:"flops,omitempty"` // of sparse embeddings

	// Of gor; see loss.GlobalOrthogonal.
	MeanWeight         *float64 `yaml:"mean_weight,omitempty"`
	SecondMomentWeight *float64 `yaml:"second_moment_weight,omitempty"`
	Aggregation        string   `yaml:"aggregation,omitempty"`
	// Of mega_batch_margin.
	PositiveMargin *float64 `yaml:"positive_margin,omitempty"`
	NegativeMargin *float64 `yaml:"negative_margin,omitempty"`

	// Of gist; see loss.Guide.
	Guide             *Guide `yaml:"guide,omitempty"`
	MarginStrategy    string `yaml:"margin_strategy,omitempty"`
	ContrastAnchors   bool   `yaml:"contrast_anchors"`
	ContrastPositives bool   `yaml:"contrast_positives"`

	// Of m3; see loss.M3. SelfDistill is also a layer-wise reranker's; see loss.Groups.
	Parts           []string          `yaml:"parts,omitempty"`
	SelfDistill     bool              `yaml:"self_distill,omitempty"`
	SelfDistillFrom int               `yaml:"self_distill_from,omitempty"` // step, from 1
	Distillation    loss.Distillation `yaml:"distillation,omitempty"`

	GatherAcrossDevices bool `yaml:"gather_across_devices"`

	// Of a reranker; see loss.Groups.
	Weighting loss.Scheme `yaml:"weighting,omitempty"`
	K         int         `yaml:"k,omitempty"`
	Sigma     float64     `yaml:"sigma,omitempty"`
	Alpha     float64     `yaml:"alpha,omitempty"`
	Mu        float64     `yaml:"mu,omitempty"`
	PosWeight float64     `yaml:"pos_weight,omitempty"`
	ByLabel   bool        `yaml:"by_label,omitempty"`

	NumNegatives Count           `yaml:"num_negatives,omitempty"` // of its mnrl, as Scale: documents of other rows of its batch that a row gets besides its own
	Activation   loss.Activation `yaml:"activation,omitempty"`

	Terms []Loss `yaml:"-"` // of a sum, which has nothing else but GatherAcrossDevices, as each of them; nil: this is one loss

	// What it is of, which decides which options it has: see of.
	reranker bool // the name is one of loss.GroupLosses, some of which are embedders' as well
	vectors  bool // it is of a multi_vector: see vectorKinds
	dataset  bool // it is a dataset's own
	term     bool // it is one of a sum's
}

// of has a loss, and the terms of a sum, know that it is of such a model, and whether it is a dataset's own.
func (l *Loss) of(model string, dataset bool) {
	l.reranker, l.vectors, l.dataset = model == "reranker", model == "multi_vector", dataset
	for i := range l.Terms {
		l.Terms[i].of(model, dataset)
		l.Terms[i].term = true
	}
}

// withLosses is the recipe with losses that it shares with no other, its datasets' and held-out rows' (of which dataset tells) included, as change has made them.
func (r Recipe) withLosses(change func(l *Loss, dataset bool)) Recipe {
	own := func(l *Loss) *Loss {
		if l == nil {
			return nil
		}
		own := *l
		own.Terms = slices.Clone(l.Terms)
		change(&own, l != &r.Loss)
		return &own
	}
	r.Loss = *own(&r.Loss)
	r.Data.Train, r.Eval.Loss = slices.Clone(r.Data.Train), slices.Clone(r.Eval.Loss)
	for i, s := range r.Data.Train {
		r.Data.Train[i].Loss = own(s.Loss)
	}
	for i, h := range r.Eval.Loss {
		r.Eval.Loss[i].Loss = own(h.Loss)
	}
	return r
}

func defaultLoss() Loss {
	return Loss{Name: "mnrl", Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}, PartitionMode: "joint", Similarity: "cosine", MaskDuplicates: true, ContrastAnchors: true, ContrastPositives: true, GatherAcrossDevices: true}
}

func (l *Loss) decode(d *decoder, path string, n *node) {
	if n.kind == list {
		l.decodeTerms(d, path, n)
		return
	}
	if n.kind == scalar {
		word := *n
		*n = node{at: n.at, kind: mapping, keys: []entry{{"name", n.at, &word}}}
	}
	*l = defaultLoss()
	d.structure(path, n, reflect.ValueOf(l).Elem())
}

// lossOf is the loss of a dataset's batches.
func (r Recipe) lossOf(source int) Loss {
	if own := r.Data.Train[source].Loss; own != nil {
		return *own
	}
	return r.Loss
}

// lossKey is where the recipe says a dataset's loss.
func (r Recipe) lossKey(source int) string {
	if r.Data.Train[source].Loss != nil {
		return fmt.Sprintf("data.train[%d].loss", source)
	}
	return "loss"
}

// Matryoshka has a loss take the first features of the embeddings as well.
type Matryoshka struct {
	Dims    []int     `yaml:"dims"`
	Weights []float64 `yaml:"weights,omitempty"` // of each; nil: 1
	// DimsPerStep is how many of them, drawn anew, each batch takes; 0: all.
	DimsPerStep int `yaml:"dims_per_step,omitempty"`
}

// lossKind is a loss that a recipe can name.
type lossKind struct {
	names       []string // the first is ours
	options     []string
	similarity  string   // the usual one
	distances   []string // the usual one first
	label       bool     // of the data: each row's
	scores      bool     // a teacher's
	readsLabel  bool     // where there is one
	readsScores bool     // likewise
	teacher     bool     // a teacher's embeddings
	negatives   bool     // needs them
	pairs       bool     // takes no negatives
	takesSingle bool     // rows may be single texts
	single      bool     // they are
	whole       bool     // is of the batch as a whole: rows have no weights
	reranker    bool
	m3          bool
	vectors     bool // is of vectors of tokens
}

var lossKinds = []lossKind{
	{names: []string{"mnrl", "infonce", "multiple_negatives_ranking"}, similarity: "cosine",
		options: []string{"scale", "temperature", "directions", "partition_mode", "similarity", "mask_duplicates", "hardness_mode", "hardness_strength"}},
	{names: []string{"gist", "gist_embed"}, options: []string{"scale", "temperature", "guide", "margin", "margin_strategy", "contrast_anchors", "contrast_positives", "mask_duplicates"}},
	{names: []string{"cosent"}, options: []string{"scale", "temperature", "similarity"}, similarity: "cosine", label: true, pairs: true, whole: true},
	{names: []string{"angle"}, options: []string{"scale", "temperature"}, readsLabel: true, whole: true},
	{names: []string{"cosine_similarity"}, label: true, pairs: true},
	{names: []string{"contrastive"}, options: []string{"distance", "margin"}, distances: []string{"cosine", "euclidean", "manhattan"}, label: true, pairs: true},
	{names: []string{"online_contrastive"}, options: []string{"distance", "margin"}, distances: []string{"cosine", "euclidean", "manhattan"}, label: true, pairs: true, whole: true},
	{names: []string{"triplet"}, options: []string{"distance", "margin"}, distances: []string{"euclidean", "cosine", "manhattan"}, negatives: true},
	{names: []string{"cross_entropy"}, options: []string{"scale", "temperature", "similarity"}, similarity: "cosine", negatives: true},
	{names: []string{"margin_mse"}, options: []string{"similarity"}, similarity: "dot", readsLabel: true, readsScores: true, negatives: true},
	{names: []string{"distill_kl", "kl_div"}, options: []string{"similarity", "temperature", "student_temperature", "teacher_temperature"}, similarity: "dot", scores: true, negatives: true},
	{names: []string{"batch_hard_triplet"}, options: []string{"distance", "margin"}, distances: []string{"euclidean", "cosine"}, label: true, single: true},
	{names: []string{"batch_hard_soft_margin_triplet"}, options: []string{"distance"}, distances: []string{"euclidean", "cosine"}, label: true, single: true},
	{names: []string{"batch_semi_hard_triplet"}, options: []string{"distance", "margin"}, distances: []string{"euclidean", "cosine"}, label: true, single: true, whole: true},
	{names: []string{"batch_all_triplet"}, options: []string{"distance", "margin"}, distances: []string{"euclidean", "cosine"}, label: true, single: true, whole: true},
	{names: []string{"teacher_embedding", "mse"}, options: []string{"distance"}, distances: []string{"mse", "euclidean", "cosine"}, teacher: true, takesSingle: true},
	{names: []string{"mega_batch_margin"}, options: []string{"positive_margin", "negative_margin", "mask_duplicates"}, pairs: true},
	{names: []string{"gor", "global_orthogonal_regularization"}, options: []string{"similarity", "mean_weight", "second_moment_weight", "aggregation"}, similarity: "cosine", takesSingle: true},
	{names: []string{"m3"}, options: []string{"scale", "temperature", "parts", "self_distill", "self_distill_from", "distillation", "mask_duplicates"}, m3: true},
}

// kind is the loss that the recipe names; the usual one if it names none that there is.
func (l *Loss) kind() lossKind {
	kinds := l.kinds()
	return kinds[max(0, slices.IndexFunc(kinds, func(k lossKind) bool { return slices.Contains(k.names, l.Name) }))]
}

// kinds are those that the loss may be one of.
func (l *Loss) kinds() []lossKind {
	switch {
	case l.reranker:
		return groupKinds
	case l.vectors:
		return vectorKinds
	}
	return lossKinds
}

// rowwise tells that each row's term is of the row alone: pairs with a label, triplets, a teacher's embeddings.
func (k lossKind) rowwise() bool {
	return k.label && k.pairs && !k.whole || k.negatives || k.teacher
}

// comesBack tells that a rank's terms have a gradient for texts of other ranks' rows. gor has each rank compute that of its own alone.
func (k lossKind) comesBack() bool { return !k.rowwise() && k.names[0] != "gor" }

// all are the loss's options.
func (l *Loss) all() []string { return l.kind().all(l.dataset, l.term) }

// all are those of a dataset's own loss, or of a term of a sum, or of neither.
func (k lossKind) all(dataset, term bool) []string {
	all := []string{"name"}
	if term {
		all = append(all, "weight")
	}
	if !k.reranker && !k.vectors && !k.m3 {
		all = append(all, "matryoshka", "flops")
	}
	if !k.reranker && !dataset {
		all = append(all, "gather_across_devices")
	}
	return append(all, k.options...)
}

func (k lossKind) has(option string) bool { return slices.Contains(k.all(false, false), option) }

// having lists the losses with an option, those of another kind of model as such.
func having(option string, reranker bool) string {
	with := func(kinds []lossKind) string {
		var names []string
		for _, k := range kinds {
			if k.has(option) {
				names = append(names, k.names[0])
			}
		}
		return strings.Join(names, ", ")
	}
	embedders, rerankers := with(lossKinds), with(groupKinds)
	switch {
	case reranker && rerankers != "":
		return rerankers
	case reranker:
		return "embedders' " + embedders
	case embedders != "":
		return embedders
	}
	return "rerankers' " + rerankers
}

// options finds those that the loss at a key does not have.
func (c *checker) options(l *Loss, at string) {
	all := l.all()
	for _, option := range fieldNames(reflect.TypeFor[Loss]()) {
		key := at + "." + option
		if slices.Contains(all, option) || c.find(key) == nil {
			continue
		}
		if option == "weight" {
			c.fail(key, "is for a loss in a list, which is a sum: loss: [{name: mnrl}, {name: distill_kl, weight: 2}]")
		} else if l.dataset && option == "gather_across_devices" {
			c.fail(key, "is the same for all datasets: loss.gather_across_devices")
		} else if l.vectors {
			c.fail(key, "is not for model.kind: multi_vector; the options of %s are %s there", l.Name, strings.Join(all, ", "))
		} else {
			c.fail(key, "is for %s; the options of %s are %s", having(option, l.reranker), l.Name, strings.Join(all, ", "))
		}
	}
}

// MarshalYAML writes the options that the loss has.
func (l Loss) MarshalYAML() (any, error) {
	if l.Terms != nil {
		return l.Terms, nil
	}
	all, v := l.kind().all(l.dataset, l.term || l.Weight != 0), reflect.ValueOf(l)
	var out yaml.MapSlice
	for i := range v.NumField() {
		f := v.Type().Field(i)
		option := name(f)
		omits := strings.Contains(f.Tag.Get("yaml"), "omitempty") || l.vectors && option == "similarity" // which the model's folder says
		if slices.Contains(all, option) && !(omits && v.Field(i).IsZero()) {
			out = append(out, yaml.MapItem{Key: option, Value: v.Field(i).Interface()})
		}
	}
	return out, nil
}

// checkLosses checks the recipe's loss and datasets' own, and that each dataset has what its loss wants.
func (c *checker) checkLosses(r *Recipe) {
	ok := c.checkTerms(r, &r.Loss, "loss")
	for i, s := range r.Data.Train {
		key, known := r.lossKey(i), ok
		if s.Loss != nil {
			known = c.checkOwn(r, s.Loss, key)
		}
		if known {
			l := r.lossOf(i)
			for at, t := range l.each(key) {
				c.checkColumns(s, *t, fmt.Sprintf("data.train[%d].", i), at)
			}
		}
	}
}

// checkOwn checks the loss that a dataset has for itself. It returns whether there is such a loss.
func (c *checker) checkOwn(r *Recipe, own *Loss, key string) bool {
	switch {
	case r.Model.Kind == "m3":
		c.fail(key, "is not for model.kind: m3, which has one loss")
		return false
	case own.gist():
		c.fail(key, "gist's guide reads all datasets: give it as the recipe's loss, and the other datasets losses of their own")
		return false
	}
	return c.checkTerms(r, own, key)
}

// checkLoss checks the loss at a key. It returns whether there is such a loss.
func (c *checker) checkLoss(r *Recipe, l *Loss, at string) bool {
	if !c.lossName(at+".name", l) {
		return false
	}
	k := l.kind()
	c.options(l, at)
	c.require(k.m3 == (r.Model.Kind == "m3"), at+".name", "%s is not for model.kind: %s; m3 is the loss of that kind, and of no other", l.Name, r.Model.Kind)
	for _, option := range []string{"weight", "margin", "hardness_strength", "temperature", "student_temperature", "teacher_temperature", "scale"} {
		if n := c.find(at + "." + option); n != nil && slices.Contains(l.all(), option) {
			v := reflect.ValueOf(l).Elem()
			f, _, _ := field(v, option)
			if k.names[0] == "gist" && option == "margin" {
				continue // may be 0
			}
			c.require(f.Float() > 0, at+"."+option, "is %v, want a positive number", f.Float())
		}
	}
	if k.vectors && c.find(at+".scale") == nil {
		l.Scale = 1
	}
	if k.has("scale") && l.Temperature > 0 {
		c.require(c.find(at+".scale") == nil, at+".temperature", "and %s.scale are one thing (scale = 1/temperature): give one of them", at)
		l.Scale, l.Temperature = 1/l.Temperature, 0
	}
	c.words(at+".partition_mode", "joint", "per_direction")
	if k.has("similarity") {
		if k.vectors {
			c.words(at+".similarity", string(loss.MaxSim), string(loss.MeanMaxSim))
		} else {
			c.words(at+".similarity", "cosine", "dot")
		}
		switch {
		case c.find(at+".similarity") != nil:
		case k.vectors: // the model's folder says it
			l.Similarity = ""
		default:
			l.Similarity = k.similarity
		}
	}
	if k.has("distance") {
		if c.words(at+".distance", k.distances...); l.Distance == "" {
			l.Distance = k.distances[0]
		}
	}
	c.checkSpread(l, at)
	if r.Model.Kind == "sparse" {
		c.defaultSparse(l, at)
	}
	c.checkFlops(r, l, at)
	if k.names[0] == "gist" {
		c.checkGuide(l, at)
	}
	if k.names[0] == "mnrl" && !k.vectors {
		c.words(at+".hardness_mode", texts(loss.HardnessModes)...)
		c.require(l.HardnessMode == "" || l.HardnessStrength != 0, at+".hardness_mode", "needs %s.hardness_strength", at)
		c.require(l.HardnessMode != "" || l.HardnessStrength == 0, at+".hardness_strength", "needs %s.hardness_mode", at)
		if err := (loss.InfoNCE{Directions: l.Directions, PerDirection: l.PartitionMode == "per_direction"}).Check(); err != nil {
			c.fail(at+".directions", "%v", err)
		}
	}
	if k.m3 {
		c.checkM3(r)
	}
	if m := l.Matryoshka; m != nil {
		if _, err := loss.Matryoshka(loss.InfoNCE{}, m.Dims, m.Weights, m.DimsPerStep); err != nil {
			c.fail(at+".matryoshka", "%v", err)
		}
	}
	return true
}

// checkColumns finds what a dataset lacks for its loss, or has beside it.
func (c *checker) checkColumns(s Source, l Loss, key, at string) {
	k, named := l.kind(), at+".name: "+l.Name
	c.require(s.Documents == "", key+"documents", "is for model.kind: reranker; an embedder's rows have a positive, and negatives")
	c.require(!k.single || s.Positive == "", key+"positive", "%s takes single texts with labels: data.train[].query names their column", named)
	alone := k.single || k.takesSingle && (k.teacher || s.Label != "" || s.Teacher != "") // a column of texts, and no more, is no dataset
	missing := "is missing: the column with the positives"
	if k.takesSingle {
		missing += fmt.Sprintf("; of single texts %s takes those with a label or a teacher's embedding", named)
	}
	c.require(s.Positive != "" || alone, key+"positive", "%s", missing)
	c.require(!k.label || s.Label != "", key+"label", "is missing: %s needs a column with each row's label", named)
	c.require(!k.scores || len(s.Scores) > 0, key+"scores", "is missing: %s needs columns with a teacher's scores", named)
	c.require(!k.teacher || s.Teacher != "", key+"teacher", "is missing: %s needs a column with a teacher's embeddings", named)
	c.require(!k.negatives || len(s.Negatives) > 0, key+"negatives", "are missing: %s compares them with the positive", named)
	c.require(!k.pairs || !k.label || len(s.Negatives) == 0, key+"negatives", "%s takes pairs with labels, and no negatives", named)
	c.require(!k.pairs || k.label || len(s.Negatives) == 0, key+"negatives", "%s finds its negatives among the positives of other rows, and takes no others; mnrl takes both", named)
	switch k.names[0] {
	case "margin_mse":
		c.require(len(s.Scores) > 0 || s.Label != "", key+"scores", "is missing: %s needs a teacher's scores, or their difference as label", named)
	case "angle":
		c.require(s.Label != "" || len(s.Negatives) > 0, key+"label", "is missing: %s needs labels, or negatives", named)
	}
	c.require(!k.whole || s.Weight == "", key+"weight", "%s is of the batch as a whole: rows have no weights in it", named)
}

// asking has each of a loss's terms say what is wrong with a row's number, as what it is computed by does: with loss.CheckLabel, CheckScore or CheckNegatives.
func asking[T any](l Loss, check func(loss.Loss, T) error) func(T) error {
	var terms []loss.Loss
	for _, t := range l.each("") {
		terms = append(terms, t.objective(driving{}))
	}
	return func(x T) error {
		for _, t := range terms {
			if err := check(t, x); err != nil {
				return err
			}
		}
		return nil
	}
}

// reads tells which columns beside the texts the loss reads, where it does not need them.
func (l Loss) reads() (label, scores, teacher bool) {
	k := l.kind()
	return k.label || k.readsLabel, k.scores || k.readsScores || k.m3 && l.Distillation != "", k.teacher
}

// noteUnread tells of columns that a recipe names and the loss does not read: it may be that another one was meant.
func (x *Run) noteUnread() {
	if x.own.loss != nil {
		return
	}
	for i, s := range x.Recipe.Data.Train {
		x.noteUnreadOf(s, fmt.Sprintf("data.train[%d].", i), x.Recipe.lossOf(i), x.Recipe.lossKey(i))
	}
	for key, h := range x.Recipe.Eval.heldOut() {
		l, at := x.Recipe.heldOutLoss(h, key)
		x.noteUnreadOf(h.source(), key+".", l, at)
	}
}

// noteUnreadOf says what columns of a source the loss at a key has no use for.
func (x *Run) noteUnreadOf(s Source, key string, l Loss, at string) {
	var label, scores, teacher bool
	var names []string
	for at, t := range l.each(at) {
		a, b, c := t.reads()
		label, scores, teacher = label || a, scores || b, teacher || c
		names = append(names, fmt.Sprintf("%s.name: %s", at, t.Name))
	}
	for at, t := range l.each(at) {
		if read, _, _ := t.reads(); label && !read && s.Label != "" && slices.Contains([]string{"mnrl", "gist"}, t.kind().names[0]) {
			x.obs.note("%s.name: %s takes the texts of every row to belong together, whatever %slabel says", at, t.Name, key)
		}
	}
	has := "has"
	if len(names) > 1 {
		has = "have"
	}
	for _, c := range []struct {
		key   string
		there bool
		read  bool
	}{{"label", s.Label != "", label}, {"scores", len(s.Scores) > 0, scores}, {"teacher", s.Teacher != "", teacher}} {
		if c.there && !c.read {
			x.obs.note("%s%s is not read: %s %s no use for it", key, c.key, strings.Join(names, " and "), has)
		}
	}
}

// driving is how a loss is computed, beside what the recipe says.
type driving struct {
	tile [2]int // 0: the defaults
	all  bool   // of matryoshka, all dimensions in each batch
	mask bool   // duplicates are masked where the recipe says not to, and the other way

	// differentiable leaves out what the loss takes for a number that has no gradient, though it depends on the embeddings: the gradient
	// is then what a difference quotient of the loss comes to.
	differentiable bool

	steps int // of the run, by which what grows in it grows; 0: it is what it ends as
}

// stopped is the option with what the loss takes for a number that has no gradient; "" if there is nothing of the kind.
func (l Loss) stopped() string {
	switch k := l.kind(); {
	case k.has("hardness_mode") && l.HardnessMode != "":
		return "hardness_mode"
	case k.has("self_distill") && l.SelfDistill:
		return "self_distill"
	}
	return ""
}

// objective is what the recipe minimizes.
func (r Recipe) objective(o driving) loss.RowSplitter {
	if !slices.ContainsFunc(r.Data.Train, func(s Source) bool { return s.Loss != nil }) {
		return r.Loss.objective(o)
	}
	var all loss.ByDataset
	for i := range r.Data.Train {
		all = append(all, r.lossOf(i).objective(o))
	}
	return all
}

// objective is the loss, computed this way.
func (l Loss) objective(o driving) loss.RowSplitter {
	if l.Terms != nil {
		return l.sum(o)
	}
	if o.differentiable {
		l.HardnessMode, l.HardnessStrength, l.SelfDistill, l.SelfDistillFrom = "", 0, false, 0
	}
	if l.reranker {
		return l.groups()
	}
	similarity, distance := loss.Metric(l.compares()), loss.Metric(l.Distance)
	var out loss.RowSplitter
	switch k := l.kind(); k.names[0] {
	case "mnrl":
		if k.vectors {
			return loss.LateInteraction{Scale: l.Scale, Metric: similarity, MaskDuplicates: l.MaskDuplicates != o.mask, TileCols: o.tile[1], Block: o.tile[0] * o.tile[1]}
		}
		out = loss.InfoNCE{
			Scale: l.Scale, Directions: l.Directions, PerDirection: l.PartitionMode == "per_direction", Dot: l.Similarity == "dot",
			Hardness: l.HardnessMode, HardnessStrength: l.HardnessStrength, MaskDuplicates: l.MaskDuplicates != o.mask, TileRows: o.tile[0], TileCols: o.tile[1],
		}
	case "gist":
		out = l.gisted(o)
	case "cosent":
		out = loss.CoSENT{Scale: l.Scale, Metric: similarity}
	case "angle":
		out = loss.CoSENT{Scale: l.Scale, Metric: loss.Angle}
	case "cosine_similarity":
		out = loss.CosineSimilarity{}
	case "contrastive", "online_contrastive":
		out = loss.Contrastive{Metric: distance, Margin: l.Margin, Online: l.Name == "online_contrastive"}
	case "triplet":
		out = loss.Triplet{Metric: distance, Margin: l.Margin}
	case "cross_entropy":
		out = loss.CrossEntropy{Scale: l.Scale, Metric: similarity}
	case "margin_mse":
		out = loss.MarginMSE{Metric: similarity}
	case "distill_kl":
		out = loss.DistillKL{Metric: similarity, Temperature: l.Temperature, StudentTemperature: l.StudentTemperature, TeacherTemperature: l.TeacherTemperature}
	case "batch_hard_triplet":
		out = loss.BatchTriplet{Mode: loss.Hard, Metric: distance, Margin: l.Margin}
	case "batch_hard_soft_margin_triplet":
		out = loss.BatchTriplet{Mode: loss.SoftMargin, Metric: distance}
	case "batch_semi_hard_triplet":
		out = loss.BatchTriplet{Mode: loss.SemiHard, Metric: distance, Margin: l.Margin}
	case "batch_all_triplet":
		out = loss.BatchTriplet{Mode: loss.All, Metric: distance, Margin: l.Margin}
	case "mega_batch_margin":
		out = loss.MegaBatchMargin{PositiveMargin: *l.PositiveMargin, NegativeMargin: *l.NegativeMargin, MaskDuplicates: l.MaskDuplicates != o.mask}
	case "gor":
		out = loss.GlobalOrthogonal{Metric: similarity, Mean: *l.MeanWeight, SecondMoment: *l.SecondMomentWeight, AddColumns: l.Aggregation == "sum"}
	case "m3":
		return loss.M3{
			Parts: l.Parts, Scale: l.Scale, SelfDistill: l.SelfDistill, DistillFrom: max(0, l.SelfDistillFrom-1), Teacher: l.Distillation,
			MaskDuplicates: l.MaskDuplicates != o.mask, TileCols: o.tile[1], Block: o.tile[0] * o.tile[1],
		}
	case "teacher_embedding":
		if distance == "mse" {
			distance = ""
		}
		out = loss.TeacherEmbedding{Metric: distance}
	}
	if m := l.Matryoshka; m != nil {
		some := m.DimsPerStep
		if o.all {
			some = 0
		}
		if wrapped, err := loss.Matryoshka(out, m.Dims, m.Weights, some); err == nil { // the recipe was checked
			return wrapped.(loss.RowSplitter)
		}
	}
	if f := l.Flops; f != nil {
		return f.added(out, o)
	}
	return out
}
