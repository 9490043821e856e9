// Package imports turns other programs' training settings into recipes.
//
// Two kinds are known: the arguments of a sentence-transformers trainer (SentenceTransformerTrainingArguments and what surrounds them, as a
// JSON or YAML mapping) and a FlagEmbedding command line. Both are lists of settings by name, many of which they share because
// transformers' TrainingArguments are below both. Each name has one entry in a table: it sets a key of the recipe, is known to
// have no counterpart (and why), or to make no difference. A name without an entry is reported, never ignored.
//
// What a setting means depends on others: a batch size is per device there and over all devices here, a learning-rate schedule may be
// left to a default that differs. So the result says in comments what was assumed.
package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Settings are a program's, by name. Values are what JSON has: bool, float64, string, []any, map[string]any, nil. That called module is the
// program itself, FlagEmbedding.finetune.reranker.encoder_only.base for one: what it trains, and with which defaults.
type Settings map[string]any

// Result is a recipe and what became of the settings.
type Result struct {
	Recipe  string   // YAML, with all of the following in comments
	Assumed []string // what the settings don't say
	Without []string // settings that have no counterpart, each with what that means
	Unknown []string // names that neither program has, each with the nearest that one has, if one is near
	Open    []string // what somebody has to put into the recipe before it is one to train with: "a model in place of MODEL"
}

// Source is whose settings they are.
type Source int

const (
	SentenceTransformers Source = iota
	FlagEmbedding
)

func (s Source) String() string {
	return [...]string{"sentence-transformers", "FlagEmbedding"}[s]
}

// recipe collects keys in sections, in the order of the recipe.
type recipe struct {
	from     Source
	settings Settings
	devices  int
	parts    []part            // of data.train
	apart    bool              // they have losses of their own
	surely   bool              // the arguments say that they are an embedder's
	pairs    bool              // they are a CrossEncoder's
	measured int               // evaluators whose data are said
	group    int               // of FlagEmbedding's: a positive and its negatives
	keys     map[string]string // full key: YAML
	used     map[string]bool
	asked    map[string]bool // names that a rule has looked for
	result   Result
	errs     []string
}

// Convert makes a recipe. devices is how many processes trained together there; 0 means what a trainer's settings say, or 1. A setting of the wrong type is an error.
func Convert(from Source, s Settings, devices int) (*Result, error) {
	r := &recipe{from: from, settings: s, devices: max(1, devices), keys: map[string]string{}, used: map[string]bool{}, asked: map[string]bool{}}
	if n, ok := r.whole("devices"); ok && devices == 0 && from == SentenceTransformers {
		r.devices = max(1, n)
	}
	r.separate()
	r.embeds()
	if len(r.errs) > 0 {
		return nil, errors.New(strings.Join(r.errs, "\n"))
	}
	r.model()
	r.data()
	r.batch()
	r.loss()
	r.guidePrompts()
	r.pairMeans()
	r.optimizer()
	r.heldOut()
	r.rest()
	r.remaining()
	r.variables()
	if len(r.errs) > 0 {
		return nil, errors.New(strings.Join(r.errs, "\n"))
	}
	for _, said := range [][]string{r.result.Assumed, r.result.Without, r.result.Unknown} {
		for i, s := range said { // each is a comment of one line
			said[i] = strings.Join(strings.Fields(s), " ")
		}
	}
	r.result.Recipe = r.text()
	return &r.result, nil
}

// has gives a setting that is there and not null, and marks it as understood.
func (r *recipe) has(name string) (any, bool) {
	r.asked[name] = true
	v, ok := r.settings[name]
	if ok {
		r.used[name] = true
	}
	return v, ok && v != nil
}

func (r *recipe) wrong(name, want string, v any) {
	hint := ""
	if r.from == FlagEmbedding && variable(show(v)) != "" {
		hint = ": what the shell puts there can't be read here: write it in its place"
	}
	r.fail("%s: want %s, got %s%s", name, want, show(v), hint)
}

// show writes a setting as its file may have it.
func show(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil { // YAML has what JSON hasn't
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}

// fail adds an error, once.
func (r *recipe) fail(format string, args ...any) {
	r.errs = once(r.errs, fmt.Sprintf(format, args...))
}

// once adds what isn't there yet: what is said of each dataset may be the same.
func once(all []string, s string) []string {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

// number reads a number, which a command line has as text.
func (r *recipe) number(name string) (float64, bool) {
	v, ok := r.has(name)
	if !ok {
		return 0, false
	}
	f, ok := asNumber(v)
	if !ok {
		r.wrong(name, "a number", v)
	}
	return f, ok
}

func asNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	case uint64:
		return float64(v), true
	case int64:
		return float64(v), true
	case string:
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f, true
		}
	}
	return 0, false
}

func (r *recipe) whole(name string) (int, bool) {
	f, ok := r.number(name)
	if ok && (f != math.Trunc(f) || math.Abs(f) > 1<<53) {
		r.wrong(name, "a whole number", f)
		return 0, false
	}
	return int(f), ok
}

func (r *recipe) word(name string) (string, bool) {
	v, ok := r.has(name)
	if !ok {
		return "", false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case map[string]any, []any:
		r.wrong(name, "a text", v)
		return "", false
	}
	return fmt.Sprint(v), true
}

// yes reads true or false; a flag without a value is true.
func (r *recipe) yes(name string) (value, ok bool) {
	v, ok := r.has(name)
	if !ok {
		return false, false
	}
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		switch strings.ToLower(v) {
		case "", "true", "yes", "y", "1", "t":
			return true, true
		case "false", "no", "n", "0", "f":
			return false, true
		}
	}
	r.wrong(name, "true or false", v)
	return false, false
}

// list reads one text or several.
func (r *recipe) list(name string) (out []string) {
	v, ok := r.has(name)
	if !ok {
		return nil
	}
	if vs, ok := v.([]any); ok {
		for _, x := range vs {
			if x == nil {
				r.wrong(name, "texts", v)
				return nil
			}
			out = append(out, fmt.Sprint(x))
		}
		return out
	}
	return []string{fmt.Sprint(v)}
}

// set gives a key its value, unless that is the recipe's default.
func (r *recipe) set(key, value, fallback string) {
	if value != fallback {
		r.keys[key] = value
	}
}

func (r *recipe) assume(format string, args ...any) {
	r.result.Assumed = once(r.result.Assumed, fmt.Sprintf(format, args...))
}

// open says what somebody has to put into the recipe.
func (r *recipe) open(what, placeholder string) {
	r.result.Open = once(r.result.Open, what+" in place of "+placeholder)
}

func (r *recipe) without(name, format string, args ...any) {
	r.used[name] = true
	r.result.Without = once(r.result.Without, name+": "+fmt.Sprintf(format, args...))
}

func num(f float64) string  { return strconv.FormatFloat(f, 'g', -1, 64) }
func quote(s string) string { return strconv.Quote(s) }

func flow(items []string) string { return "[" + strings.Join(items, ", ") + "]" }

// unquoted is what is a text, or a number where one is asked for, in YAML as it stands.
var unquoted = regexp.MustCompile(`^([\pL_][\pL\pN_./-]*|[0-9]+(\.[0-9]+)?)$`)

// plain writes somebody else's word: in quotes where YAML would take it for something else, or for more than itself.
func plain(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "y", "n", "null":
		return quote(s)
	}
	if unquoted.MatchString(s) {
		return s
	}
	return quote(s)
}

// names is a list of such words.
func names(words []string) string {
	var items []string
	for _, w := range words {
		items = append(items, plain(w))
	}
	return flow(items)
}

// sections in the recipe's order.
var sections = []string{"model", "data", "batch", "loss", "optimizer", "train", "mesh", "eval", "save", "log"}

// text prints the recipe: a line for each key, sections in their order.
func (r *recipe) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# From %s settings, by contraflow import.\n", r.from)
	for _, a := range r.result.Assumed {
		fmt.Fprintf(&b, "# assumed: %s\n", a)
	}
	for _, w := range r.result.Without {
		fmt.Fprintf(&b, "# without counterpart: %s\n", w)
	}
	for _, u := range r.result.Unknown {
		fmt.Fprintf(&b, "# unknown, left out: %s\n", u)
	}
	for _, s := range sections {
		if list, ok := r.keys[s]; ok { // of losses
			fmt.Fprintf(&b, "%s:%s\n", s, list)
			continue
		}
		var keys []string
		for k := range r.keys {
			if strings.HasPrefix(k, s+".") {
				keys = append(keys, k)
			}
		}
		if len(keys) == 0 {
			continue
		}
		sort.Slice(keys, func(i, j int) bool { return rank(keys[i]) < rank(keys[j]) })
		fmt.Fprintf(&b, "%s:\n", s)
		for _, k := range keys {
			value := r.keys[k]
			if strings.HasPrefix(value, "\n") {
				fmt.Fprintf(&b, "  %s:%s\n", strings.TrimPrefix(k, s+"."), value)
			} else {
				fmt.Fprintf(&b, "  %s: %s\n", strings.TrimPrefix(k, s+"."), value)
			}
		}
	}
	return b.String()
}

// rank orders keys as people write them: what a section is about first.
func rank(key string) string {
	first := []string{"model.path", "model.kind", "data.train", "batch.global_size", "batch.accumulate", "loss.name", "loss.scale", "optimizer.name", "optimizer.lr", "train.epochs", "train.max_steps", "save.dir"}
	if i := slices.Index(first, key); i >= 0 {
		return fmt.Sprintf("%02d", i)
	}
	return "~" + key
}
