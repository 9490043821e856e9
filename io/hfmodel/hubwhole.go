package hfmodel

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"contraflow/io/dataset"
)

// whole is a dataset, or a folder of it, of which a part is to be chosen.
type whole struct {
	url    string
	files  []string
	folder string // what of it the URL names; "": all
	card   []byte // its README.md; nil: it has none, or, of what is cached, unknown
	part   part
	splits dataset.Splits // where part names none

	cached, unknown bool // files are those in the cache; and whether it has a card nobody knows
	note            func(string)
}

// choice is one of its configurations.
type choice struct {
	name            string
	splits, missing map[string][]string // files of each split; and what the card names of it that is not there
	byName          bool                // names say the splits, not the card
}

// pick are the files of a configuration and split. An error lists what there is.
func (w whole) pick() ([]string, error) {
	choices, err := w.configs()
	if err != nil {
		return nil, err
	}
	all, found := map[string]bool{}, []string{}
	for _, c := range choices {
		splits, err := c.wanted(w)
		if err != nil {
			return nil, err
		}
		for _, split := range splits {
			if lost := c.missing[split]; len(lost) > 0 {
				return nil, w.lost(c, split, lost)
			}
			files := c.splits[split]
			if c.byName {
				files = dataset.Pick(files, "")
			}
			for _, f := range files {
				if !all[f] {
					all[f], found = true, append(found, f)
				}
			}
		}
	}
	slices.Sort(found)
	if w.cached {
		return found, whollyCached(found, func(string) bool { return true })
	}
	return found, nil
}

// lost is the error of what a card names and is not there.
func (w whole) lost(c choice, split string, names []string) error {
	if w.cached {
		return fmt.Errorf("%s, of the split %q of the configuration %q, is not in the cache: it takes to be online once", strings.Join(names, ", "), split, c.name)
	}
	return fmt.Errorf("%w: its card, README.md, has %s for the split %q of the configuration %q, which no file of data in it matches; files of it may be named%s", ErrNotFound, strings.Join(names, ", "), split, c.name, w.such())
}

// such is an example of a file's URL.
func (w whole) such() string {
	for _, f := range w.files {
		if dataset.KnownData(f) {
			return fmt.Sprintf(", as in %s/%s", w.top(), f)
		}
	}
	return ""
}

// top is the URL of the whole dataset.
func (w whole) top() string { return strings.TrimSuffix(w.url, "/"+w.folder) }

// configs are the configurations that are meant: one, or all.
func (w whole) configs() ([]choice, error) {
	data := slices.DeleteFunc(slices.Clone(w.files), func(f string) bool { return !dataset.KnownData(f) })
	configs, err := cardConfigs(w.card)
	if err != nil {
		return nil, fmt.Errorf("%w; files of it may be named%s", err, w.such())
	}
	if len(configs) == 0 {
		switch {
		case w.part.config != "" && w.unknown:
			return nil, w.unclear()
		case w.part.config != "":
			return nil, fmt.Errorf("%w: it has no configuration %q: its card, README.md, names none; a folder of it is %s/FOLDER", ErrNotFound, w.part.config, w.top())
		}
		splits, _, _ := cardConfig{Dir: w.folder}.splits(data)
		if w.unknown && !w.clear(data) {
			return nil, w.unclear()
		}
		return []choice{{splits: splits, byName: true}}, nil
	}
	of := func(c cardConfig) (choice, error) {
		splits, missing, err := c.splits(data)
		inside := func(of map[string][]string) {
			for split, names := range of {
				of[split] = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, w.folder+"/") })
			}
			maps.DeleteFunc(of, func(_ string, names []string) bool { return len(names) == 0 })
		}
		if w.folder != "" {
			inside(splits)
			inside(missing)
		}
		return choice{c.Name, splits, missing, c.Files == nil}, err
	}
	if w.folder == "" || w.part.config != "" {
		c, err := configOf(w.url, configs, w.part.config)
		if err == nil {
			one, err := of(c)
			return []choice{one}, err
		}
		if w.splits != dataset.All || w.part.config != "" || len(defaults(configs)) > 0 {
			return nil, err
		}
	}
	var some []choice
	var names []string
	for _, c := range configs {
		one, err := of(c)
		if err != nil {
			return nil, err
		}
		if len(one.splits)+len(one.missing) > 0 {
			some, names = append(some, one), append(names, c.Name)
		}
	}
	if w.splits != dataset.All && len(some) > 1 {
		standard := defaults(configs)
		if i := slices.IndexFunc(some, func(c choice) bool { return len(standard) == 1 && c.name == standard[0] }); i >= 0 {
			return some[i : i+1], nil
		}
		return nil, fmt.Errorf("files of its folder %s are of the configurations %s: name one, as in %s?config=%s", w.folder, strings.Join(names, ", "), w.url, names[0])
	}
	if len(some) == 0 {
		return nil, fmt.Errorf("%w: no configuration of its card, README.md, has files in the folder %q; files of it may be named, as in %s/*.jsonl", ErrNotFound, w.folder, w.url)
	}
	return some, nil
}

// clear tells whether names alone say what is what among files of the cache, of a dataset whose card is not there: they are in one folder, and have splits.
func (w whole) clear(data []string) bool {
	var below []string
	folders := map[string]bool{}
	for _, f := range data {
		rest := strings.TrimPrefix(f, w.folder+"/")
		if w.folder == "" || rest != f {
			below, folders[path.Dir(f)] = append(below, rest), true
		}
	}
	_, said := splitsByName(below)
	return len(below) == 0 || said && len(folders) == 1
}

func (w whole) unclear() error {
	return fmt.Errorf("its card, README.md, is not in the cache, and without it nobody knows its configurations and splits: it takes to be online once, or files that are named%s", w.such())
}

// heldOut are splits to measure with, the first of them that there is.
var heldOut = []string{"test", "validation", "dev", "valid", "val"}

// wanted are the splits that are meant: one, or all.
func (c choice) wanted(w whole) ([]string, error) {
	names := slices.Collect(maps.Keys(c.missing))
	for split, files := range c.splits {
		if len(files) > 0 {
			names = append(names, split)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: it has %d files, such as %q, none of which is meant", ErrNotFound, len(w.files), w.files[:min(3, len(w.files))])
	}
	with := "?"
	if w.part.config != "" {
		with = "?config=" + w.part.config + "&"
	}
	one := fmt.Sprintf("name one, as in %s%ssplit=%s", w.url, with, names[0])
	want := w.part.split
	switch {
	case want == "" && w.splits == dataset.All:
		return names, nil
	case want == "" && w.splits == dataset.HeldOut:
		if want = names[0]; len(names) > 1 || w.cached && c.byName {
			i := slices.IndexFunc(heldOut, func(split string) bool { return slices.Contains(names, split) })
			switch {
			case w.cached && c.byName && i != 0:
				return nil, fmt.Errorf("its split test is not in the cache, which has %s: it takes to be online once, or to %s", strings.Join(names, ", "), one)
			case i < 0:
				return nil, fmt.Errorf("%w: it has neither the split test nor validation, but %s: %s", ErrNotFound, strings.Join(names, ", "), one)
			}
			want = heldOut[i]
		}
		w.note(fmt.Sprintf("%s: its split %s is what is measured with, of %s; %ssplit=NAME behind it names another", w.url, want, strings.Join(names, ", "), with))
	case want == "":
		want = "train"
	}
	if slices.Contains(names, want) {
		return []string{want}, nil
	}
	return nil, fmt.Errorf("%w: it has no split %q, but %s: %s", ErrNotFound, want, strings.Join(names, ", "), one)
}

// defaults are the configurations that may be the default.
func defaults(configs []cardConfig) (names []string) {
	for _, c := range configs {
		if len(configs) == 1 || c.Name == "default" || c.Default {
			names = append(names, c.Name)
		}
	}
	return names
}

// configOf chooses a configuration of a card that has some.
func configOf(url string, configs []cardConfig, name string) (cardConfig, error) {
	var names []string
	for _, c := range configs {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	slices.Sort(names)
	has, such, standard := strings.Join(names, ", "), fmt.Sprintf("name one, as in %s?config=%s", url, names[0]), defaults(configs)
	switch {
	case name != "":
		return cardConfig{}, fmt.Errorf("%w: it has no configuration %q, but %s", ErrNotFound, name, has)
	case len(standard) == 0:
		return cardConfig{}, fmt.Errorf("it has the configurations %s, and none is the default: %s", has, such)
	case len(standard) > 1:
		return cardConfig{}, fmt.Errorf("it has the configurations %s, and several are the default, %s: %s", has, strings.Join(standard, ", "), such)
	}
	return configOf(url, configs, standard[0])
}

var shardName = regexp.MustCompile(`^(.*-)([0-9]{5})-of-([0-9]{5})(.*)$`)

// whollyCached refuses files of the cache whose names count them, such as train-00001-of-00003.parquet, where others of them are not there that are meant
// as well.
func whollyCached(files []string, meant func(name string) bool) error {
	have := map[string]bool{} // without what may follow the count, a hash
	counted := func(stem string, i, of int) string { return fmt.Sprintf("%s%05d-of-%05d", stem, i, of) }
	for _, f := range files {
		if m := shardName.FindStringSubmatch(f); m != nil {
			have[m[1]+m[2]+"-of-"+m[3]] = true
		}
	}
	var missing []string
	for _, f := range files {
		m := shardName.FindStringSubmatch(f)
		if m == nil {
			continue
		}
		of, _ := strconv.Atoi(m[3])
		for i := range of {
			if name := counted(m[1], i, of); !have[name] && meant(name+m[4]) {
				have[name], missing = true, append(missing, name+path.Ext(f))
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	more := ""
	if n := len(missing); n > 5 {
		more, missing = fmt.Sprintf(" and %d more", n-5), missing[:5]
	}
	return fmt.Errorf("%s%s of it are not in the cache: it takes to be online once", strings.Join(missing, ", "), more)
}
