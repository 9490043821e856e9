package report

import (
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
)

// differences lists the keys that recipes don't agree on, with each one's value.
func differences(runs []*Run) (rows [][]string) {
	values := make([]map[string]string, len(runs))
	var keys []string
	for i, r := range runs {
		values[i] = map[string]string{}
		var tree yaml.MapSlice
		if yaml.UnmarshalWithOptions([]byte(r.Recipe), &tree, yaml.UseOrderedMap()) != nil {
			tree = yaml.MapSlice{{Key: "recipe.yaml", Value: "unreadable"}}
		}
		flatten("", tree, func(key, value string) {
			values[i][key] = value
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		})
	}
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
	return rows
}

// flatten calls put with every leaf: data.train[0].path.
func flatten(at string, v any, put func(key, value string)) {
	switch v := v.(type) {
	case yaml.MapSlice:
		for _, item := range v {
			key := fmt.Sprint(item.Key)
			if at != "" {
				key = at + "." + key
			}
			flatten(key, item.Value, put)
		}
	case []any:
		for i, x := range v {
			flatten(fmt.Sprintf("%s[%d]", at, i), x, put)
		}
	default:
		put(at, fmt.Sprint(v))
	}
}
