package transformer

import "encoding/json"

// ERNIE (Sun et al., arXiv 1904.09223; ernie-3.0) is BERT, and may have embeddings of tasks besides, which are not here.

func init() {
	n := bertNames
	n.prefixes = []string{"ernie."}
	register(family{parse: parseERNIE, names: n}, "ernie")
}

func parseERNIE(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		UseTaskID bool `json:"use_task_id"`
	}{bertConfig: bertDefaults()}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	if c.UseTaskID {
		return Config{}, unsupported("use_task_id", "true")
	}
	return c.config()
}
