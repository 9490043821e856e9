package recipe

import (
	"cmp"
	"fmt"
	"slices"

	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Memory is what a run is predicted to hold on its device, in bytes.
type Memory struct {
	Parameters  int64
	Packed      int64 // parameters a second time, as products like them
	Gradients   int64
	Optimizer   int64
	Embeddings  int64 // of a whole batch, with their gradient, and other parts
	Tokens      int64 // of these, the parts of tokens
	Activations int64 // kept between embed and backward: at most the replay budget
	Working     int64 // of one sub-batch, forward and backward, or of the loss
	Guide       int64 // a guide's model, what a pass takes, and its embeddings
	Evaluation  int64 // a pass of an evaluation, which keeps nothing, and what ranks documents or computes a loss
	Traveling   int64 // layers and rows of word embeddings under way between ranks
	Snapshot    int64 // of the state on its way to disk, where the device's memory is the host's
	Device      int64 // the device's own

	HostSnapshot int64 // the same in host memory, where the device has its own: not part of the total
}

// memoryPart is something of a Memory, and what it is called.
type memoryPart struct {
	name  string
	bytes int64
	key   string // for programs; "": the name, with underscores
}

// parts are those that the total is of.
func (m Memory) parts() []memoryPart {
	return []memoryPart{
		{"model", m.Parameters, ""}, {"packed weights", m.Packed, ""}, {"gradients", m.Gradients, ""}, {"optimizer", m.Optimizer, ""}, {"embeddings", m.Embeddings, ""}, {"kept activations", m.Activations, ""},
		{"working", m.Working, ""}, {"guide", m.Guide, ""}, {"evaluation", m.Evaluation, ""}, {"under way between ranks", m.Traveling, ""}, {"snapshots", m.Snapshot, ""},
		{"the device's own", m.Device, "device"},
	}
}

// Total is the sum.
func (m Memory) Total() (sum int64) {
	for _, part := range m.parts() {
		sum += part.bytes
	}
	return sum
}

// State is what a model and its optimizer take, without what a batch does.
func (m Memory) State() int64 {
	return m.Parameters + m.Packed + m.Gradients + m.Optimizer + m.Traveling + m.Snapshot
}

// minimum is the total without what may be computed again.
func (m Memory) minimum() int64 { return m.Total() - m.Activations }

// expected is how many tokens a query and a document may have, for predictions. Where texts are not cut, those of the longest: fewer than its
// bytes, or if nobody has counted these, usualLength.
func (x *Run) expected(t *stages.Text) (query, document int) {
	most := usualLength
	if x.longest > 0 {
		prompt := 0
		for _, p := range slices.Concat(t.Prompts, []stages.Prompts{{Query: t.QueryPrompt, Document: t.DocumentPrompt}}) {
			prompt = max(prompt, len(p.Query), len(p.Document), len(p.Positive), len(p.Negative))
		}
		most = x.longest + prompt
	}
	return cmp.Or(t.QueryLength, most), cmp.Or(t.DocumentLength, most)
}

const usualLength = 1024

// longestSub is the lengths of a sub-batch of the longest rows that its size allows, and how many such a rank has. Queries some of whose tokens nobody
// attends to, or that are weights of tokens, are in none with documents: see stages.Size.Cut.
func (x *Run) longestSub() (lengths []int, subs int64) {
	n := x.sequences()
	query, longest := x.expected(&x.text)
	if !x.config.Queries.There {
		longest = max(longest, query)
	}
	size := x.size()
	rows := size.Rows
	if size.Tokens > 0 {
		rows = max(1, size.Tokens/longest)
	}
	together := []int64{n}
	if x.config.Tokens.Unseen() || x.config.Queries.There {
		queries := n / int64(x.columns())
		together = []int64{n - queries, queries}
	}
	rows = int(min(int64(rows), together[0]))
	lengths = make([]int, rows)
	for i := range lengths {
		lengths[i] = longest
	}
	for _, n := range together {
		subs += (n + int64(rows) - 1) / int64(rows)
	}
	return lengths, subs
}

// sequences is how many texts a rank has in a batch.
func (x *Run) sequences() int64 {
	n := x.batchRows()
	ranks := int64(x.ranks.Size())
	return (n + ranks - 1) / ranks * int64(x.columns())
}

// kept is what all of a batch's passes leave, if all is kept.
func (x *Run) kept() int64 {
	sub, _, subs := x.subMemory()
	return subs * int64(sub.Kept)
}

// subMemory is what a pass through the model takes of the device, at most, of texts of which lengths, and how many such a rank has.
func (x *Run) subMemory() (sub transformer.Memory, lengths []int, subs int64) {
	lengths, subs = x.longestSub()
	sub = x.model.Memory(lengths)
	if x.config.Queries.There {
		q := x.model.WeighedMemory(x.weighedSub())
		sub.Kept = max(sub.Kept, q.Kept)
		sub.Backward = max(sub.Backward, q.Backward)
	}
	return sub, lengths, subs
}

// weighedSub is the lengths of a sub-batch of queries that are weights of tokens, where texts of one token each make it as large as it gets.
func (x *Run) weighedSub() []int {
	n, size := x.sequences()/int64(x.columns()), x.size()
	for _, most := range []int{size.Rows, size.Tokens} {
		if most > 0 {
			n = min(n, int64(most))
		}
	}
	return slices.Repeat([]int{1}, int(n))
}

func (x *Run) predictedSubs() int64 {
	_, subs := x.longestSub()
	return subs
}

func (x *Run) subTokens() int {
	lengths, _ := x.longestSub()
	return len(lengths) * lengths[0]
}

// predict bounds a run's memory from above: it takes every text to be as long as it may be, or, where nothing cuts them, as the longest.
func (x *Run) predict(z sharding) Memory {
	r, m := x.Recipe, x.model
	elem := int64(m.DType.Size())
	params, trained := int64(m.Layout.Len)*elem, int64(m.Layout.Trained())*elem
	shard := int64(r.Mesh.Shard)
	share := (trained + shard - 1) / shard
	sub, lengths, subs := x.subMemory()
	mem := Memory{
		Parameters: params, Packed: m.ResidentPackedBytes(true), Gradients: trained, Optimizer: share * int64(r.update(1).Optimizer.States()),
	}
	mem.Guide, mem.Evaluation = x.guideMemory(), x.evaluationMemory()
	rows, columns := x.batchRows(), int64(x.columns())
	n := rows * columns
	own := x.sequences() / columns     // rows
	tokens := func(rows int64) int64 { // that have rows in parts
		return rows * (int64(m.Config.Tokens.Most(x.text.QueryLength)) + (columns-1)*int64(m.Config.Tokens.Most(x.text.DocumentLength)))
	}
	size := loss.Size{Rows: int(rows), Sequences: int(n), Dim: m.EmbeddingSize(), Normalized: m.Head.Normalize, DType: m.DType, GPU: x.device.Info().Threads == 0}
	for _, p := range m.Parts() {
		mine, all, sub := own*columns, n, int64(len(lengths))
		if p.Tokens {
			mine, all, sub = tokens(own), tokens(rows), int64(x.subTokens())
			size.Tokens, size.Longest = int(all), m.Config.Tokens.Most(max(x.text.QueryLength, x.text.DocumentLength))
		}
		rows := 2 * mine
		if x.ranks != nil && r.Loss.GatherAcrossDevices {
			rows += 2*all + sub*int64(x.ranks.Size())
		}
		mem.Embeddings += rows * int64(p.Size) * elem
		if p.Tokens {
			mem.Tokens += rows * int64(p.Size) * elem
		}
	}
	layer, trainedLayer := int64(0), int64(0)
	for l := range m.Config.Layers {
		part := m.Layout.Part(l)
		layer, trainedLayer = max(layer, int64(part.Len)*elem), max(trainedLayer, int64(part.Trained())*elem)
	}
	rest, trainedRest := int64(m.Layout.Part(transformer.Outside).Len)*elem, int64(m.Layout.Part(transformer.Outside).Trained())*elem
	passing := int64(x.subTokens())
	words := int64(m.Config.WordDim())*elem*min(int64(m.Config.Vocab), passing*shard) + 4*passing
	tableTrains := m.Layout.Trains(m.Layout.Word())
	if z.streamed {
		mem.Parameters, mem.Packed = (params+shard-1)/shard, 0
		mem.Traveling += 2*layer + words + rest
	}
	switch {
	case z.early:
		mem.Gradients = share
		mem.Traveling += 2*trainedLayer + trainedRest
		if tableTrains {
			mem.Traveling += words
		}
	case x.ranks != nil && tableTrains:
		mem.Traveling += int64(m.Config.WordDim()) * elem * min(int64(m.Config.Vocab), passing) * int64(x.ranks.Size()+1)
	}
	snapshot := &mem.Snapshot
	if x.device.Info().Threads == 0 {
		snapshot = &mem.HostSnapshot
	}
	*snapshot = stages.SnapshotBytes(trained, r.update(1).Optimizer, x.ranks.Size())
	mem.Device = x.device.Info().Besides
	lossBytes := int64(r.objective(driving{}).Memory(size))
	mem.Working = max(int64(max(sub.Backward, sub.LeanBackward)), lossBytes)
	below, all := (subs-1)*int64(sub.Kept), subs*int64(sub.Kept) // what is kept below the last sub-batch's pass, and below the loss
	if b := x.budget(mem); b >= 0 {
		below, all = min(below, b), min(all, b)
	}
	mem.Activations = below
	mem.Working = max(mem.Working, lossBytes+all-below)
	return mem
}

// evaluationMemory is what evaluations take beside what training does.
func (x *Run) evaluationMemory() int64 {
	if !x.evaluates() {
		return 0
	}
	m := x.model
	query, document := x.expected(&x.text)
	const shortest = 4 // a word and the special tokens
	longest, tokens := max(query, document), x.device.Info().PassTokens()
	lengths, texts := slices.Repeat([]int{longest}, max(1, tokens/longest)), slices.Repeat([]int{shortest}, tokens/shortest)
	bytes, measuring := int64(max(m.Memory(lengths).Forward, m.Memory(texts).Forward)), int64(0)
	if x.ranks != nil { // each gathers what all have embedded
		for _, p := range m.Parts() {
			rows := len(texts)
			if p.Tokens {
				rows = len(lengths) * m.Config.Tokens.Most(longest)
			}
			bytes += int64(x.ranks.Size()*rows*p.Size) * int64(m.DType.Size())
		}
	}
	for _, t := range x.tasks {
		if t.retrieval != nil && t.first == nil {
			measuring = max(measuring, t.retrieval.Memory(&embedder.Engine{Model: m, Cut: t.cut}, query, document))
		}
		if t.scored != nil {
			measuring = max(measuring, x.evalText(&t).Memory(m, t.scored.A, query, document))
		}
	}
	for _, h := range x.heldOut {
		measuring = max(measuring, h.rows.Memory(m, x.lossOn(h)))
	}
	return bytes + measuring
}

// budget is the replay budget: what the recipe says, or the device's share of what it has left.
func (x *Run) budget(rest Memory) int64 {
	return x.Recipe.Batch.Budget(func() int64 {
		rest.Activations = 0
		free := x.freeMemory()
		if free == 0 {
			return defaultBudget
		}
		return x.device.Info().ReplayBudget(max(0, free-rest.Total()+x.there(rest)))
	})
}

// Budget is how many bytes of activations a step may keep, -1 for all of them; otherwise where the recipe leaves that to the device.
func (b Batch) Budget(otherwise func() int64) int64 {
	switch {
	case b.Cache == "always":
		return 0
	case b.Cache == "never":
		return -1
	case b.ReplayBudget != nil:
		return int64(*b.ReplayBudget)
	}
	return otherwise()
}

// defaultBudget is for systems that don't say how much memory they have.
const defaultBudget = 2 << 30

// freeMemory is what the device has left for this rank; 0 if it does not say.
func (x *Run) freeMemory() int64 {
	free, err := x.device.FreeMemory()
	if err != nil { // open refuses such a device
		return 0
	}
	ranks := x.device.Info().Ranks
	if ranks == 0 {
		ranks = x.share.Ranks
	}
	return max(min(1, free), free/int64(max(1, ranks)))
}

// fits refuses a run that does not fit so many bytes, and says what would.
func (x *Run) fits(free int64) error {
	err := x.Memory.check(free, x.there(x.Memory))
	if err == nil {
		return nil
	}
	if way := x.lighter(free); way != "" {
		return fmt.Errorf("%w; it fits with %s", err, way)
	}
	return fmt.Errorf("%w; it would not fit with the smallest batch either", err)
}

// there is what of a prediction is on the device already, and not in its free memory: the models, where they are loaded.
func (x *Run) there(m Memory) int64 {
	if x.paper {
		return 0
	}
	bytes := m.Parameters
	if x.guideHere() {
		bytes += int64(x.guide.model.Params.Mem.Bytes())
	}
	return bytes
}

// check refuses what can't fit; so many bytes of it are there already.
func (m Memory) check(free, there int64) error {
	need := m.Total() - there
	if free == 0 || need <= free {
		return nil
	}
	tokens := ""
	if m.Tokens > 0 {
		tokens = fmt.Sprintf("; so does a smaller model.max_length, or of new heads model.vector_dim: %s of the embeddings are tokens'", Size(m.Tokens))
	}
	more := " more"
	if there == 0 {
		more = ""
	}
	return fmt.Errorf("the run needs %s%s and the device has %s: a smaller batch.sub_batch (%s for one), batch.replay_budget (%s kept) or batch.global_size (%s of embeddings) helps%s",
		Size(need), more, Size(free), Size(m.Working), Size(m.Activations), Size(m.Embeddings), tokens)
}

// String is the total by its parts.
func (m Memory) String() string {
	text, before := Size(m.Total()), ": "
	for _, part := range m.parts() {
		if part.bytes > 0 {
			text, before = fmt.Sprintf("%s%s%s %s", text, before, part.name, Size(part.bytes)), ", "
		}
	}
	if m.HostSnapshot > 0 {
		text += fmt.Sprintf("; and of the host's memory %s for snapshots", Size(m.HostSnapshot))
	}
	return text
}

// Size prints an amount of memory for people.
func Size(b int64) string {
	switch {
	case b >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30))
	case b >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(b)/(1<<20))
	}
	return fmt.Sprintf("%.0f KiB", float64(b)/(1<<10))
}
