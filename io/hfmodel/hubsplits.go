package hfmodel

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// A dataset on the hub has splits, train, validation and test, and may have configurations, each with splits of its own. Which files are which its card
// says, or else their names do, by the conventions of Python's datasets (its data_files.py). All files of a dataset taken together would train on
// what is there to test with.

// part says what is meant of a dataset that is named as a whole, or by a folder.
type part struct{ config, split string } // "": the card's default; train

// parts cuts them from a URL: ?config=pair&split=dev, in any order.
var parts = regexp.MustCompile(`\?((?:config|split)=.*)$`)

func cutPart(url string) (rest string, p part, given bool, err error) {
	m := parts.FindStringSubmatchIndex(url)
	if m == nil {
		return url, part{}, false, nil
	}
	for _, one := range strings.Split(url[m[2]:m[3]], "&") {
		key, value, _ := strings.Cut(one, "=")
		to := map[string]*string{"config": &p.config, "split": &p.split}[key]
		if to == nil || *to != "" || value == "" {
			return "", part{}, false, fmt.Errorf("%s: what follows the question mark is %q: want ?split=NAME, ?config=NAME or ?config=NAME&split=NAME", url, url[m[2]:m[3]])
		}
		*to = value
	}
	return url[:m[0]], p, true, nil
}

// splitKeywords are what files or folders of a split are called.
var splitKeywords = []struct {
	split string
	words []string
}{
	{"train", []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

var (
	splitShard = regexp.MustCompile(`^data/([^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*$`)
	inFileName = keywordPatterns(`^(.*[-._ 0-9])?(%s)[-._ 0-9].*$`)
	inDirName  = keywordPatterns(`^(.*[-._ 0-9])?(%s)([-._ 0-9].*)?$`)
)

func keywordPatterns(of string) (all []*regexp.Regexp) {
	for _, k := range splitKeywords {
		all = append(all, regexp.MustCompile(fmt.Sprintf(of, strings.Join(k.words, "|"))))
	}
	return all
}

// splitsByName are the files of each split, as their names say it, seen from the folder that they are named from: data/train-00000-of-00002.parquet if one
// is called so; or the folders, or else the files, with a split's word in their names; or, if there are none, all of them are train, and said is false.
func splitsByName(files []string) (splits map[string][]string, said bool) {
	files = slices.DeleteFunc(slices.Clone(files), func(f string) bool {
		return hidden(strings.Split(f, "/")) != [2]int{}
	})
	splits = map[string][]string{}
	for _, f := range files {
		if m := splitShard.FindStringSubmatch(f); m != nil {
			splits[m[1]] = append(splits[m[1]], f)
		}
	}
	if len(splits) > 0 {
		return splits, true
	}
	byWords := func(patterns []*regexp.Regexp, names func(f string) []string) {
		for i, k := range splitKeywords {
			for _, f := range files {
				if slices.ContainsFunc(names(f), patterns[i].MatchString) {
					splits[k.split] = append(splits[k.split], f)
				}
			}
		}
	}
	if byWords(inDirName, func(f string) []string { return strings.Split(path.Dir(f), "/") }); len(splits) > 0 {
		return splits, true
	}
	if byWords(inFileName, func(f string) []string { return []string{path.Base(f)} }); len(splits) > 0 {
		return splits, true
	}
	if len(files) > 0 {
		splits["train"] = files
	}
	return splits, false
}

// hidden counts what of a path, or of a glob, is hidden: parts that begin with a dot, and folders with __. As datasets has it, a glob matches a path that
// has as many of both as the glob itself.
func hidden(parts []string) (n [2]int) {
	for i, part := range parts {
		switch {
		case strings.HasPrefix(part, "."):
			n[0]++
		case strings.HasPrefix(part, "__") && i < len(parts)-1:
			n[1]++
		}
	}
	return n
}

// globMatch matches a path by a card's glob, in which ** is any folders, none included, or any files in them. A pattern that is malformed matches nothing.
func globMatch(pattern, name []string) bool {
	reached := make([]bool, len(name)+1) // how many of the name's parts those of the pattern so far may have matched
	reached[0] = hidden(pattern) == hidden(name)
	for i, p := range pattern {
		next := make([]bool, len(name)+1)
		for n, part := range name {
			if p == "**" { // the next part of the pattern may begin here, or ** take this one as well
				next[n] = reached[n] || n > 0 && next[n-1]
			} else {
				next[n+1] = reached[n] && partMatch(p, part)
			}
		}
		if p == "**" && i == len(pattern)-1 {
			return len(name) > 0 && next[len(name)-1]
		}
		reached = next
	}
	return reached[len(name)]
}

// partMatch matches one part of a path, by a part without **.
func partMatch(pattern, name string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "[!", "[^"), name)
	return ok && err == nil
}

// cardConfig is a configuration of a dataset's card.
type cardConfig struct {
	Name    string `yaml:"config_name"`
	Dir     string `yaml:"data_dir"`
	Files   any    `yaml:"data_files"` // a pattern, a list of them, or a list of {split, path}
	Default bool   `yaml:"default"`
}

// cardConfigs are those of a card, README.md, in its head of YAML, which is between two lines of three dashes. A card without such a head has none.
func cardConfigs(card []byte) (configs []cardConfig, err error) {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(string(card), "\ufeff"))
	lines := strings.Split(text, "\n")
	dashes := func(line string) bool { return strings.TrimRight(line, " \t") == "---" }
	first := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) != "" })
	if first < 0 || strings.TrimSpace(lines[first]) != "---" {
		return nil, nil
	}
	end := slices.IndexFunc(lines[first+1:], dashes)
	if end < 0 {
		return nil, nil
	}
	lines = lines[:first+1+end]
	lines[first] = ""
	if err := onlyConfigs(lines); err != nil {
		return nil, err
	}
	head := strings.Join(lines, "\n") // with the lines before it, so that errors name the card's
	if err := checkYAML(head); err != nil {
		return nil, err
	}
	var c struct{ Configs []cardConfig }
	if err := yaml.Unmarshal([]byte(head), &c); err != nil {
		return nil, fmt.Errorf("its card, README.md, can't be read: %w", err)
	}
	return c.Configs, nil
}

var configsLine = regexp.MustCompile(`^["']?configs["']?[ \t]*:`)

// onlyConfigs empties the lines of a head that are not of its key configs: nothing else of it is read, whatever YAML it has. Keys of a head begin their
// lines; what belongs to one is on lines that begin with spaces, dashes, closing brackets or comments. A head of another shape is left as it is.
func onlyConfigs(lines []string) error {
	shaped := slices.IndexFunc(lines, func(line string) bool { return strings.TrimSpace(line) != "" && line[0] != '#' })
	if shaped < 0 || strings.ContainsRune(" \t-{", rune(lines[shaped][0])) {
		return nil
	}
	inside, before := false, 0
	for i, line := range lines {
		if line != "" && !strings.ContainsRune(" \t-#]}", rune(line[0])) {
			if inside = configsLine.MatchString(line); inside {
				if before > 0 {
					return fmt.Errorf("its card, README.md, has configs twice (lines %d and %d)", before, i+1)
				}
				before = i + 1
			}
		}
		if !inside {
			lines[i] = ""
		}
	}
	return nil
}

// checkYAML refuses a head that takes far more memory or time than it is long: time grows with the square of a line's length.
func checkYAML(head string) error {
	const most, widest, deepest = 8 << 20, 16 << 10, 100
	if len(head) > most {
		return fmt.Errorf("its card, README.md, has a head of more than %d MiB", most>>20)
	}
	for i, line := range strings.Split(head, "\n") {
		if len(line) > widest {
			return fmt.Errorf("its card, README.md, has a line of more than %d KiB in its configs (line %d): name the files that you want", widest>>10, i+1)
		}
	}
	depth := 0
	for _, t := range lexer.Tokenize(head) {
		switch t.Type {
		case token.AliasType, token.MergeKeyType:
			return fmt.Errorf("its card, README.md, has an alias in its configs (line %d), which is not read", t.Position.Line)
		case token.TagType: // goccy/go-yaml panics on one without a value
			return fmt.Errorf("its card, README.md, has a tag in its configs (line %d), which is not read", t.Position.Line)
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		if depth > deepest {
			return fmt.Errorf("its card, README.md, has configs of more than %d levels (line %d)", deepest, t.Position.Line)
		}
	}
	return nil
}

// splits are the files of each of a configuration's splits, and missing what the card names of each that no file is.
func (c cardConfig) splits(files []string) (splits, missing map[string][]string, err error) {
	missing = map[string][]string{}
	listed := map[string]bool{} // cards that name their files one by one name many
	for _, f := range files {
		listed[f] = true
	}
	in := func(split, pattern string) (found []string) {
		pattern = path.Join(c.Dir, pattern)
		switch parts := strings.Split(pattern, "/"); {
		case strings.ContainsAny(pattern, `*?[\`):
			for _, f := range files {
				if f == pattern || globMatch(parts, strings.Split(f, "/")) {
					found = append(found, f)
				}
			}
		case listed[pattern]:
			found = []string{pattern}
		}
		if len(found) == 0 {
			missing[split] = append(missing[split], pattern)
		}
		return found
	}
	splits = map[string][]string{}
	if c.Files == nil {
		below, prefix := []string{}, strings.Trim(c.Dir, "/")+"/"
		if c.Dir == "" {
			prefix = ""
		}
		for _, f := range files {
			if rest, ok := strings.CutPrefix(f, prefix); ok {
				below = append(below, rest)
			}
		}
		byName, _ := splitsByName(below)
		for split, list := range byName {
			for _, f := range list {
				splits[split] = append(splits[split], prefix+f)
			}
		}
		return splits, missing, nil
	}
	unknown := fmt.Errorf("its card, README.md, has data_files of the configuration %q that are no pattern, no list of patterns and no list of {split, path}", c.Name)
	patterns, ok := texts(c.Files)
	if ok {
		for _, p := range patterns {
			splits["train"] = append(splits["train"], in("train", p)...)
		}
		return splits, missing, nil
	}
	list, _ := c.Files.([]any)
	if len(list) == 0 {
		return nil, nil, unknown
	}
	for _, entry := range list {
		of, _ := entry.(map[string]any)
		split, ok1 := of["split"].(string)
		patterns, ok2 := texts(of["path"])
		if !ok1 || !ok2 {
			return nil, nil, unknown
		}
		for _, p := range patterns {
			splits[split] = append(splits[split], in(split, p)...)
		}
	}
	return splits, missing, nil
}

// texts are a text, or a list of them.
func texts(v any) (out []string, ok bool) {
	if text, ok := v.(string); ok {
		return []string{text}, true
	}
	list, ok := v.([]any)
	for _, e := range list {
		text, is := e.(string)
		if !is {
			return nil, false
		}
		out = append(out, text)
	}
	return out, ok && len(list) > 0
}
