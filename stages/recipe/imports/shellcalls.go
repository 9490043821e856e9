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
	sure   bool   // it is defined, whatever conditions hold
	gone   bool   // it is unset, or of a shell that has ended
	called bool
}

// local is a variable of a function, and what there was by its name before.
type local struct {
	name string
	was  variables
	sure bool // that it is one
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
	if of := sh.defined(words[0]); len(of) > 0 {
		return sh.with(c.Assigns, func() error { return sh.either(of, words[1:]) })
	}
	switch words[0] {
	case "unset":
		if len(words) > 1 && words[1] == "-f" {
			for _, f := range sh.functions {
				f.gone = f.gone || sh.done == yes && slices.Contains(words[2:], f.name)
			}
			break
		}
		for _, name := range words[1:] {
			of, _, element := strings.Cut(name, "[")
			switch {
			case element:
				sh.unknown(of, "one of its elements is unset")
			case sh.odd[name] != "": // what is read-only stays
				sh.unknown(name, sh.odd[name])
			case sh.callers(name):
				sh.unknown(name, ofCaller)
			default:
				variable := sh.isSet(name) || words[1] == "-v"
				sh.unset(name)
				sh.export(name, false)
				for _, f := range sh.functions {
					f.gone = f.gone || !variable && sh.done == yes && f.name == name
				}
			}
		}
	case "export", "readonly", "declare", "typeset", "local": // with variables of its own before it, of which bash keeps some
		for _, a := range c.Assigns {
			words = append(words, a.Name.Value)
		}
		for _, w := range words[1:] {
			name, _, _ := strings.Cut(w, "=")
			sh.odd[name], sh.exported[name] = ofOneCommand, false // whatever it is set to: it may be read-only
			sh.unknown(name, ofOneCommand)
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
		if setsArguments(words[1:]) {
			sh.unknown("@", otherArguments)
		}
	case "shift":
		n, args := 1, sh.arrays["@"]
		if len(words) > 1 {
			n, _ = strconv.Atoi(words[1])
		}
		if sh.unknown("@", otherArguments); sh.done == yes && 0 < n && n <= len(args) {
			sh.arrays["@"] = args[n:]
			delete(sh.why, "@")
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
		own := func(name, _ string) bool { _, exported := sh.exported[name]; return !exported }
		maps.DeleteFunc(sh.vars, own)
		maps.DeleteFunc(sh.why, own)
		for name, sure := range sh.exported {
			if !sure {
				sh.unknown(name, undecided)
			}
		}
		sh.arrays = map[string][]string{"@": words[min(text+2, len(words)):]}
		if _, err := sh.assignAll(c.Assigns); err != nil {
			return err
		}
		sh.environment(words[:begin])
		return sh.run(words[text])
	})
	for k, inner := range sh.commands[before:] { // srun bash -c "..." starts as many of it as there are tasks
		sh.commands[before+k] = slices.Concat(environment, words[:begin], inner)
	}
	sh.last = maybe
	return err
}

// environment does what env, if a command's words are its, does to variables.
func (sh *shell) environment(words []string) {
	for i, w := range words {
		name, value, set := strings.Cut(w, "=")
		switch {
		case set && identifier.MatchString(name):
			sh.set(name, value, false)
		case path.Base(words[0]) != "env":
		case w == "-i" || w == "-" || w == "--ignore-environment":
			for name := range sh.exported {
				sh.unset(name)
			}
		case name == "--unset":
			sh.unset(value)
		case w == "-u" && i+1 < len(words):
			sh.unset(words[i+1])
		}
	}
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

const (
	otherArguments = "the script sets or shifts what it is called with"
	ofCaller       = "a function unsets it that another one has it from"
	ofOneCommand   = "it is set for one command"
)

// setsArguments tells whether set is called with more than options.
func setsArguments(words []string) bool {
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "--" || w == "" || w[0] != '-' && w[0] != '+':
			return true
		case strings.HasSuffix(w, "o"): // whose name follows
			i++
		}
	}
	return false
}

// declare reads export, declare, local and readonly. All values are read before one of them is set, but those of arrays.
func (sh *shell) declare(c *syntax.DeclClause) error {
	options, own := "", c.Variant.Value == "local"
	if own && !sh.inside { // an error, and nothing more
		sh.last = no
		return nil
	}
	if c.Variant.Value == "declare" || c.Variant.Value == "typeset" {
		own = sh.inside
	}
	var all []func()
	for _, a := range c.Args {
		if a.Name == nil {
			words, err := sh.words([]*syntax.Word{a.Value})
			if err != nil {
				return err
			}
			for _, w := range words { // "name=value", or options
				if strings.HasPrefix(w, "-") || strings.HasPrefix(w, "+") {
					options += w
					own = own && !strings.Contains(w, "g")
					continue
				}
				name, value, set := strings.Cut(w, "=")
				if plus := strings.TrimSuffix(name, "+"); set && identifier.MatchString(plus) {
					all = append(all, sh.declared(c, options, own, plus, func() { sh.put(plus, value, plus != name, false) }))
				}
			}
			continue
		}
		name := a.Name.Value
		set, _, err := sh.assignment(a)
		if err != nil {
			return err
		}
		if set = sh.declared(c, options, own, name, set); a.Array != nil {
			set()
			continue
		}
		all = append(all, set)
	}
	for _, set := range all {
		set()
	}
	sh.last = yes
	return nil
}

// declared is what declaring a variable does, of which set sets it.
func (sh *shell) declared(c *syntax.DeclClause, options string, own bool, name string, set func()) func() {
	return func() {
		if strings.Contains(options, "g") && slices.ContainsFunc(sh.locals, func(l local) bool { return l.name == name }) {
			for i := range sh.locals { // what is set is behind these
				if l := &sh.locals[i]; l.name == name {
					l.sure = false
				}
			}
			sh.unknown(name, undecided)
			return
		}
		if own && !slices.ContainsFunc(sh.locals[sh.frame:], func(l local) bool { return l.name == name && l.sure }) {
			sh.locals = append(sh.locals, local{name, sh.clone(), sh.done == yes})
			sh.unset(name)
			delete(sh.odd, name)
		}
		switch {
		case strings.Contains(options, "+x") || c.Variant.Value == "export" && strings.Contains(options, "n"):
			sh.export(name, false)
		case c.Variant.Value == "export" || strings.Contains(options, "x"):
			sh.export(name, true)
		}
		if c.Variant.Value != "export" && strings.ContainsAny(options, "ilnu") {
			sh.odd[name] = "declare " + options + " changes what it is set to"
			sh.unknown(name, sh.odd[name])
			return
		}
		if set(); c.Variant.Value == "readonly" || strings.Contains(options, "r") {
			sh.odd[name] = "it is read-only, and set again or unset"
		}
	}
}

// export has a variable be in the environment of commands, or not.
func (sh *shell) export(name string, is bool) {
	_, exported := sh.exported[name]
	switch {
	case sh.done == yes && is:
		sh.exported[name] = true
	case sh.done == yes:
		delete(sh.exported, name)
	case is != exported:
		sh.exported[name] = false
	}
}

// callers tells whether a variable is local to a function that has called, one way or another, the one that is read: what is unset here is that one's.
func (sh *shell) callers(name string) (is bool) {
	its := func(l local) bool { return l.name == name }
	if slices.ContainsFunc(sh.locals[sh.frame:], its) {
		return false
	}
	for i := range sh.locals[:sh.frame] {
		if l := &sh.locals[i]; its(*l) {
			is, l.sure = true, false
		}
	}
	return is
}

// isSet tells whether the script has set a variable.
func (sh *shell) isSet(name string) bool {
	_, set := sh.vars[name]
	return set || sh.arrays[name] != nil || sh.why[name] != ""
}

// with reads what has variables of its own, as in A=b eval ... Whether they are kept depends on what is done to them there.
func (sh *shell) with(own []*syntax.Assign, read func() error) error {
	if _, err := sh.assignAll(own); err != nil {
		return err
	}
	err := read()
	for _, a := range own {
		sh.unknown(a.Name.Value, ofOneCommand)
	}
	return err
}

// defined are the functions of a name that a command may call: where it can't be told which, the last one first.
func (sh *shell) defined(name string) (all []*function) {
	for _, f := range slices.Backward(sh.functions) {
		if f.name != name || f.gone {
			continue
		}
		if all = append(all, f); f.sure {
			break
		}
	}
	return all
}

// either reads the one of some functions that is called.
func (sh *shell) either(all []*function, words []string) (err error) {
	if len(all) == 1 && (all[0].sure || sh.done != yes) {
		return sh.enter(all[0], words)
	}
	done := sh.done
	for _, f := range all {
		sh.done = min(done, maybe)
		if err = sh.enter(f, words); err != nil {
			break
		}
	}
	sh.done, sh.last = done, maybe
	return err
}

// enter reads a function that is called.
func (sh *shell) enter(f *function, words []string) error {
	if sh.calls++; sh.calls > mostCalls {
		return fmt.Errorf("the script calls its functions more than %d times", mostCalls)
	}
	f.called = true
	text, frame, inside, done, goes := sh.text, sh.frame, sh.inside, sh.done, sh.goes
	sh.text, sh.frame, sh.inside, sh.goes = f.text, len(sh.locals), true, yes
	sh.locals = append(sh.locals, local{"@", sh.clone(), true})
	delete(sh.why, "@")
	if sh.arrays["@"] = words; words == nil {
		delete(sh.arrays, "@")
	}
	err := sh.statement(f.body)
	if sh.goes != yes { // of which of its commands it returned
		sh.last = maybe
	}
	for _, l := range slices.Backward(sh.locals[sh.frame:]) {
		if sh.back(l.was, l.name); !l.sure {
			sh.unknown(l.name, undecided)
		}
	}
	sh.locals = sh.locals[:sh.frame]
	sh.text, sh.frame, sh.inside, sh.done, sh.goes = text, frame, inside, done, goes
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
	return variables{maps.Clone(v.vars), maps.Clone(v.arrays), maps.Clone(v.why), maps.Clone(v.gone), maps.Clone(v.odd), maps.Clone(v.exported)}
}

// back makes a variable what it was.
func (v variables) back(was variables, name string) {
	again(v.vars, was.vars, name)
	again(v.arrays, was.arrays, name)
	again(v.why, was.why, name)
	again(v.gone, was.gone, name)
	again(v.odd, was.odd, name)
	again(v.exported, was.exported, name)
}

func again[V any](now, was map[string]V, name string) {
	if v, ok := was[name]; ok {
		now[name] = v
	} else {
		delete(now, name)
	}
}
