package recipe

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

//go:embed templates/*.yaml
var templates embed.FS

// Templates are the names of commented recipes.
func Templates() []string {
	files, err := templates.ReadDir("templates")
	if err != nil {
		panic(err) // they are part of the program
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// Template is a commented recipe to begin with; "embedder" has every key but those of rerankers, of m3, of multi_vector and of sparse embeddings. false: there is none of that name.
func Template(name string) (string, bool) {
	text, err := templates.ReadFile(path.Join("templates", name+".yaml"))
	return string(text), err == nil
}

// option is a template's line that is commented out.
var option = regexp.MustCompile(`(?m)^( *)# ([a-z_]+: .*)$`)

// example is how a key is written in a template: "lr: 2e-5", a section with its first one. "" if it is deeper than templates show.
func example(full string) string {
	for _, name := range Templates() {
		if e := exampleIn(name, full); e != "" {
			return e
		}
	}
	return ""
}

func exampleIn(name, full string) string {
	text, _ := Template(name)
	text = option.ReplaceAllString(text, "$1$2")
	section, key, ok := strings.Cut(indices.ReplaceAllString(full, ""), ".")
	key = key[strings.LastIndexByte(key, '.')+1:]
	_, text, _ = strings.Cut("\n"+text, "\n"+section+":\n")
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if !strings.HasPrefix(line, " ") {
			break
		}
		have, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ":")
		if ok && have != key {
			continue
		}
		value, _, _ = strings.Cut(value, "  #")
		value = strings.TrimSpace(value)
		if item, list := strings.CutPrefix(strings.TrimSpace(lines[i+1]), "- {"); value == "" && list {
			value = "[{" + item + "]"
		}
		switch {
		case value == "":
			return ""
		case !ok:
			return fmt.Sprintf("%s: {%s: %s}", section, have, value)
		}
		return have + ": " + value
	}
	return ""
}
