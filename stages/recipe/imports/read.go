package imports

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// ReadMapping reads settings from a JSON or YAML mapping. Mappings inside of it, such as one called "args" or "training_arguments", count as
// part of it; so do JSON's own types.
func ReadMapping(name string, text []byte) (Settings, error) {
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		m = nil
		if yamlErr := yaml.Unmarshal(text, &m); yamlErr != nil || m == nil {
			if strings.HasSuffix(name, ".json") {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return nil, fmt.Errorf("%s: %w", name, errors.Join(yamlErr, errors.New("want a mapping of settings to values")))
		}
	}
	s := Settings{}
	for k, v := range m {
		inner, ok := v.(map[string]any)
		if !ok || k == "prompts" || strings.HasSuffix(k, "_kwargs") || strings.HasSuffix(k, "_mapping") {
			s[k] = v
			continue
		}
		if kind, ok := inner["name"]; ok { // {loss: {name: ..., scale: ...}}
			s[k] = kind
		}
		for k2, v2 := range inner {
			if k2 != "name" {
				s[k2] = v2
			}
		}
	}
	return s, nil
}

var module = regexp.MustCompile(`(^|\.)FlagEmbedding(\.|$)`)

// ReadCommand reads a command line, as it stands in a shell script: words, quotes, lines that end in a backslash, comments. Of a script's
// commands it is the one that trains. It returns the settings after the program's name, and how many processes torchrun is told to start.
func ReadCommand(text string) (Settings, int, error) {
	commands, err := shellCommands(text)
	if err != nil {
		return nil, 0, err
	}
	words := trains(commands)
	if words == nil {
		return nil, 0, errors.New("no command line of FlagEmbedding: want ... -m FlagEmbedding.finetune... --model_name_or_path ...")
	}
	start, devices, program := 0, 1, "" // its arguments alone, unless there is a program
	for i, w := range words {
		if isProgram(words, i) {
			start = i + 1
			if program = strings.ReplaceAll(w, "/", "."); !strings.Contains(program, "FlagEmbedding") {
				program = ""
			}
			break
		}
		name, value, joined := strings.Cut(w, "=")
		if name = strings.ReplaceAll(name, "-", "_"); name == "__nproc_per_node" || name == "__num_processes" || name == "__num_gpus" {
			if !joined && i+1 < len(words) {
				value = words[i+1]
			}
			if devices, err = strconv.Atoi(value); err != nil || devices < 1 {
				return nil, 0, fmt.Errorf("%s %s: want the number of processes; --devices N says it here", w, value)
			}
		}
	}
	s := Settings{}
	if program != "" {
		s["module"] = program
	}
	for i := start; i < len(words); {
		name, value, joined := strings.Cut(words[i], "=")
		if !strings.HasPrefix(name, "--") {
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
			s[name] = true
		case 1:
			s[name] = values[0]
		default:
			s[name] = values
		}
	}
	return s, devices, nil
}

// isProgram tells whether a command's word is the program that trains.
func isProgram(words []string, i int) bool {
	return module.MatchString(words[i]) || strings.HasSuffix(words[i], ".py") || words[i] == "run" && i > 0 && words[i-1] == "-m"
}

// trains finds the command that trains: with a module behind -m, or else with such a program, or else arguments alone. Lines behind it that
// begin with -- are its own: no command begins so, but one whose line before has lost its backslash.
func trains(commands [][]string) []string {
	for _, is := range []func(words []string, i int) bool{
		func(words []string, i int) bool { return i > 0 && words[i-1] == "-m" && isProgram(words, i) },
		isProgram,
		func(words []string, i int) bool { return i == 0 && isOption(words[i]) },
	} {
		for k, words := range commands {
			for i := range words {
				if !is(words, i) {
					continue
				}
				for _, more := range commands[k+1:] {
					if !isOption(more[0]) {
						break
					}
					words = append(words, more...)
				}
				return words
			}
		}
	}
	return nil
}

// isOption tells --name from a negative number and from a text that begins with a dash.
func isOption(w string) bool { return strings.HasPrefix(w, "--") && len(w) > 2 }

// shellCommands splits into simple commands and their words as a POSIX shell does, without expanding anything. Redirections are left out.
func shellCommands(text string) (commands [][]string, err error) {
	var words []string
	var word strings.Builder
	in, quoted, target := false, false, false // within a word; a part of it is quoted; it is where a redirection goes
	end := func() {
		if in && !target {
			words = append(words, word.String())
		}
		target = target && !in
		word.Reset()
		in, quoted = false, false
	}
	endCommand := func() {
		if end(); len(words) > 0 {
			commands = append(commands, words)
		}
		words, target = nil, false
	}
	rs := []rune(text)
	for i := 0; i < len(rs); i++ {
		switch c := rs[i]; {
		case c == '\\' && i+1 < len(rs):
			i++
			if rs[i] == '\r' && i+1 < len(rs) && rs[i+1] == '\n' {
				i++
			}
			if rs[i] != '\n' {
				word.WriteRune(rs[i])
				in, quoted = true, true
			}
		case c == '\'' || c == '"':
			in, quoted = true, true
			at := i
			for i++; i < len(rs) && rs[i] != c; i++ {
				if c == '"' && rs[i] == '\\' && i+1 < len(rs) && strings.ContainsRune("\"\\$`\n", rs[i+1]) {
					if i++; rs[i] == '\n' {
						continue
					}
				}
				word.WriteRune(rs[i])
			}
			if i == len(rs) {
				return nil, fmt.Errorf("the quote at character %d has no end", at+1)
			}
		case c == '#' && !in:
			for i+1 < len(rs) && rs[i+1] != '\n' {
				i++
			}
		case c == '<' || c == '>' || c == '&' && i+1 < len(rs) && rs[i+1] == '>':
			if c != '&' && !quoted && strings.Trim(word.String(), "0123456789") == "" { // which file: 2>
				in = false
			}
			end()
			for i+1 < len(rs) && strings.ContainsRune("<>&|", rs[i+1]) {
				i++
			}
			target = true
		case c == '(' && target && !in: // of a process: > >(tee log)
			for in = true; i+1 < len(rs) && rs[i] != ')'; i++ {
			}
		case c == '\n' || c == ';' || c == '&' || c == '|':
			endCommand()
		case c == ' ' || c == '\t' || c == '\r':
			end()
		default:
			word.WriteRune(c)
			in = true
		}
	}
	endCommand()
	return commands, nil
}
