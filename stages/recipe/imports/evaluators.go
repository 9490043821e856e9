package imports

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"contraflow/io/dataset"
)

// evaluators takes what trainer_settings.py makes of a trainer's evaluators: tasks of the eval section, each a list of mappings, and under other what there is none for.
func (r *recipe) evaluators() {
	m, ok := r.settings["evaluator"].(map[string]any)
	if !ok {
		return // a class's name, of which nothing is known
	}
	r.used["evaluator"] = true
	for _, task := range slices.Sorted(maps.Keys(m)) {
		all, _ := m[task].([]any)
		if len(all) == 0 {
			r.wrong("evaluator: "+task, "a list, as trainer_settings.py writes one", m[task])
			continue
		}
		switch task {
		case "metric":
			r.keys["eval.metric"] = plain(fmt.Sprint(all[0]))
			r.assume("TranslationEvaluator's accuracy is %v: eval.metric, where metric_for_best_model says no other, by which all of eval.retrieval is measured", all[0])
			continue
		case "compared", "prompted":
			here := map[string]string{"compared": "all tasks here compare as the model does", "prompted": "a reranker's tasks have the prompt that trains"}[task]
			for _, how := range all {
				r.assume("%v: %s", how, here)
			}
			continue
		case "other":
			for _, kind := range all {
				r.without("evaluator", "%v: there is eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases and eval.candidates, and no such", kind)
			}
			continue
		}
		var entries []string
		for _, of := range all {
			if entry, ok := of.(map[string]any); ok && task == "nanobeir" {
				r.nanoTasks(entry)
			}
			entries = append(entries, inFlow(of))
		}
		if task == "loss" {
			r.assume("MSEEvaluator's negative_mse is -100 times eval.loss, which is none of the tasks that a mean is of: it decides with eval.metric: loss")
		} else {
			r.measured += len(entries)
		}
		if r.pairs && (task == "sts" || task == "pair_classification") {
			r.assume("eval.%s is of the model's scores before activation_fn (a sigmoid, if nobody says another): they are in the same order, but Pearson's correlation and thresholds differ", task)
		}
		if r.also("eval."+task, entries); r.keys["eval."+task] == "{}" { // all of NanoBEIR's
			r.keys["eval."+task] = "true"
		}
	}
	if r.measured > 1 {
		r.assume("of %d evaluators the mean counts for save.best and early stopping, where metric_for_best_model is one's, or a SequentialEvaluator has the last one's or what its main_score_function says", r.measured)
	}
}

// also gives a key entries besides those that it has: one stands alone, several are a list.
func (r *recipe) also(key string, entries []string) {
	const each = "\n    - "
	if has := r.keys[key]; has != "" {
		entries = append([]string{strings.TrimPrefix(has, each)}, entries...)
	}
	if r.keys[key] = strings.Join(entries, each); len(entries) > 1 {
		r.keys[key] = each + r.keys[key]
	}
}

// nanoTasks leaves out of a mapping what an evaluator of NanoBEIR has if nobody says anything else.
func (r *recipe) nanoTasks(of map[string]any) {
	if of["dataset"] == "sentence-transformers/NanoBEIR-en" {
		delete(of, "dataset")
	}
	named, _ := of["tasks"].([]any)
	if len(named) == len(dataset.NanoTasks(r.pairs)) {
		delete(of, "tasks")
	}
	if of["top"] == 100.0 {
		delete(of, "top")
	}
	if of["found"] == false {
		delete(of, "found")
	}
}

// inFlow writes a value of JSON in one line: names and paths first.
func inFlow(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, k := range slices.SortedFunc(maps.Keys(v), func(a, b string) int { return strings.Compare(inFlowRank(a), inFlowRank(b)) }) {
			parts = append(parts, k+": "+inFlow(v[k]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, inFlow(x))
		}
		return flow(parts)
	case string:
		return plain(v)
	case float64:
		return num(v)
	}
	return fmt.Sprint(v)
}

func inFlowRank(k string) string {
	if i := slices.Index([]string{"name", "path", "queries", "corpus"}, k); i >= 0 {
		return fmt.Sprint(i)
	}
	return "~" + k
}
