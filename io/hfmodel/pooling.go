package hfmodel

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// PoolingMode says how the token vectors of a text become its embedding.
type PoolingMode string

const (
	CLS  PoolingMode = "cls"  // the first token's vector
	Mean PoolingMode = "mean" // the mean over all tokens, special ones included
	Last PoolingMode = "last" // the last token's vector
)

// Pooling is the module's configuration.
type Pooling struct {
	Mode      PoolingMode
	Dimension int // of the token vectors, and so of the embedding
	// IncludePrompt: the prompt's tokens take part in pooling. False only in models such as INSTRUCTOR.
	IncludePrompt bool
}

// stModes are sentence-transformers' names of the modes: the key of the form before 6, and the name since. The order is
// that in which it concatenates several.
var stModes = []struct {
	key, name string
	mode      PoolingMode // "": not supported
}{
	{"pooling_mode_cls_token", "cls", CLS},
	{"pooling_mode_max_tokens", "max", ""},
	{"pooling_mode_mean_tokens", "mean", Mean},
	{"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", ""},
	{"pooling_mode_weightedmean_tokens", "weightedmean", ""},
	{"pooling_mode_lasttoken", "lasttoken", Last},
}

// readPooling reads the Pooling module's config.json, if there is such a module.
func (f *Folder) readPooling() error {
	at := slices.IndexFunc(f.Modules, func(m Module) bool { return m.Kind() == "Pooling" })
	if at < 0 {
		return nil
	}
	file := filepath.Join(f.Dir, filepath.FromSlash(f.Modules[at].Path), "config.json")
	o, err := readObject(file)
	if err != nil {
		return err
	}
	p, err := parsePooling(o)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if hidden := f.configInt("hidden_size"); hidden != 0 && hidden != p.Dimension {
		of := f
		if f.Base != nil {
			of = f.Base
		}
		return fmt.Errorf("%s: dimension %d, but %s has hidden_size %d", file, p.Dimension, filepath.Join(of.TransformerDir, "config.json"), hidden)
	}
	if strings.Contains(filepath.ToSlash(f.Dir)+"/", "/models--hkunlp--instructor-") {
		p.IncludePrompt = false // sentence-transformers goes by the hub's name; its folders do not say
	}
	f.Pooling, f.poolingJSON = p, o
	return nil
}

// parsePooling reads both forms: "pooling_mode" (a name or a list of names), or else one boolean per mode.
func parsePooling(o *object) (*Pooling, error) {
	p := &Pooling{IncludePrompt: true}
	for _, key := range []string{"embedding_dimension", "word_embedding_dimension"} {
		if ok, err := o.get(key, &p.Dimension); err != nil {
			return nil, err
		} else if ok {
			break
		}
	}
	if p.Dimension <= 0 {
		return nil, errors.New("no embedding_dimension (or word_embedding_dimension) above 0")
	}
	if _, err := o.get("include_prompt", &p.IncludePrompt); err != nil {
		return nil, err
	}
	names, err := poolingNames(o)
	if err != nil {
		return nil, err
	}
	if len(names) > 1 {
		return nil, fmt.Errorf("a combination of pooling modes (%s) is not supported; cls, mean and lasttoken alone are",
			strings.Join(names, ", "))
	}
	for _, m := range stModes {
		if m.name != names[0] {
			continue
		}
		if m.mode == "" {
			return nil, fmt.Errorf("pooling mode %s is not supported; cls, mean and lasttoken are", m.name)
		}
		p.Mode = m.mode
		return p, nil
	}
	return nil, fmt.Errorf("pooling mode %q is unknown", names[0])
}

// poolingNames lists the modes that are on, by their names since 6. None means the mean, as in sentence-transformers.
func poolingNames(o *object) (names []string, err error) {
	var raw json.RawMessage
	if ok, _ := o.get("pooling_mode", &raw); ok {
		var one string
		if json.Unmarshal(raw, &one) == nil {
			return []string{one}, nil
		}
		if json.Unmarshal(raw, &names) != nil || len(names) == 0 {
			return nil, fmt.Errorf("pooling_mode: got %s, want a name or a list of names", short(raw))
		}
		return names, nil
	}
	for _, m := range stModes {
		var on bool
		if _, err := o.get(m.key, &on); err != nil {
			return nil, err
		}
		if on {
			names = append(names, m.name)
		}
	}
	if len(names) == 0 {
		return []string{"mean"}, nil
	}
	return names, nil
}

// encodePooling writes the form before 6, which every version reads. Keys of base that are no pooling mode are kept.
func encodePooling(p Pooling, base *object) []byte {
	o := base.clone()
	o.remove("embedding_dimension")
	o.remove("pooling_mode")
	o.set("word_embedding_dimension", p.Dimension)
	for _, m := range stModes {
		o.set(m.key, m.mode == p.Mode)
	}
	o.set("include_prompt", p.IncludePrompt)
	return o.bytes()
}
