package imports

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// scheduler is what one of transformers' schedules is here.
type scheduler struct {
	name    string            // of the recipe's schedule; "": decay_type
	options map[string]string // its options of lr_scheduler_kwargs, by the recipe's names
}

// schedulers are those of transformers 5, and 4, whose names they have kept. Defaults that differ are rules of schedule.
var schedulers = map[string]scheduler{
	"linear":                    {name: "linear"},
	"constant":                  {name: "constant"},
	"constant_with_warmup":      {name: "constant"},
	"cosine":                    {name: "cosine", options: map[string]string{"num_cycles": "waves"}},
	"cosine_with_restarts":      {name: "cosine", options: map[string]string{"num_cycles": "cycles"}},
	"cosine_with_min_lr":        {name: "cosine", options: map[string]string{"num_cycles": "waves", "min_lr_rate": "min_ratio"}},
	"cosine_warmup_with_min_lr": {name: "cosine", options: map[string]string{"num_cycles": "waves", "min_lr_rate": "min_ratio", "warmup_lr_rate": "warmup_from"}},
	"polynomial":                {name: "polynomial", options: map[string]string{"power": "power"}},
	"inverse_sqrt":              {name: "inverse_sqrt", options: map[string]string{"timescale": "timescale"}},
	"warmup_stable_decay":       {options: map[string]string{"num_cycles": "waves", "num_decay_steps": "decay_steps", "num_stable_steps": "stable_steps", "min_lr_ratio": "min_ratio"}},
}

// schedule sets the learning rate's, and tells whether it is one without a warm-up, whatever other settings say.
func (r *recipe) schedule(lr float64) (steady bool) {
	kwargs := r.schedulerOptions()
	kind, ok := r.word("lr_scheduler_type")
	if !ok {
		kind = "linear" // transformers' default
	}
	kind = strings.ToLower(kind[strings.LastIndexByte(kind, '.')+1:])
	theirs, known := schedulers[kind]
	if !known {
		switch kind {
		case "reduce_lr_on_plateau", "greedy":
			r.without("lr_scheduler_type", "%s; the learning rate goes by the step alone, not by how losses or evaluations do. linear is taken", kind)
		default:
			r.without("lr_scheduler_type", "%s, which transformers does not have; linear is taken", kind)
		}
		if len(kwargs.settings) > 0 {
			r.without("lr_scheduler_kwargs", "they are %s's, and linear is taken", kind)
		}
		return false
	}
	name, options := theirs.name, map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(theirs.options)) {
		if v, ok := kwargs.number(k); ok {
			options[theirs.options[k]] = num(v)
		}
	}
	const rises = "which rises to it there"
	level := false                                            // it never falls
	atLeast := func(option string, v float64, there string) { // a part of the learning rate
		switch level = !(v < lr); {
		case v == lr && there == rises:
			r.assume("%s of lr_scheduler_kwargs is the learning rate itself, which stays as it is after the warm-up", option)
			return
		case level:
			r.without("lr_scheduler_kwargs", "%s: %s is not less than learning_rate, %s, %s: here it stays as it is after the warm-up", option, num(v), num(lr), there)
			return
		}
		options["min_ratio"] = strconv.FormatFloat(v/lr, 'g', 15, 64) // 0.01, and not a bit less
	}
	switch kind {
	case "polynomial":
		end, ok := kwargs.number("lr_end")
		if !ok {
			end = 1e-7 // its default
		}
		atLeast("lr_end", end, "which transformers refuses")
	case "cosine_with_min_lr", "cosine_warmup_with_min_lr":
		if v, ok := kwargs.number("min_lr"); ok {
			if _, both := options["min_ratio"]; both {
				r.assume("lr_scheduler_kwargs have min_lr and min_lr_rate, which transformers refuses: min_lr is taken")
			}
			atLeast("min_lr", v, rises)
		} else if rate, ok := kwargs.number("min_lr_rate"); ok && rate >= 1 {
			atLeast("min_lr_rate", rate*lr, rises)
		} else if !ok {
			r.assume("lr_scheduler_type is %s, and lr_scheduler_kwargs have neither min_lr nor min_lr_rate, without which transformers refuses it: the learning rate falls to 0", kind)
		}
		if kind == "cosine_warmup_with_min_lr" {
			options["ahead"] = "true"
			if options["warmup_from"] == "0" {
				r.without("lr_scheduler_kwargs", "warmup_lr_rate: 0: with optimizer.schedule.ahead the first step of a warm-up of n steps has 1/n of the learning rate, and there it has none")
			}
		}
	case "warmup_stable_decay":
		name = "cosine" // its default
		if s, ok := kwargs.word("decay_type"); ok {
			name = s
		}
		if s, ok := kwargs.word("warmup_type"); ok && s != "linear" {
			options["warmup"] = plain(s)
		}
		if v, ok := options["min_ratio"]; ok {
			options["warmup_from"] = v
		}
		switch options["decay_steps"] {
		case "":
			r.assume("lr_scheduler_type is %s, and lr_scheduler_kwargs have no num_decay_steps, without which transformers refuses it: the learning rate falls from the warm-up on; optimizer.schedule.decay_steps or decay_ratio says when it begins to", kind)
		case "0": // and so it never falls
			name = "constant"
			for _, k := range []string{"decay_steps", "stable_steps", "waves", "min_ratio"} {
				delete(options, k)
			}
		}
		if name != "cosine" {
			delete(options, "waves")
		}
	}
	if level {
		name = "constant"
		for _, k := range []string{"waves", "power", "min_ratio"} {
			delete(options, k)
		}
	}
	for k, theirs := range map[string]string{"waves": "0.5", "cycles": "1", "power": "1", "min_ratio": "0", "warmup_from": "0"} {
		if options[k] == theirs { // the default, here and there
			delete(options, k)
		}
	}
	var left []string
	for _, k := range slices.Sorted(maps.Keys(kwargs.settings)) {
		if !kwargs.used[k] {
			left = append(left, k)
		}
	}
	if len(left) > 0 {
		r.without("lr_scheduler_kwargs", "%s has no %s", kind, strings.Join(left, ", "))
	}
	for _, e := range kwargs.errs {
		r.fail("lr_scheduler_kwargs: %s", e)
	}
	if len(options) == 0 {
		r.set("optimizer.schedule", name, "linear")
	} else {
		parts := []string{"name: " + plain(name)}
		for _, k := range []string{"cycles", "waves", "power", "timescale", "min_ratio", "stable_steps", "decay_steps", "warmup", "warmup_from", "ahead"} {
			if v, ok := options[k]; ok {
				parts = append(parts, k+": "+v)
			}
		}
		r.keys["optimizer.schedule"] = "{" + strings.Join(parts, ", ") + "}"
	}
	return kind == "constant"
}

// schedulerOptions are lr_scheduler_kwargs: a mapping, which a command line has as JSON.
func (r *recipe) schedulerOptions() *recipe {
	o := &recipe{from: r.from, settings: Settings{}, used: map[string]bool{}, asked: map[string]bool{}}
	v, ok := r.has("lr_scheduler_kwargs")
	if !ok || off(v) {
		return o
	}
	switch v := v.(type) {
	case map[string]any:
		o.settings = v
		return o
	case string:
		if json.Unmarshal([]byte(v), &o.settings) == nil && o.settings != nil {
			return o
		}
		o.settings = Settings{}
	}
	r.wrong("lr_scheduler_kwargs", fmt.Sprintf("a mapping such as %s", show(map[string]any{"num_cycles": 2})), v)
	return o
}
