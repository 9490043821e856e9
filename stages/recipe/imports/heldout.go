package imports

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// heldOutSetting names held-out rows.
const heldOutSetting = "eval_dataset"

// heldOut makes eval.loss of eval_dataset, which says what it is as train_dataset does. A dataset has the columns, prompts and loss of the one that
// trains by its name, or of all that train, where these are the same.
func (r *recipe) heldOut() {
	const key = heldOutSetting
	v, ok := r.has("eval_dataset")
	if !ok || off(v) {
		return
	}
	parts, _ := r.readParts(key, v)
	first := r.parts[0]
	one := !slices.ContainsFunc(r.parts, func(p part) bool {
		return !slices.Equal(p.columns, first.columns) || !reflect.DeepEqual(p.prompts, first.prompts) || len(r.parts) > 1 && p.loss != nil
	})
	var entries []string
	for _, p := range parts {
		like := first
		if i := slices.IndexFunc(r.parts, func(of part) bool { return of.name != "" && of.name == p.name }); i >= 0 {
			like = r.parts[i]
		} else if !one {
			r.without(key, "%s%s: datasets that train have different columns, prompts or losses, and it has the name of none of them", p.of(), strings.Join(p.files, ", "))
			continue
		}
		like.heldOut = true
		if like.files = p.files; len(like.columns) == 0 && r.from != FlagEmbedding {
			loss := r
			if like.loss != nil {
				loss = like.loss
			}
			like.columns = strings.Fields(cmp.Or(loss.peer().inputs, "anchor positive"))
		}
		entry := r.source(&like)
		if p.name != "" {
			entry = "{name: " + plain(p.name) + ", " + entry[1:]
		}
		entries = append(entries, entry)
	}
	if len(entries) == 0 {
		return
	}
	r.also("eval.loss", entries)
	if on, _ := r.yes("eval_on_start"); on {
		r.keys["eval.at_start"] = "true"
	}
	rows := cmp.Or(r.keys["batch.global_size"], "256")
	if n, ok := r.whole("per_device_eval_batch_size"); ok && num(float64(n)) != rows {
		r.assume("per_device_eval_batch_size is %d: the loss is measured in batches of batch.global_size, %s, which is another figure where other rows are negatives", n, rows)
	}
}

// measuresLoss tells whether there are rows that the loss is measured on.
func (r *recipe) measuresLoss() bool { return r.keys["eval.loss"] != "" }
