package report

import (
	"slices"

	"contraflow/stages/recipe"
)

// differences lists the keys that recipes don't agree on, with each one's value.
func differences(runs []*Run) (rows [][]string, err error) {
	values := make([]map[string]string, len(runs))
	var keys []string
	for i, r := range runs {
		if values[i], err = recipe.Flatten(r.Name+"/recipe.yaml", []byte(r.Recipe)); err != nil {
			return nil, err
		}
		for k := range values[i] {
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		row, differ := []string{k}, false
		for i := range runs {
			row = append(row, values[i][k])
			differ = differ || values[i][k] != values[0][k]
		}
		if differ {
			rows = append(rows, row)
		}
	}
	return rows, nil
}
