package recipe

import (
	"fmt"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/transformer"
)

// Describe says in a few lines what a run is about to do and what it takes.
func (x *Run) Describe() string {
	var b strings.Builder
	r, m := x.Recipe, x.model
	gives := pooled(m)
	if x.vectors != nil {
		gives = fmt.Sprintf("vectors of tokens, %d features", x.config.Tokens.Dim)
	}
	fmt.Fprintf(&b, "model   %s: %s, %d layers of %d, %s parameters%s, %s\n", r.Model.Path, m.Config.Family, m.Config.Layers, m.Config.Hidden, count(m.Layout.Len), trained(m.Layout), gives)
	several := ""
	if n := len(x.data); n > 1 {
		several = fmt.Sprintf(" in %d datasets, %v", n, r.mixing())
	}
	if n := len(x.skipped); n > 0 {
		several += fmt.Sprintf(", %d of them skipped", n)
	}
	fmt.Fprintf(&b, "data    %s%s, %s, %s\n", spelling.Count(x.rows(), "row", "rows"), several, x.textsOfRows(), x.cuts())
	fmt.Fprintf(&b, "steps   %d, of %d x %s\n", x.Steps, r.Batch.Accumulate, spelling.Count(r.Batch.GlobalSize, "row", "rows"))
	for _, line := range x.when() {
		fmt.Fprintf(&b, "%-7s %s\n", line[0], line[1])
	}
	if flops, held := x.maxSim(); flops > 0 {
		fmt.Fprintf(&b, "maxsim  at most %.3g TFLOP and %s of tokens' vectors for all pairs of a batch\n", flops/1e12, Size(held))
	}
	if g := x.guide; g != nil {
		_, said := r.guide()
		fmt.Fprintf(&b, "guide   %s: %s, %d layers of %d, %s parameters, on %s\n", said.Path, g.model.Config.Family, g.model.Config.Layers, g.model.Config.Hidden, count(g.model.Layout.Len), g.device.Name())
	}
	fmt.Fprintf(&b, "device  %s, %s: %s\n", x.deviceName(), r.Train.computesIn(), x.device.Info().Description)
	if x.ranks != nil {
		fmt.Fprintf(&b, "mesh    %v\n", x.ranks.Comm.Mesh)
		if text := describeSharding("at most ", x.holdings(x.mostTraffic)); text != "" {
			fmt.Fprintf(&b, "shards  %s\n", text)
		}
	}
	fmt.Fprintf(&b, "memory  %s", x.describeMemory())
	return b.String()
}

// deviceName is the device's; of several ranks, which number theirs as they come, its kind and how many of them there are.
func (x *Run) deviceName() string {
	if x.ranks.Size() == 1 {
		return x.device.Name()
	}
	kind, _, _ := strings.Cut(x.device.Name(), ":")
	return fmt.Sprintf("%s on each of %d ranks", kind, x.ranks.Size())
}

// describeMemory is the prediction by its parts.
func (x *Run) describeMemory() string {
	of := ""
	if x.ranks != nil {
		of = " on each device"
	}
	if x.device.Info().Threads > 0 { // the device's memory is the process's
		of += ", besides the program and the data that it reads"
	}
	total, parts, _ := strings.Cut(x.Memory.String(), ": ")
	return fmt.Sprintf("at most %s%s: %s", total, of, parts)
}

// cuts says where texts end.
func (x *Run) cuts() string {
	q, d := x.text.QueryLength, x.text.DocumentLength
	switch {
	case x.reranker != nil && d > 0:
		return fmt.Sprintf("pairs cut at %d tokens", d)
	case q == 0 && d == 0:
		return "read as a whole"
	case q == 0 || d == 0:
		return fmt.Sprintf("read to %s tokens (queries) and %s", limit(q), limit(d))
	}
	return fmt.Sprintf("cut at %d (queries) and %d tokens", q, d)
}

// trained says how many parameters train, if not all do.
func trained(l *transformer.Layout) string {
	if l.Frozen == 0 {
		return ""
	}
	percent := 100 * float64(l.Trained()) / float64(l.Len)
	verb := "%.2g"
	if percent >= 10 { // which would write 1e+02 of 99.6
		verb = "%.0f"
	}
	return fmt.Sprintf(" of which %s train ("+verb+" %%)", count(l.Trained()), percent)
}

// count prints a number of parameters.
func count(n int) string {
	if n >= 1e6 {
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	}
	return fmt.Sprintf("%.0f k", float64(n)/1e3)
}

// Facts are the figures of what Describe says, by the names that run.json has for them.
type Facts struct {
	Model          string
	Family         string
	Layers, Hidden int
	Parameters     int
	Trained        int
	Rows           int64
	Datasets       int
	Steps          int
	GlobalSize     int // rows of a batch
	Accumulate     int // batches of a step
	Device         string
	Mesh           string // "": one rank
	Predicted      int64  // bytes of memory
}

// Facts are what a run is about to do.
func (x *Run) Facts() Facts {
	c, l := x.model.Config, x.model.Layout
	f := Facts{
		Model: x.Recipe.Model.Path, Family: c.Family, Layers: c.Layers, Hidden: c.Hidden, Parameters: l.Len, Trained: l.Trained(), Rows: x.rows(), Datasets: len(x.data),
		Steps: x.Steps, GlobalSize: x.Recipe.Batch.GlobalSize, Accumulate: x.Recipe.Batch.Accumulate, Device: x.deviceName(), Predicted: x.Memory.Total(),
	}
	if x.ranks != nil {
		f.Mesh = fmt.Sprint(x.ranks.Comm.Mesh)
	}
	return f
}

// Rates are pairs and tokens per second of the steps that were made since the run began, or was resumed, without its evaluations; 0 of a run that made none.
func (s *Summary) Rates() (pairs, tokens float64) {
	seconds := s.Seconds - s.Evaluating
	if seconds <= 0 {
		return 0, 0
	}
	return float64(s.Pairs-s.before.Pairs) / seconds, float64(s.Tokens-s.before.Tokens) / seconds
}

// String sums a run up.
func (s *Summary) String() string {
	var b strings.Builder
	if s.Over {
		if s.Eval != nil {
			fmt.Fprintln(&b, s.Eval)
		}
		fmt.Fprintf(&b, "the run was over already, after step %d: its model is in %s", s.Steps, s.Model)
		return b.String()
	}
	made := spelling.Count(s.Steps, "step", "steps")
	if s.from > 0 {
		made += fmt.Sprintf(", the last %d of them", s.Steps-s.from)
	}
	evaluating := ""
	if s.Evaluating > 0 {
		evaluating = fmt.Sprintf(", %.1f s of them evaluations", s.Evaluating)
	}
	pairs, tokens := s.Rates()
	fmt.Fprintf(&b, "%s in %.1f s%s: loss %.4f, %.0f pairs/s, %.0f tokens/s, peak memory %s%s\n", made, s.Seconds, evaluating, s.Loss, pairs, tokens, s.peakOf, Size(s.PeakBytes))
	if c := s.Communication; c.Total > 0 {
		fmt.Fprintf(&b, "communication %.1f s, %.0f %% of it hidden behind computation, %s sent by this rank\n", c.Total.Seconds(), 100*c.HiddenShare(), Size(int64(c.Bytes)))
	}
	if s.Truncated > 0 {
		fmt.Fprintf(&b, "%s longer than model.max_length and cut, of %s read: a text counts as often as it was read\n", spelling.Count(s.Truncated, "text was", "texts were"), spelling.Count(s.Pairs, "row", "rows"))
	}
	if s.Fewer > 0 {
		fmt.Fprintf(&b, "%d of %s found fewer documents of others in their batch than num_negatives asks for, texts that are the same being one\n", s.Fewer, spelling.Count(s.Pairs, "row", "rows"))
	}
	if s.Bare > 0 {
		fmt.Fprintf(&b, "%d of %s had no document but their own, and taught nothing\n", s.Bare, spelling.Count(s.Pairs, "row", "rows"))
	}
	if s.Dropped > 0 {
		fmt.Fprintf(&b, "%s left out, and %d read, over all epochs: %s\n", spelling.Count(s.Dropped, "row was", "rows were"), s.Pairs, s.DroppedBy)
	}
	if s.NotFinite > 0 {
		fmt.Fprintf(&b, "%s not finite and changed nothing (train.on_nan)\n", spelling.Count(s.NotFinite, "step was", "steps were"))
	}
	if s.Skipped > 0 {
		fmt.Fprintf(&b, "%s skipped (data.on_error): skipped.jsonl says which and why\n", spelling.Count(s.Skipped, "row can't be used and was", "rows can't be used and were"))
	}
	if s.Eval != nil && s.BestStep > 0 && s.BestStep != s.Eval.Step {
		kept := "saved"
		if s.Stopped {
			kept = "kept in best/"
		}
		fmt.Fprintf(&b, "%s %.4f at step %d, whose model is %s; %.4f at last\n", s.Eval.what(), s.Best, s.BestStep, kept, s.Eval.Value)
	} else if s.Eval != nil {
		fmt.Fprintln(&b, s.Eval)
	}
	if s.Stopped {
		fmt.Fprintf(&b, "stopped after step %d, as asked: train --resume goes on from there", s.Steps)
	} else {
		fmt.Fprintf(&b, "model saved in %s", s.Model)
	}
	return b.String()
}

// reads says how the saved model reads queries or documents where training has read them otherwise: most folders' formats have one length. "": it
// reads both as training did.
func (x *Run) reads() string {
	q, d := x.text.QueryLength, x.text.DocumentLength
	if x.reranker != nil || x.vectors != nil || x.config.Queries.There || q == d {
		return ""
	}
	few, many, what, like, flags := q, d, "queries", "documents", fmt.Sprintf("--query-max-length %d", q)
	if q == 0 || d > 0 && q > d {
		few, many, what, like, flags = d, q, like, what, fmt.Sprintf("--max-length %d --query-max-length %d", d, q)
	}
	text := fmt.Sprintf("the saved model reads %s to %s tokens, as %s, for its folder's format has one max_seq_length; training has cut them at %d", what, limit(many), like, few)
	if q > 0 {
		text += ", and so does contraflow eval " + flags
	}
	return text
}

// leavesOut says why rows of an epoch may be left out.
func (r Recipe) leavesOut() string {
	var why []string
	if r.Data.Mixing.Kind == dataset.RoundRobin && len(r.Data.Train) > 1 {
		why = append(why, "an epoch ends with the shortest dataset (data.mixing: round_robin)")
	}
	switch {
	case r.Batch.DropLast && r.Batch.NoDuplicates:
		why = append(why, "what an epoch ended with did not fill a batch, or shared texts with too many other rows (batch.drop_last, batch.no_duplicates)")
	case r.Batch.DropLast:
		why = append(why, "what an epoch ended with did not fill a batch (batch.drop_last)")
	}
	return strings.Join(why, "; ")
}
