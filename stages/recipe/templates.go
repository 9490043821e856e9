package recipe

import (
	"embed"
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

// Template is a commented recipe to begin with; "embedder" has every key but those of rerankers and of m3. false: there is none of that name.
func Template(name string) (string, bool) {
	text, err := templates.ReadFile(path.Join("templates", name+".yaml"))
	return string(text), err == nil
}

// option is a template's line that is commented out.
var option = regexp.MustCompile(`(?m)^( *)# ([a-z_]+: .*)$`)

// example is how a key is written in a template: "lr: 2e-5". "" if it is a section, or deeper than templates show.
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
	if !ok {
		return ""
	}
	key = key[strings.LastIndexByte(key, '.')+1:]
	_, text, _ = strings.Cut("\n"+text, "\n"+section+":\n")
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, " ") {
			break
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "- ")
		if value, ok := strings.CutPrefix(line, key+": "); ok {
			if i := strings.Index(value, "  #"); i >= 0 {
				value = value[:i]
			}
			return key + ": " + strings.TrimSpace(value)
		}
	}
	return ""
}
