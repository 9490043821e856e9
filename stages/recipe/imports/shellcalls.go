package imports

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// function is one that a script defines. It is read where it is called, with the arguments and variables that it has there.
type function struct {
	name   string
	body   *syntax.Stmt
	text   string // that has it
	called bool
}

// call does what a command does to variables, and keeps it: it may be the one that trains.
func (sh *shell) call(c *syntax.CallExpr) error {
	sh.tests = len(c.Args) > 0 && (c.Args[0].Lit() == "[" || c.Args[0].Lit() == "test")
	words, err := sh.words(c.Args)
	sh.tests = false
	if err != nil {
		return err
	}
	sh.last = maybe
	if len(words) == 0 {
		foreign, err := sh.assignAll(c.Assigns)
		if len(c.Args) == 0 && !foreign {
			sh.last = yes
		}
		return err
	}
	for _, f := range slices.Backward(sh.functions) {
		if f.name == words[0] {
			return sh.with(c.Assigns, func() error { return sh.enter(f, words[1:]) })
		}
	}
	switch words[0] {
	case "unset":
		if len(words) > 1 && words[1] == "-f" {
			break
		}
		for _, name := range words[1:] {
			if of, _, element := strings.Cut(name, "["); element {
				sh.unknown(of, "one of its elements is unset")
			} else {
				sh.unset(name)
			}
		}
	case "read", "mapfile", "readarray", "getopts":
		for _, name := range append([]string{"OPTARG"}, words[1:]...) {
			sh.unknown(name, "it is read when the script runs")
		}
	case "printf":
		if len(words) > 2 && words[1] == "-v" {
			sh.unknown(words[2], arrayOrPrinted)
		}
	case "set":
		if slices.Contains(words, "--") {
			sh.unknown("@", "")
		}
	case "shift":
		n, args := 1, sh.arrays["@"]
		if len(words) > 1 {
			n, _ = strconv.Atoi(words[1])
		}
		if sh.unknown("@", ""); sh.done == yes && 0 < n && n <= len(args) {
			sh.arrays["@"] = args[n:]
		}
	case "[":
		if words[len(words)-1] == "]" {
			sh.last = sh.test(words[1 : len(words)-1])
		}
	case "test":
		sh.last = sh.test(words[1:])
	case "true", ":":
		sh.last = yes
	case "false":
		sh.last = no
	case "return":
		sh.goes = min(sh.goes, -sh.done)
		sh.done = min(sh.done, sh.goes)
	case "eval":
		return sh.with(c.Assigns, func() error { return sh.run(strings.Join(words[1:], " ")) })
	}
	var environment []string
	for _, a := range c.Assigns {
		environment = append(environment, sh.source(a))
	}
	begin, text := shellWithin(words)
	if text == 0 {
		sh.commands = append(sh.commands, append(environment, words...))
		return nil
	}
	before := len(sh.commands)
	err = sh.apart(func() error {
		its := func(name, _ string) bool { return !sh.exported[name] }
		maps.DeleteFunc(sh.vars, its)
		maps.DeleteFunc(sh.why, its)
		sh.arrays = map[string][]string{"@": words[min(text+2, len(words)):]}
		if _, err := sh.assignAll(c.Assigns); err != nil {
			return err
		}
		return sh.run(words[text])
	})
	for k, inner := range sh.commands[before:] { // srun bash -c "..." starts as many of it as there are tasks
		sh.commands[before+k] = slices.Concat(environment, words[:begin], inner)
	}
	sh.last = maybe
	return err
}

// shellWithin finds bash -c "..." among a command's words: where it begins, and its text, or 0.
func shellWithin(words []string) (begin, text int) {
	if words[0] == "echo" || words[0] == "printf" {
		return 0, 0
	}
	for i, w := range words {
		if w = path.Base(w); w != "bash" && w != "sh" {
			continue
		}
		for j, option := range words[i+1:] {
			switch {
			case ofText.MatchString(option) && i+j+2 < len(words):
				return i, i + j + 2
			case strings.HasPrefix(option, "-") || option == "pipefail":
				continue
			}
			break
		}
	}
	return 0, 0
}

var ofText = regexp.MustCompile(`^-[a-z]*c[a-z]*$`)

// declare reads export, declare, local and readonly.
func (sh *shell) declare(c *syntax.DeclClause) error {
	options, local := "", c.Variant.Value == "local"
	for _, a := range c.Args {
		if a.Name == nil {
			if a.Value != nil {
				options += a.Value.Lit()
			}
			continue
		}
		name := a.Name.Value
		if c.Variant.Value == "export" || strings.Contains(options, "x") {
			sh.exported[name] = true
		}
		if local {
			sh.locals = append(sh.locals, name)
		}
		switch {
		case strings.ContainsAny(options, "ilnu"):
			sh.unknown(name, "declare "+options+" changes what it is set to")
		case a.Naked && local:
			sh.unset(name)
		default:
			if _, err := sh.assign(a); err != nil {
				return err
			}
		}
	}
	sh.last = yes
	return nil
}

// with reads what has variables of its own, as in A=b eval ... Whether they are kept depends on what is done to them there.
func (sh *shell) with(own []*syntax.Assign, read func() error) error {
	if _, err := sh.assignAll(own); err != nil {
		return err
	}
	err := read()
	for _, a := range own {
		sh.unknown(a.Name.Value, "it is set for one command")
	}
	return err
}

// enter reads a function that is called.
func (sh *shell) enter(f *function, words []string) error {
	if sh.calls++; sh.calls > mostCalls {
		return fmt.Errorf("the script calls its functions more than %d times", mostCalls)
	}
	f.called = true
	was, text, locals, done, goes := sh.clone(), sh.text, sh.locals, sh.done, sh.goes
	sh.text, sh.locals, sh.goes = f.text, []string{"@"}, yes
	if sh.arrays["@"] = words; words == nil {
		delete(sh.arrays, "@")
	}
	err := sh.statement(f.body)
	if sh.goes != yes { // of which of its commands it returned
		sh.last = maybe
	}
	for _, name := range sh.locals {
		sh.back(was, name)
	}
	sh.text, sh.locals, sh.done, sh.goes = text, locals, done, goes
	return err
}

// uncalled reads the functions that nothing in the script calls by their name: "$1" may.
func (sh *shell) uncalled() error {
	for i := 0; i < len(sh.functions); i++ {
		if f := sh.functions[i]; !f.called {
			if err := sh.apart(func() error { return sh.enter(f, nil) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v variables) clone() variables {
	return variables{maps.Clone(v.vars), maps.Clone(v.arrays), maps.Clone(v.why), maps.Clone(v.gone)}
}

// back makes a variable what it was.
func (v variables) back(was variables, name string) {
	again(v.vars, was.vars, name)
	again(v.arrays, was.arrays, name)
	again(v.why, was.why, name)
	again(v.gone, was.gone, name)
}

func again[V any](now, was map[string]V, name string) {
	if v, ok := was[name]; ok {
		now[name] = v
	} else {
		delete(now, name)
	}
}
