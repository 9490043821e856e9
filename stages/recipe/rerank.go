package recipe

import (
	"cmp"
	"fmt"
	"slices"

	"contraflow/gpustage"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/reranker"
	"contraflow/tokenize"
)

// A reranker trains on the graph of embedders; why, package stages tells. Where memory is short, batch.accumulate in place of
// batch.global_size costs no replay and gives the same gradient, for a group is computed of its own documents. With mnrl some of these are other rows' of the batch,
// which of a smaller one are fewer to draw from: that is another gradient.

func (l Loss) groups() loss.Groups {
	return loss.Groups{Name: loss.GroupLoss(l.Name), Scheme: l.Weighting, K: l.K, Sigma: l.Sigma, Alpha: l.Alpha, Mu: l.Mu, PosWeight: l.PosWeight, ByLabel: l.ByLabel, SelfDistill: l.SelfDistill, Scale: l.Scale, Activation: l.Activation}
}

// inBatch is how many documents of other rows a row gets: dataset.AllNegatives for all, 0 for losses of a row's own documents.
func (l Loss) inBatch() int {
	if l.reranker && l.Name == string(loss.GroupMNRL) {
		return int(l.NumNegatives)
	}
	return 0
}

// groupKinds are a reranker's losses.
var groupKinds = ofGroups()

func ofGroups() (all []lossKind) {
	options := map[loss.GroupLoss][]string{
		loss.GroupLambda: {"weighting", "mu", "k", "sigma"}, loss.GroupRankNet: {"k", "sigma"}, loss.GroupBCE: {"pos_weight"}, loss.GroupADRMSE: {"alpha"},
		loss.GroupListMLE: {"by_label"}, loss.GroupPListMLE: {"by_label"}, loss.GroupMNRL: {"num_negatives", "scale"},
	}
	for _, name := range loss.GroupLosses {
		k := lossKind{names: []string{string(name)}, options: options[name], reranker: true}
		if slices.Contains(loss.SelfDistilling, name) {
			k.options = append(k.options, "self_distill")
		}
		if slices.Contains(loss.Activating, name) {
			k.options = append(k.options, "activation")
		}
		k.readsLabel = name == loss.GroupBCE || name == loss.GroupMSE || name == loss.GroupMarginMSE
		k.readsScores = name != loss.GroupCrossEntropy && name != loss.GroupMNRL
		all = append(all, k)
	}
	return all
}

// checkReranker resolves what is otherwise for rerankers.
func (c *checker) checkReranker(r *Recipe) {
	m := &r.Model
	c.checkGroupTerms(&r.Loss, "loss")
	for i, s := range r.Data.Train {
		if s.Loss != nil {
			c.checkGroupTerms(s.Loss, r.lossKey(i))
		}
		c.checkGroupColumns(s, r.lossOf(i), fmt.Sprintf("data.train[%d].", i), r.lossKey(i))
		c.require(r.lossOf(i).inBatch() == 0 || r.Batch.GlobalSize != 1, "batch.global_size", "is 1, and %s.name: mnrl takes documents of other rows of a batch", r.lossKey(i))
	}
	if c.find("batch.no_duplicates") == nil {
		r.Batch.NoDuplicates = false // groups don't see each other, and of texts that are the same mnrl takes one
	}
	c.require(m.MaxLength.Query == m.MaxLength.Document, "model.max_length", "is one number for a reranker: query and document are read together")
	c.words("model.truncation", "longest_first", "only_second")
	c.words("model.template", tokenize.TemplateNames()...)
	c.words("model.head", "classifier", "tokens")
	for _, key := range []string{"pooling", "normalize"} {
		c.require(c.find("model."+key) == nil, "model."+key, "is for embedders: a reranker's head says how it pools")
	}
	c.require(len(r.Eval.Retrieval) == 0, "eval.retrieval", "embeds documents: a reranker is measured by eval.rerank")
}

// checkGroupColumns finds what a dataset lacks for a reranker's loss, or has beside it.
func (c *checker) checkGroupColumns(s Source, l Loss, key, at string) {
	c.require(s.Prompts == nil || s.Prompts.Positive == "" && s.Prompts.Negative == "", key+"prompts", "positive and negative are for embedders: a reranker must not see which is which")
	for at, l := range l.each(at) {
		if !slices.Contains(loss.GroupLosses, loss.GroupLoss(l.Name)) { // an error already
			continue
		}
		named := at + ".name: " + l.Name
		switch l.Name {
		case "margin_mse":
			c.require(len(s.Scores) > 0 || s.Label != "", key+"scores", "are missing: %s learns from a score of each document, or from their difference as label", named)
		case "kl", "distill", "list_net":
			c.require(len(s.Scores) > 0, key+"scores", "are missing: %s learns from a score of each document", named)
		case "cross_entropy", "mnrl": // of the first
		case "list_mle", "p_list_mle": // in their order
			c.require(s.Documents == "" || len(s.Scores) > 0 || !l.ByLabel, key+"scores", "are missing: %s with by_label ranks documents by a label of each", named)
		default:
			c.require(s.Documents == "" || len(s.Scores) > 0, key+"scores", "are missing: %s learns from a label of each document, and scores: names the column with a list of them; where the first document is the one that is relevant, cross_entropy needs none", named)
		}
		if s.Documents != "" {
			continue
		}
		if l.Name == "mnrl" {
			c.require(s.Label == "", key+"label", "is not for %s, to which a row's documents are right and other rows' are not: for pairs with labels there are bce and mse", named)
		} else if l.Name == "bce" || l.Name == "mse" {
			c.require(len(s.Negatives)+len(s.Scores) > 0 || s.Label != "", key+"label", "is missing: to %s all pairs would be equally right", named)
		} else {
			c.require(len(s.Negatives) > 0, key+"negatives", "are missing: %s compares a row's documents, and of one it learns nothing; for pairs with labels there are bce and mse, and documents: names a column with a list of them, of which scores: names one with a label of each", named)
		}
	}
	margins := len(s.Scores) == 0 // as labels
	for _, l := range l.each(at) {
		margins = margins && l.Name == "margin_mse"
	}
	c.require(s.Label == "" || len(s.Negatives) == 0 || margins, key+"label", "is for pairs, or margin_mse without scores: of rows with negatives, scores say how relevant each document is")
}

// checkGroups checks a reranker's loss at a key.
func (c *checker) checkGroups(l *Loss, at string) {
	if c.find(at+".name") == nil {
		l.Name = string(loss.GroupCrossEntropy)
	}
	if !c.lossName(at+".name", l) {
		return
	}
	c.words(at+".weighting", texts(loss.Schemes)...)
	c.options(l, at)
	l.GatherAcrossDevices = false
	c.words(at+".activation", texts(loss.Activations)...)
	if l.Name == string(loss.GroupMNRL) {
		l.NumNegatives, l.Activation = cmp.Or(l.NumNegatives, 4), cmp.Or(l.Activation, loss.Sigmoid)
		if c.find(at+".scale") == nil {
			l.Scale = 10
		}
		c.require(l.Scale > 0, at+".scale", "is %v, want a positive number", l.Scale)
	} else {
		l.Scale = 0 // which is an embedder's default
	}
	if err := l.groups().Check(); err != nil {
		c.fail(at, "%v", err)
	}
}

// openReranker finds out how pairs are read and scored.
func (x *Run) openReranker() error {
	m := x.Recipe.Model
	for i, src := range x.Recipe.Data.Train {
		spec, err := x.describeReranker(src.Prompts)
		if err != nil {
			return fmt.Errorf("model: %w", err)
		}
		if m.Head == "tokens" && len(spec.Scorer.Tokens) == 0 {
			return fmt.Errorf("model.head: tokens' logits need a language model: config.json says %q", x.folder.Architecture())
		}
		if p := m.Dropout; p != nil {
			spec.Scorer.DropoutOut = *p
			if spec.Scorer.DropoutIn > 0 {
				spec.Scorer.DropoutIn = *p
			}
		}
		if i == 0 {
			x.reranker = spec
		}
		x.text.Pairs = append(x.text.Pairs, spec.Pairs)
		if err := x.checkLayers(x.Recipe.lossOf(i), x.Recipe.lossKey(i)); err != nil {
			return err
		}
	}
	return nil
}

// checkLayers finds what a reranker's loss at a key has no use for in a model with so many scores.
func (x *Run) checkLayers(l Loss, at string) error {
	for key, t := range l.each(at) {
		if err := t.groups().CheckLayers(x.reranker.Scorer.Scores()); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
	}
	return nil
}

// describeReranker says how pairs with such prompts are read and scored; nil: with the folder's.
func (x *Run) describeReranker(p *Prompts) (*reranker.Spec, error) {
	m := x.Recipe.Model
	c, err := embedder.ConfigOf(x.folder, nil)
	if err != nil {
		return nil, err
	}
	var prompts *reranker.Prompts
	if p != nil {
		prompts = &reranker.Prompts{Query: p.Query, Document: p.Document}
	}
	return reranker.Describe(x.folder, x.tok, c, reranker.TextOptions{
		MaxLength: m.MaxLength.Document, Template: m.Template, Instruction: m.Instruction, Truncation: m.Truncation,
		Prompts: prompts, EveryLayer: true, NewHead: m.Head == "classifier", Seed: x.Recipe.Train.Seed,
	})
}

// saveReranker writes the model's folder.
func (x *Run) saveReranker(s gpustage.Stream, dir string) error {
	tensors, err := x.merged(s)
	if err != nil || !x.Main() {
		return err
	}
	if err := embedder.Round(tensors, x.Recipe.Save.Precision); err != nil {
		return fmt.Errorf("save.precision: %w", err)
	}
	card, err := x.card()
	if err != nil {
		return err
	}
	return reranker.Save(dir, x.folder, x.model, tensors, x.reranker, card)
}
