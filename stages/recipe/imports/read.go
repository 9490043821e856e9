package imports

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"

	"contraflow/io/spelling"
)

// TrainerSettings is a Python module that writes a trainer's settings, data and model.
//
//go:embed trainer_settings.py
var TrainerSettings string

// FromPython says how a script's settings become a file that can be imported.
const FromPython = `put a module beside it that writes what its trainer has, contraflow import --python > trainer_settings.py,
and into it, in place of trainer.train(), what calls it, and run the script:

  import trainer_settings; trainer_settings.write(trainer, "moved"); raise SystemExit

What follows there would save and publish a model that has learned nothing.

The folder has the model as it was before its first step, the data and those of evaluators as parquet files, and args.json with what the trainer has: its
arguments, columns, loss with its options, LoRA, early stopping. PyLate's trainers are such trainers. Then: contraflow import moved/args.json > recipe.yaml

Without a trainer it is done by hand: put this into the script, after the arguments are made, and run it that far:

  import json; json.dump(args.to_dict() | {"arguments": type(args).__name__}, open("args.json", "w"))

Then add to args.json what the arguments don't have, "model" (a folder or hub id), "train_dataset" (parquet or JSONL
files), "columns" (their names, in the order of the loss's inputs), "loss" (the name of its class, or {"name": ..., "scale": ...}
with its options) and, if the loss is to be measured on others, "eval_dataset" (files like train_dataset's). Several datasets have names, by which the others may be said: {"train_dataset": {"nli": "nli.parquet",
"sts": "sts.parquet"}, "loss": {"nli": "MultipleNegativesRankingLoss", "sts": "CoSENTLoss"}, "columns": {"nli": [...], "sts": [...]}}.

Of a MultiVectorEncoder also what its modules have: "query_length", "document_length", "query_expansion" and "skiplist_words". Of a SparseEncoder
name SpladeLoss's own loss "inner_loss".

Arguments of a CrossEncoder become a reranker's recipe. "columns" are the query, the document (or the list of documents, or the positive and negatives) and last
the label (or the list of labels), in the order of the loss's inputs.`

var python = regexp.MustCompile(`(?s)^\s*(#[^\n]*\n\s*|""".*?"""\s*|'''.*?'''\s*)*(import\s+\w|from\s+[\w.]+\s+import\s)`)

// IsPython tells a script (or a notebook), which is to be run and not read, from settings.
func IsPython(name string, text []byte) bool {
	return strings.HasSuffix(name, ".py") || strings.HasSuffix(name, ".ipynb") || python.Match(text)
}

// ofDatasets tells settings that name datasets.
func ofDatasets(name string) bool {
	return name == heldOutSetting || slices.Contains(dataSettings, name)
}

// whole tells settings that are mappings themselves.
func whole(name string) bool {
	return slices.Contains([]string{"adapter", "columns", "guide", "inner_loss", "label_length", "loss", "max_length", "prompts", "query_expansion"}, name) ||
		ofDatasets(name) || counterparts[name] != "" || slices.Contains(nothing, name) ||
		strings.HasSuffix(name, "_kwargs") || strings.HasSuffix(name, "_mapping")
}

// ReadMapping reads settings from a JSON or YAML mapping. Mappings inside of it, such as one called "args" or "training_arguments", count as
// part of it: a name that two of them have with different values is an error.
func ReadMapping(name string, text []byte) (Settings, error) {
	text, err := spelling.UTF8(name, text)
	if err != nil {
		return nil, err
	}
	if IsPython(name, text) {
		return nil, fmt.Errorf("%s is a Python script, and settings are read here, not scripts: %s", name, FromPython)
	}
	var m map[string]any
	orders := keyOrders{}
	if err := json.Unmarshal(text, &m); err == nil && m != nil {
		if twice := orders.ofJSON(json.NewDecoder(bytes.NewReader(text)), ""); twice != "" {
			return nil, fmt.Errorf("%s: a mapping has %s twice: leave one of them", name, twice)
		}
	} else {
		m = nil
		if yamlErr := yaml.Unmarshal(text, &m); yamlErr != nil || m == nil {
			if strings.HasSuffix(name, ".json") && !json.Valid(text) {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return nil, fmt.Errorf("%s: %w", name, errors.Join(yamlErr, errors.New("want a mapping of settings to values")))
		}
		var all, more any
		d := yaml.NewDecoder(bytes.NewReader(text), yaml.UseOrderedMap())
		if err := d.Decode(&all); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if d.Decode(&more) == nil && more != nil {
			return nil, fmt.Errorf("%s: has several documents, with --- between them: want one mapping of settings", name)
		}
		orders.ofYAML(all, "")
	}
	s, from := Settings{}, map[string]string{}
	var add func(at, path string, m map[string]any) error
	put := func(at, k string, v any) error {
		if was, ok := s[k]; ok && !reflect.DeepEqual(was, v) {
			return fmt.Errorf("%s: %s is %s%s and %s%s: leave one of them", name, k, show(was), from[k], show(v), at)
		}
		s[k], from[k] = v, at
		return nil
	}
	add = func(at, path string, m map[string]any) error {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			inner, ok := m[k].(map[string]any)
			var err error
			switch kind, named := inner["name"]; {
			case ok && ofDatasets(k) && inner["path"] == nil:
				err = put(at, k, inOrder(inner, orders[below(path, k)]))
			case !ok || whole(k):
				err = put(at, k, m[k])
			case named: // {model: {name: ..., max_seq_length: ...}}
				inner = maps.Clone(inner)
				delete(inner, "name")
				if err = put(at, k, kind); err != nil {
					break
				}
				fallthrough
			default:
				err = add(" in "+k, below(path, k), inner)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return s, add("", "", m)
}

var module = regexp.MustCompile(`(^|\.)FlagEmbedding(\.|$)`)

// besides is a program of FlagEmbedding that a script may start before or after training.
var besides = regexp.MustCompile(`(^|[./])(hn_mine|add_reranker_score|split_data_by_length|eval_msmarco)(\.py)?$|(^|\.)FlagEmbedding\.evaluation\.`)

// ErrProcesses is that of a command whose number of processes can't be told, such as --nproc_per_node gpu.
var ErrProcesses = errors.New("want the number of processes")

// launched are options of torchrun, deepspeed and accelerate, whose product is the number of processes: those on each machine and the machines, or
// all of them (accelerate's num_machines are among its num_processes).
var launched = []string{"nproc_per_node", "num_gpus", "num_processes", "nnodes", "num_nodes"}

// ReadCommand reads a command line, as it stands in a shell script: words, quotes, lines that end in a backslash, comments, and variables that
// the script itself sets. Of a script's commands it is the one that trains. It returns the settings after the program's name, and how many
// processes torchrun, deepspeed, accelerate, mpirun or srun is told to start, on all machines: where that is no number, an ErrProcesses comes with the settings.
func ReadCommand(text string) (Settings, int, error) {
	sh := newShell()
	if err := sh.run(text); err != nil {
		return nil, 0, err
	}
	words, err := trains(sh.commands)
	if words == nil && err == nil {
		if err := sh.uncalled(); err != nil {
			return nil, 0, err
		}
		words, err = trains(sh.commands)
	}
	if err != nil {
		return nil, 0, err
	}
	if words == nil {
		for _, c := range sh.commands {
			if name := variable(c[0]); name != "" {
				return nil, 0, fmt.Errorf("no command line of FlagEmbedding: %q stands where one should, and %s", c[0], sh.whyNot(name))
			}
		}
		return nil, 0, errors.New("no command line of FlagEmbedding: want ... -m FlagEmbedding.finetune... --model_name_or_path ...")
	}
	var notTold error
	start, program, launcher := 0, "", "" // its arguments alone, unless there is a program
	counts := map[string]int{}
	for i, w := range words {
		if isProgram(words, i) {
			start = i + 1
			if program = strings.ReplaceAll(w, "/", "."); !strings.Contains(program, "FlagEmbedding") {
				program = ""
			}
			break
		}
		if w == "deepspeed" || w == "accelerate" {
			launcher = w
		}
		name, value, joined := strings.Cut(w, "=")
		if name = strings.TrimPrefix(strings.ReplaceAll(name, "-", "_"), "__"); !slices.Contains(launched, name) {
			continue
		}
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			counts[name] = n
			continue
		}
		counts[name] = 1
		if v := variable(value); v != "" {
			notTold = fmt.Errorf("%s: %w (--devices N says it here), and %s", w+" "+value, ErrProcesses, sh.whyNot(v))
			continue
		}
		notTold = fmt.Errorf("%s %s: %w; --devices N says it here", w, value, ErrProcesses)
	}
	devices := 1
	for _, n := range counts {
		devices *= n
	}
	if n, err := launchedBy(words[:start], text); n > 0 || err != nil {
		devices, notTold = n, err
	}
	if said := counts["num_gpus"] + counts["num_processes"]; launcher != "" && said == 0 && notTold == nil {
		notTold = fmt.Errorf("%s: %w: what it starts depends on the machine, and --devices N says it here", launcher, ErrProcesses)
	}
	for _, w := range words[start:] {
		switch { // of any options
		case w == "$@" || w == "$*":
			return nil, 0, fmt.Errorf("%q stands among the options: write what the script is called with in its place, or nothing if that is nothing", w)
		case elements.MatchString(w):
			return nil, 0, fmt.Errorf("%q stands among the options, and %s", w, sh.whyNot(variable(w)))
		}
	}
	s := Settings{}
	if program != "" {
		s["module"] = program
	}
	for i := start; i < len(words); {
		name, value, joined := strings.Cut(words[i], "=")
		if !strings.HasPrefix(name, "--") {
			if v := variable(words[i]); v != "" {
				return nil, 0, fmt.Errorf("%q stands where a --name should, and %s", words[i], sh.whyNot(v))
			}
			return nil, 0, fmt.Errorf("%q stands where a --name should", words[i])
		}
		name = strings.ReplaceAll(strings.TrimPrefix(name, "--"), "-", "_")
		i++
		var values []any
		if joined {
			values = append(values, value)
		}
		for !joined && i < len(words) && !isOption(words[i]) {
			values = append(values, words[i])
			i++
		}
		switch len(values) {
		case 0:
			positive, no := strings.CutPrefix(name, "no_")
			if no = no && !slices.Contains(nothing, name); no { // which HfArgumentParser makes of a bool that is true by default
				name = positive
			}
			s[name] = !no
		case 1:
			s[name] = values[0]
		default:
			s[name] = values
		}
	}
	_, model := s["model_name_or_path"]
	_, data := s["train_data"]
	if program == "" && !model && !data {
		if start > 0 {
			return nil, 0, fmt.Errorf("%s is no program of FlagEmbedding, and has neither --model_name_or_path nor --train_data, by which a copy of one would be told. Of a sentence-transformers script, %s", words[start-1], FromPython)
		}
		return nil, 0, errors.New("no command line of FlagEmbedding: it has neither --model_name_or_path nor --train_data")
	}
	if notTold != nil {
		devices = 0
	}
	return s, devices, notTold
}

// isProgram tells whether a command's word is the program that trains.
func isProgram(words []string, i int) bool {
	return module.MatchString(words[i]) || strings.HasSuffix(words[i], ".py") || words[i] == "run" && i > 0 && words[i-1] == "-m"
}

// trains finds the command that trains: with a module behind -m, or else with such a program, or else arguments alone, and where there are such ones
// with a model or data. Lines behind it that begin with -- are its own: no command begins so, but one whose line before has lost its backslash.
func trains(commands [][]string) ([]string, error) {
	kinds := []func(words []string, i int) bool{
		func(words []string, i int) bool { return i > 0 && words[i-1] == "-m" && isProgram(words, i) },
		isProgram,
		func(words []string, i int) bool { return i == 0 && isOption(words[i]) },
	}
	for _, sure := range []bool{true, false} {
		for _, is := range kinds {
			found := those(commands, is, sure)
			if len(found) > 1 && sure {
				return nil, fmt.Errorf("the script has %d commands that train, and a recipe is of one: leave only that one in it (%s)", len(found), differ(found[0], found[1]))
			} else if len(found) > 0 {
				return found[0], nil
			}
		}
	}
	return nil, nil
}

// those are commands of which some word is what is asked for, each once and with the lines that are its own.
func those(commands [][]string, is func(words []string, i int) bool, sure bool) (found [][]string) {
	for k, words := range commands {
		if words[0] == "echo" || words[0] == "printf" || slices.ContainsFunc(words, besides.MatchString) { // echo and printf only show it
			continue
		}
		has := false
		for i := range words {
			has = has || is(words, i)
		}
		if !has || isOption(words[0]) && k > 0 && isOption(commands[k-1][0]) { // a line of the command before it
			continue
		}
		words = slices.Clip(words)
		for _, more := range commands[k+1:] {
			if !isOption(more[0]) {
				break
			}
			words = append(words, more...)
		}
		same := func(other []string) bool { return slices.Equal(words, other) }
		if (!sure || slices.ContainsFunc(words, ofTraining.MatchString)) && !slices.ContainsFunc(found, same) {
			found = append(found, words)
		}
	}
	return found
}

// ofTraining are options of which a command that trains has one.
var ofTraining = regexp.MustCompile(`^--(model_name_or_path|train_data)(=|$)`)

// differ says where two commands begin to.
func differ(a, b []string) string {
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	from := max(0, i-1)
	part := func(words []string) string {
		return strings.Join(words[min(from, len(words)):min(i+2, len(words))], " ")
	}
	return fmt.Sprintf("one has %q where another has %q", part(a), part(b))
}

// isOption tells --name from a negative number and from a text that begins with a dash.
func isOption(w string) bool { return strings.HasPrefix(w, "--") && len(w) > 2 }
