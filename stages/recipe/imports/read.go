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

// ReadCommand reads a command line, as it stands in a shell script: words, quotes, lines that end in a backslash, comments. It returns the settings
// after the program's name, and how many processes torchrun is told to start.
func ReadCommand(text string) (Settings, int, error) {
	words, err := shellWords(text)
	if err != nil {
		return nil, 0, err
	}
	start, devices, program := -1, 1, ""
	for i, w := range words {
		if module.MatchString(w) || strings.HasSuffix(w, ".py") || w == "run" && start < 0 && i > 0 && words[i-1] == "-m" {
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
	if start < 0 {
		if len(words) == 0 || !strings.HasPrefix(words[0], "--") {
			return nil, 0, errors.New("no command line of FlagEmbedding: want ... -m FlagEmbedding.finetune... --model_name_or_path ...")
		}
		start = 0 // its arguments alone
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

// isOption tells --name from a negative number and from a text that begins with a dash.
func isOption(w string) bool { return strings.HasPrefix(w, "--") && len(w) > 2 }

// shellWords splits as a POSIX shell does, without expanding anything.
func shellWords(text string) (words []string, err error) {
	var word strings.Builder
	in := false
	end := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
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
				in = true
			}
		case c == '\'' || c == '"':
			in = true
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
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			end()
		default:
			word.WriteRune(c)
			in = true
		}
	}
	end()
	return words, nil
}
