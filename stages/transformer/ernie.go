package transformer

import (
	"encoding/json"
	"fmt"
)

// ERNIE (Sun et al., arXiv 1907.12412; ernie-3.0, text2vec-base-chinese-paraphrase) is BERT, and may have embeddings of tasks besides. Nobody says
// what a text is for, so all tokens have those of task 0, as in transformers.

func init() {
	n := bertNames
	n.prefixes, n.task = []string{"ernie."}, "embeddings.task_type_embeddings"
	register(family{parse: parseERNIE, names: n, classifier: bertClassifier, mlm: bertMLM}, "ernie")
}

func parseERNIE(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		UseTaskID bool `json:"use_task_id"`
		TaskVocab int  `json:"task_type_vocab_size"`
	}{bertConfig: bertDefaults(), TaskVocab: 3}
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	out, err := c.config()
	if c.UseTaskID {
		if out.TaskVocab = c.TaskVocab; c.TaskVocab < 1 {
			return out, fmt.Errorf("task_type_vocab_size is %d, want a positive number", c.TaskVocab)
		}
	}
	return out, err
}
