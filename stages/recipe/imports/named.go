package imports

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/goccy/go-yaml"

	"contraflow/io/dataset"
)

// Datasets are those of a trainer by name, in its order: round_robin takes them in turns, and evaluations tell of them so. A map[string]any in its place,
// which has no order, is read in that of the names.
type Datasets []Named

// Named is a dataset: files, or a mapping with their path.
type Named struct {
	Name string
	Of   any
}

// MarshalJSON is the mapping.
func (d Datasets) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, n := range d {
		of, err := json.Marshal(n.Of)
		if err != nil {
			return nil, err
		}
		name, _ := json.Marshal(n.Name) // a text always has one
		fmt.Fprintf(&b, "%c%s:%s", "{,"[min(i, 1)], name, of)
	}
	if len(d) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// byName is a mapping of datasets' names to datasets; one with a path is a dataset itself.
func byName(v any) (Datasets, bool) {
	switch v := v.(type) {
	case Datasets:
		return v, true
	case map[string]any:
		if v["path"] == nil {
			return inOrder(v, nil), true
		}
	}
	return nil, false
}

// inOrder has names in the order given, and those that are not in it behind them, by name.
func inOrder(m map[string]any, order []string) (d Datasets) {
	for _, name := range slices.Concat(order, slices.Sorted(maps.Keys(m))) {
		if of, ok := m[name]; ok && !slices.ContainsFunc(d, func(n Named) bool { return n.Name == name }) {
			d = append(d, Named{Name: name, Of: of})
		}
	}
	return d
}

// readParts reads the datasets that a setting names; mapped tells whether a mapping does. A list of files is one dataset, as those of load_dataset's data_files
// are, and as FlagEmbedding's are without same_dataset_within_batch. Names on the Hugging Face hub are a dataset each, as is what a list has mappings for.
func (r *recipe) readParts(key string, v any) (parts []part, mapped bool) {
	if named, ok := byName(v); ok {
		for _, d := range named {
			parts = append(parts, r.part(key, d.Name, d.Of))
		}
		return parts, true
	}
	all, list := v.([]any)
	if r.from == FlagEmbedding {
		if !list {
			all = []any{v}
		}
		if same, _ := r.yes("same_dataset_within_batch"); !same { // files are one dataset, whose rows batches mix
			return []part{r.part(key, "", all)}, false
		}
		for _, v := range all {
			alone := r.alone(v)
			for _, v := range r.filesApart(v) {
				p := r.part(key, "", v)
				p.alone = alone
				parts = append(parts, p)
			}
		}
		return parts, false
	}
	apart := slices.ContainsFunc(all, func(v any) bool {
		file, text := v.(string)
		return !text || dataset.HubName(file)
	})
	if !list || !apart {
		if len(all) > 1 {
			r.assume("the files of %s are one dataset, as load_dataset's data_files are: {NAME: FILES, ...} would be several", key)
		}
		return []part{r.part(key, "", v)}, false
	}
	for _, v := range all {
		parts = append(parts, r.part(key, "", v))
	}
	return parts, false
}

// keyOrders are the names in each mapping of a text, as it has them, by the names that lead to it.
type keyOrders map[string][]string

// below is where a mapping in a mapping stands.
func below(at, name string) string { return at + "\x00" + name }

// ofJSON reads the order of names in a text that json.Unmarshal has read. twice is a name that one mapping has more than once, of which
// json.Unmarshal keeps the last.
func (o keyOrders) ofJSON(d *json.Decoder, at string) (twice string) {
	t, err := d.Token()
	open, ok := t.(json.Delim)
	if err != nil || !ok {
		return ""
	}
	seen := map[string]bool{}
	for d.More() {
		in := at
		if open == '{' {
			k, _ := d.Token()
			name, _ := k.(string)
			if seen[name] {
				twice = name
			}
			seen[name] = true
			o[at] = append(o[at], name)
			in = below(at, name)
		}
		twice = cmp.Or(twice, o.ofJSON(d, in))
	}
	d.Token() // what closes it
	return twice
}

// ofYAML reads that of a mapping decoded in order.
func (o keyOrders) ofYAML(v any, at string) {
	m, _ := v.(yaml.MapSlice)
	for _, item := range m {
		name := fmt.Sprint(item.Key)
		o[at] = append(o[at], name)
		o.ofYAML(item.Value, below(at, name))
	}
}
