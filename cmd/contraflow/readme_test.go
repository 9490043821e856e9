package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"contraflow/stages/recipe"
)

// What the READMEs show is true of this program: links lead somewhere, recipes have keys that exist, and so do commands and their flags.
func TestREADMEs(t *testing.T) {
	root := filepath.Join("..", "..")
	pages, recipes, commands := 0, 0, 0
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata"):
			return filepath.SkipDir
		case e.Name() != "README.md":
			return nil
		}
		pages++
		page := mustRead(t, path)
		for _, link := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(page, -1) {
			checkLink(t, path, link[1])
		}
		for _, block := range regexp.MustCompile("(?s)\n```(yaml|sh)\n(.*?)```").FindAllStringSubmatch(page, -1) {
			switch kind, text := block[1], block[2]; {
			case kind == "sh":
				for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
					if args := commandLine(line); args != nil {
						commands++
						checkCommand(t, path, args)
					}
				}
			case !strings.HasPrefix(text, "input:"): // else it is prep's, whose test reads it
				recipes++
				checkRecipe(t, path, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pages, %d recipes, %d commands", pages, recipes, commands)
	if pages < 8 || recipes < 8 || commands < 30 {
		t.Errorf("%d pages, %d recipes and %d commands were found, fewer than there are", pages, recipes, commands)
	}
}

func checkLink(t *testing.T, page, link string) {
	t.Helper()
	if strings.Contains(link, "://") {
		return
	}
	file, heading, _ := strings.Cut(link, "#")
	to := page
	if file != "" {
		to = filepath.Join(filepath.Dir(page), file)
	}
	if _, err := os.Stat(to); err != nil {
		t.Errorf("%s links to %s: %v", page, link, err)
		return
	}
	if heading == "" {
		return
	}
	for line := range strings.Lines(mustRead(t, to)) {
		if title := strings.TrimLeft(line, "#"); title != line && anchor(title) == heading {
			return
		}
	}
	t.Errorf("%s links to %s, which has no such heading", page, link)
}

// anchor is what a heading is called in links, as GitHub calls it.
func anchor(title string) string {
	title = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-")
	return regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(title, "")
}

func checkRecipe(t *testing.T, page, text string) {
	t.Helper()
	sets := []string{"save.dir=runs"}
	if !strings.Contains(text, "path:") || !strings.Contains(text, "model:") {
		sets = append(sets, "model.path=m")
	}
	if !strings.Contains(text, "- {path:") {
		sets = append(sets, "data.train=[{path: a.jsonl, query: q, positive: p}]")
	}
	if _, err := recipe.Parse(page, []byte(text), sets); err != nil {
		t.Errorf("%s shows a recipe that is none: %v\n%s", page, err, text)
	}
}

// commandLine takes a line of a shell apart, if it is one of contraflow's.
func commandLine(line string) (args []string) {
	word, quote, some := "", rune(0), false
	end := func() {
		if some {
			args = append(args, word)
		}
		word, some = "", false
	}
scan:
	for _, c := range strings.TrimSpace(line) {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word += string(c)
		case c == '\'' || c == '"':
			quote, some = c, true
		case c == '#' && !some || c == '>' || c == '|':
			break scan
		case c == ' ':
			end()
		default:
			word, some = word+string(c), true
		}
	}
	end()
	for i, a := range args {
		if name := filepath.Base(a); name == "contraflow" && i+1 < len(args) && args[max(i-1, 0)] != "install" && args[max(i-1, 0)] != "build" {
			return args[i+1:]
		}
	}
	return nil
}

func checkCommand(t *testing.T, page string, args []string) {
	t.Helper()
	command, rest, err := newRoot().Find(args)
	if err != nil || !command.HasParent() {
		t.Errorf("%s: contraflow %s: %v", page, strings.Join(args, " "), err)
		return
	}
	if command.DisableFlagParsing {
		return
	}
	if err := command.ParseFlags(rest); err != nil {
		t.Errorf("%s: contraflow %s: %v", page, strings.Join(args, " "), err)
	}
}
