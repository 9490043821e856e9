package imports

import "fmt"

// rates makes optimizer.groups of what a trainer's learning_rate_mapping comes to, as trainer_settings.py finds it: parts of parameters' names, and their rates.
func (r *recipe) rates() {
	v, ok := r.has("rates")
	if !ok {
		return
	}
	var groups []string
	all, _ := v.([]any)
	for _, of := range all {
		g, _ := of.(map[string]any)
		names, _ := g["params"].([]any)
		lr, isNumber := g["lr"].(float64)
		var params []string
		for _, name := range names {
			params = append(params, plain(fmt.Sprint(name)))
		}
		if len(params) == 0 || !isNumber {
			r.wrong("rates", `[{"params": [parts of names], "lr": NUMBER}]`, v)
			return
		}
		groups = append(groups, fmt.Sprintf("{params: %s, lr: %s}", flow(params), num(lr)))
	}
	r.keys["optimizer.groups"] = flow(groups)
}
