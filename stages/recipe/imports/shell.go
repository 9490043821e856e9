package imports

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// shell reads a script as far as a script's text says what it does: which commands it has, with which words. It starts nothing and knows no
// environment.
//
// A variable is expanded if the script sets it to a text: name=value, name="..." of several lines, ${name:-default}, to the words of an array,
// name=(...), whose use is "${name[@]}", and
//
//	if [ -z "$NAME" ]; then NAME=default; fi
//
// where one that the script hasn't set counts as empty. One that has a command's output, that is set where it can't be told whether that
// happens, or that isn't set at all stands as it is, $NAME, and whyNot says why.
type shell struct {
	commands [][]string
	vars     map[string]string
	arrays   map[string][]string
	inArray  bool              // what is read are its words, on any number of lines
	why      map[string]string // of variables that are set, to what can't be told
	frames   []frame           // if and loops that the next command is in
	last     tri               // whether the command before succeeded
	op       string            // && or || before the command
	whole    bool              // what was expanded last is a default in quotes, no words of it
	expanded int               // bytes of variables so far
}

// tri is no, maybe or yes: their minimum is "and".
type tri int8

const (
	no    tri = -1
	maybe tri = 0
	yes   tri = 1
)

// frame is an if, a loop or a case: whether what follows in it is done, and whether none of its branches before was.
type frame struct{ open, none tri }

// A script may double a variable with each line, and eval itself.
const (
	mostExpanded = 4 << 20
	deepestEval  = 8
)

func newShell() *shell {
	return &shell{vars: map[string]string{}, arrays: map[string][]string{}, why: map[string]string{}, last: yes}
}

// token is a word, and what of it an assignment needs.
type token struct {
	text    string
	assigns int  // where its = stands, or 0
	foreign bool // a command's output is part of it
	array   bool // of these words
	words   []string
}

// run reads commands as a POSIX shell does. Redirections and here-documents are left out.
func (sh *shell) run(text string, depth int) error {
	if depth > deepestEval {
		return errors.New("eval within eval has no end")
	}
	var words []token
	var word strings.Builder
	var t token
	in, quoted, target := false, false, false // within a word; a part of it is quoted or expanded; it is where a redirection goes
	end := func() {
		if in && !target {
			t.text = word.String()
			words = append(words, t)
		}
		target = target && !in
		word.Reset()
		in, quoted, t = false, false, token{}
	}
	endCommand := func(op string) error {
		end()
		target = false
		if len(words) == 0 {
			if op != "" { // behind )
				sh.op = op
			}
			return nil
		}
		if sh.inArray {
			var texts []string
			for _, w := range words {
				more, err := sh.all(w)
				if err != nil {
					return err
				}
				texts = append(texts, more...)
			}
			words, sh.commands = nil, append(sh.commands, texts)
			return nil
		}
		err := sh.command(words, depth)
		words, sh.op = nil, op
		return err
	}
	rs := []rune(text)
	var heres [][]string // those of heredoc that begin with the next line
	var groups []shell   // what was known before each ( that is open
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
		case c == '\'':
			in, quoted = true, true
			at := i
			for i++; i < len(rs) && rs[i] != c; i++ {
				word.WriteRune(rs[i])
			}
			if i == len(rs) {
				return fmt.Errorf("the quote at character %d has no end", at+1)
			}
		case c == '"':
			in, quoted = true, true
			at := i
			for i++; i < len(rs) && rs[i] != c; i++ {
				switch {
				case rs[i] == '\\' && i+1 < len(rs) && strings.ContainsRune("\"\\$`\n", rs[i+1]):
					if i++; rs[i] != '\n' {
						word.WriteRune(rs[i])
					}
				case rs[i] == '\\' && i+2 < len(rs) && rs[i+1] == '\r' && rs[i+2] == '\n':
					i += 2
				case rs[i] == '$' || rs[i] == '`':
					value, next, foreign, err := sh.expand(rs, i)
					if err != nil {
						return err
					}
					word.WriteString(value)
					t.foreign = t.foreign || foreign
					i = next - 1
				default:
					word.WriteRune(rs[i])
				}
			}
			if i >= len(rs) {
				return fmt.Errorf("the quote at character %d has no end", at+1)
			}
		case c == '$' && i+1 < len(rs) && rs[i+1] == '"': // as without the $
		case c == '$' && i+1 < len(rs) && rs[i+1] == '\'':
			value, next, err := escaped(rs, i+2)
			if err != nil {
				return err
			}
			word.WriteString(value)
			in, quoted, i = true, true, next-1
		case c == '$' || c == '`':
			value, next, foreign, err := sh.expand(rs, i)
			if err != nil {
				return err
			}
			quoted, t.foreign = true, t.foreign || foreign
			for _, v := range value {
				if unicode.IsSpace(v) && t.assigns == 0 && !foreign && !sh.whole && value != string(rs[i:next]) { // of an expanded value, words
					end()
					continue
				}
				word.WriteRune(v)
				in, quoted = true, true
			}
			i = next - 1
		case c == '#' && !in:
			for i+1 < len(rs) && rs[i+1] != '\n' {
				i++
			}
		case c == '<' || c == '>' || c == '&' && i+1 < len(rs) && rs[i+1] == '>':
			if c != '&' && !quoted && strings.Trim(word.String(), "0123456789") == "" { // which file: 2>
				in = false
			}
			if m := heredoc.FindStringSubmatch(string(rs[i:min(len(rs), i+100)])); m != nil {
				heres = append(heres, m)
			}
			end()
			for i+1 < len(rs) && strings.ContainsRune("<>&|", rs[i+1]) {
				i++
			}
			target = true
		case c == '(' && target && !in: // of a process: > >(tee log)
			for in = true; i+1 < len(rs) && rs[i] != ')'; i++ {
			}
		case c == '(' && t.assigns > 0: // an array
			next := closing(rs, i+1, '(', ')')
			inner := shell{vars: sh.vars, arrays: sh.arrays, why: sh.why, inArray: true, expanded: sh.expanded}
			if err := inner.run(strings.TrimSuffix(string(rs[i+1:next]), ")"), depth+1); err != nil {
				return err
			}
			sh.expanded, t.array, t.words = inner.expanded, true, slices.Concat(inner.commands...)
			i = next - 1
		case c == '(' && !in && len(words) == 0 && !sh.inArray:
			if i+1 < len(rs) && rs[i+1] == '(' { // of numbers
				next := closing(rs, i+1, '(', ')')
				sh.changed(string(rs[i:next]))
				word.WriteString(string(rs[i:next]))
				in, quoted, i = true, true, next-1
				break
			}
			groups = append(groups, shell{vars: maps.Clone(sh.vars), arrays: maps.Clone(sh.arrays), why: maps.Clone(sh.why)})
		case c == ')' && len(groups) > 0 && !strings.HasSuffix(word.String(), "("): // but a function's
			if err := endCommand(""); err != nil {
				return err
			}
			was := groups[len(groups)-1]
			groups, sh.vars, sh.arrays, sh.why = groups[:len(groups)-1], was.vars, was.arrays, was.why
		case c == '\n' && sh.inArray:
			end()
		case c == '\n' || c == ';' || c == '&' || c == '|':
			op := ""
			if (c == '&' || c == '|') && i+1 < len(rs) && rs[i+1] == c {
				i++
				op = string([]rune{c, c})
			}
			if err := endCommand(op); err != nil {
				return err
			}
			if c == '\n' {
				i, heres = behind(rs, i, heres), nil
			}
		case c == ' ' || c == '\t' || c == '\r':
			end()
		case c == '=' && !quoted && t.assigns == 0 && identifier.MatchString(strings.TrimSuffix(word.String(), "+")):
			t.assigns = word.Len()
			fallthrough
		default:
			word.WriteRune(c)
			in = true
		}
	}
	return endCommand("")
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	braced     = regexp.MustCompile(`(?s)^([A-Za-z_]\w*)(?:(:?[-=+?])(.*))?$`)
	left       = regexp.MustCompile("\\$\\{?([A-Za-z_]\\w*|[0-9@*#]|\\([^)]*\\)?)|`[^`]*`?")
	leftWhole  = regexp.MustCompile(`\$\{[^}]*\}|` + left.String())
)

// heredoc is where lines are announced that a command reads: cat <<EOF > file.
var heredoc = regexp.MustCompile(`^<<(-?)[ \t]*["'\\]?([^\s"'<>;&|()]+)`)

// behind is the end of the line at i, or of the here-documents behind it.
func behind(rs []rune, i int, heres [][]string) int {
	for _, here := range heres {
		for line := ""; line != here[2] && i < len(rs); {
			from := i + 1
			for i++; i < len(rs) && rs[i] != '\n'; i++ {
			}
			line = strings.TrimSuffix(string(rs[min(from, len(rs)):min(i, len(rs))]), "\r")
			if here[1] == "-" {
				line = strings.TrimLeft(line, "\t")
			}
		}
	}
	return i
}

// escaped reads what stands in $'...', and where what follows it begins.
func escaped(rs []rune, i int) (string, int, error) {
	known := map[rune]rune{'n': '\n', 't': '\t', '\\': '\\', '\'': '\'', '"': '"'}
	var b strings.Builder
	for ; i < len(rs) && rs[i] != '\''; i++ {
		c := rs[i]
		if c == '\\' && i+1 < len(rs) {
			i++
			if c = known[rs[i]]; c == 0 {
				return "", 0, fmt.Errorf("\\%c in $'...' is not known here: what it stands for belongs in its place", rs[i])
			}
		}
		b.WriteRune(c)
	}
	if i == len(rs) {
		return "", 0, errors.New("a quote, $', has no end")
	}
	return b.String(), i + 1, nil
}

// closing is where what opened before i ends, behind its last character. In ( ) there are quotes and comments.
func closing(rs []rune, i int, open, shut rune) int {
	for deep := 1; i < len(rs); i++ {
		switch c := rs[i]; {
		case open == '(' && c == '\\':
			i++
		case open == '(' && (c == '"' || c == '\''):
			for i++; i < len(rs) && rs[i] != c; i++ {
				if c == '"' && rs[i] == '\\' {
					i++
				}
			}
		case open == '(' && c == '#' && strings.ContainsRune("( \t\n", rs[i-1]):
			for i+1 < len(rs) && rs[i+1] != '\n' {
				i++
			}
		case c == open:
			deep++
		case c == shut:
			if deep--; deep == 0 {
				return i + 1
			}
		}
	}
	return len(rs)
}

// expand gives what the $ or ` at i stands for, and where what follows it begins. What can't be told is itself; foreign is what a command prints.
func (sh *shell) expand(rs []rune, i int) (value string, next int, foreign bool, err error) {
	at := i
	sh.whole = false
	itself := func(next int) string { return string(rs[at:next]) }
	if i++; rs[at] == '`' {
		for i < len(rs) && rs[i] != '`' {
			i++
		}
		i = min(i+1, len(rs))
		return itself(i), i, true, nil
	}
	switch {
	case i == len(rs):
		return "$", i, false, nil
	case rs[i] == '(':
		i = closing(rs, i+1, '(', ')')
		return itself(i), i, true, nil
	case rs[i] == '{':
		i = closing(rs, i+1, '{', '}')
		m := braced.FindStringSubmatch(strings.TrimSuffix(strings.TrimPrefix(itself(i), "${"), "}"))
		if m == nil {
			return itself(i), i, false, nil
		}
		v, set := sh.vars[m[1]]
		if m[2] == "" || sh.why[m[1]] != "" {
			if !set {
				v = itself(i)
			}
			return v, i, false, sh.count(v)
		}
		set = set && (v != "" || !strings.HasPrefix(m[2], ":"))
		if err := sh.count(m[3]); err != nil { // a default may be within a default
			return "", i, false, err
		}
		other, err := sh.text(m[3])
		switch {
		case err != nil:
			return "", i, false, err
		case strings.HasSuffix(m[2], "+") && !set:
			v = ""
		case strings.HasSuffix(m[2], "?"):
			if !set { // the script ends there
				v = itself(i)
			}
		case strings.HasSuffix(m[2], "+") || !set:
			v, sh.whole = other, inQuotes(m[3])
		}
		if strings.HasSuffix(m[2], "=") && !set {
			sh.vars[m[1]] = other
		}
		return v, i, false, sh.count(v)
	case strings.ContainsRune("0123456789@*#?!$-", rs[i]):
		return itself(i + 1), i + 1, false, nil
	}
	for i < len(rs) && (rs[i] == '_' || rs[i] < unicode.MaxASCII && (unicode.IsLetter(rs[i]) || i > at+1 && unicode.IsDigit(rs[i]))) {
		i++
	}
	v, set := sh.vars[itself(i)[1:]]
	if !set {
		v = itself(i)
	}
	return v, i, false, sh.count(v)
}

func (sh *shell) count(v string) error {
	if sh.expanded += len(v); sh.expanded > mostExpanded {
		return fmt.Errorf("the script's variables have more than %d MB of text", mostExpanded>>20)
	}
	return nil
}

// text expands the default in ${name:-default}.
func (sh *shell) text(s string) (string, error) {
	if inQuotes(s) {
		single := s[0] == '\''
		if s = s[1 : len(s)-1]; single {
			return s, nil
		}
	}
	var b strings.Builder
	rs := []rune(s)
	for i := 0; i < len(rs); i++ {
		if rs[i] != '$' {
			b.WriteRune(rs[i])
			continue
		}
		v, next, _, err := sh.expand(rs, i)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		i = next - 1
	}
	return b.String(), nil
}

func inQuotes(s string) bool {
	n := len(s)
	return n > 1 && s[0] == s[n-1] && (s[0] == '"' || s[0] == '\'')
}

// command does what a command does to variables, and keeps it if it may be the one that trains.
func (sh *shell) command(words []token, depth int) error {
	negated := false
	for len(words) > 0 {
		top := len(sh.frames) - 1
		switch words[0].text {
		case "if":
			sh.frames = append(sh.frames, frame{yes, yes})
		case "while", "until":
			sh.frames = append(sh.frames, frame{maybe, maybe})
		case "for", "select", "case":
			if len(words) > 1 && words[0].text != "case" {
				sh.unknown(words[1].text, "a loop sets it")
			}
			sh.frames = append(sh.frames, frame{maybe, maybe})
			return nil
		case "then", "elif", "else":
			if top >= 0 {
				f := &sh.frames[top]
				if words[0].text == "then" {
					f.open, f.none = min(f.none, sh.last), min(f.none, -sh.last)
				} else {
					f.open = f.none
				}
			}
			sh.op = ""
		case "fi", "done", "esac":
			if top >= 0 {
				sh.frames = sh.frames[:top]
			}
			sh.last = maybe
			return nil
		case "!":
			negated = !negated
		case "do", "{", "time":
		default:
			if len(words) == 1 || !strings.HasSuffix(words[0].text, ")") || strings.Contains(words[0].text, "$(") { // but for a function's name and a case's pattern
				return sh.simple(words, negated, depth)
			}
		}
		words = words[1:]
	}
	return nil
}

var (
	elements = regexp.MustCompile(`^\$\{([A-Za-z_]\w*)\[[@*]\]`)
	element  = regexp.MustCompile(`^([A-Za-z_]\w*)\[[^]]*\](?:\+?=|$)`)
	anyName  = regexp.MustCompile(`[A-Za-z_]\w*`)
)

// all is a word, or what an array has in its place: "${NAME[@]}", or ${NAME[@]+"${NAME[@]}"}, which is nothing where there is no array.
func (sh *shell) all(w token) ([]string, error) {
	m := elements.FindStringSubmatch(w.text)
	if m == nil {
		return []string{w.text}, nil
	}
	words, ok := sh.arrays[m[1]]
	switch rest := w.text[len(m[0]):]; {
	case rest == `+"`+m[0]+`}"}` || rest == "+"+m[0]+"}}":
		if !ok && sh.why[m[1]] == "" {
			return nil, nil
		}
	case rest != "}":
		ok = false
	}
	if !ok {
		return []string{w.text}, nil
	}
	return words, sh.count(strings.Join(words, " "))
}

// simple is a command without what surrounds it.
func (sh *shell) simple(words []token, negated bool, depth int) error {
	done := yes
	for _, f := range sh.frames {
		done = min(done, f.open)
	}
	switch sh.op {
	case "&&":
		done = min(done, sh.last)
	case "||":
		done = min(done, -sh.last)
	}
	if done == no {
		return nil
	}
	var texts []string
	assignments := true
	for _, w := range words {
		more, err := sh.all(w)
		if err != nil {
			return err
		}
		texts = append(texts, more...)
		assignments = assignments && w.assigns > 0
	}
	if len(texts) == 0 { // an empty array's
		return nil
	}
	sh.last = maybe
	if m := element.FindStringSubmatch(texts[0]); m != nil {
		sh.unknown(m[1], "one of its elements is set")
	}
	switch texts[0] {
	case "export", "declare", "local", "readonly", "typeset":
		assignments = true
	case "unset":
		for _, name := range texts[1:] {
			if m := element.FindStringSubmatch(name); m != nil {
				sh.unknown(m[1], "one of its elements is unset")
				continue
			}
			delete(sh.vars, name)
			delete(sh.arrays, name)
			delete(sh.why, name)
		}
	case "read", "mapfile", "readarray":
		for _, name := range texts[1:] {
			sh.unknown(name, "it is read when the script runs")
		}
	case "let":
		sh.changed(strings.Join(texts[1:], " "))
	case "[", "[[", "test":
		if texts[0] != "[[" || !slices.ContainsFunc(texts[1:], func(w string) bool { return strings.ContainsAny(w, "*?[") }) { // there a pattern
			sh.last = sh.test(texts[1:])
		}
	case "true", ":":
		sh.last = yes
	case "false":
		sh.last = no
	case "eval":
		return sh.run(strings.Join(texts[1:], " "), depth+1)
	case "bash", "sh":
		if len(texts) > 2 && texts[1] == "-c" {
			return sh.run(texts[2], depth+1)
		}
	}
	if negated {
		sh.last = -sh.last
	}
	if !assignments {
		sh.commands = append(sh.commands, texts)
		return nil
	}
	sh.last = yes
	for _, w := range words {
		if w.assigns == 0 {
			continue
		}
		name, value := w.text[:w.assigns], w.text[w.assigns+1:]
		name, more := strings.CutSuffix(name, "+")
		if w.array {
			was, there := sh.arrays[name]
			sh.unknown(name, "it is an array, or what a command prints is part of it")
			switch {
			case done != yes || more && !there:
				sh.unknown(name, undecided)
			case more:
				sh.arrays[name] = slices.Concat(was, w.words)
			default:
				sh.arrays[name] = w.words
			}
			continue
		}
		if more {
			if delete(sh.arrays, name); sh.why[name] != "" { // what is added to an array so is added to its first word
				continue
			}
			value = sh.vars[name] + value
		}
		switch was, set := sh.vars[name]; {
		case w.foreign:
			sh.unknown(name, "it is an array, or what a command prints is part of it")
		case done == yes:
			sh.vars[name] = value
			delete(sh.arrays, name)
			delete(sh.why, name)
		case sh.why[name] == "" && (!set || was != value):
			sh.unknown(name, undecided)
		}
	}
	return nil
}

// changed is what let and (( )) do to variables: what is named there may have another value then.
func (sh *shell) changed(numbers string) {
	for _, name := range anyName.FindAllString(numbers, -1) {
		sh.unknown(name, "it is computed")
	}
}

const undecided = "it is set under a condition that the script's text does not decide"

func (sh *shell) unknown(name, why string) {
	delete(sh.vars, name)
	delete(sh.arrays, name)
	sh.why[name] = why
}

// test is what stands in [ ].
func (sh *shell) test(words []string) tri {
	if n := len(words); n > 0 && (words[n-1] == "]" || words[n-1] == "]]") {
		words = words[:n-1]
	}
	truth := func(b bool) tri {
		if b {
			return yes
		}
		return no
	}
	known := true
	value := func(w string) string {
		switch name := variable(w); {
		case name == "":
		case sh.why[name] == "" && (w == "$"+name || w == "${"+name+"}"): // not set
			return ""
		default:
			known = false
		}
		return w
	}
	result := maybe
	switch {
	case len(words) == 1 && words[0] != "-z" && words[0] != "-n":
		result = truth(value(words[0]) != "")
	case len(words) == 1: // of nothing at all
		result = truth(words[0] == "-z")
	case len(words) == 2 && words[0] == "-z":
		result = truth(value(words[1]) == "")
	case len(words) == 2 && words[0] == "-n":
		result = truth(value(words[1]) != "")
	case len(words) == 2 && words[0] == "!":
		return -sh.test(words[1:])
	case len(words) == 3 && words[0] == "!":
		return -sh.test(words[1:])
	case len(words) == 3 && (words[1] == "=" || words[1] == "=="):
		result = truth(value(words[0]) == value(words[2]))
	case len(words) == 3 && words[1] == "!=":
		result = truth(value(words[0]) != value(words[2]))
	}
	if !known {
		return maybe
	}
	return result
}

// variable is the name of the first one that is left in a word, or what else a script would put in, or "".
func variable(w string) string {
	if m := left.FindStringSubmatch(w); m != nil {
		if identifier.MatchString(m[1]) {
			return m[1]
		}
		return m[0]
	}
	return ""
}

// whyNot says why a variable is not expanded, and what to do.
func (sh *shell) whyNot(name string) string {
	why := sh.why[name]
	switch {
	case !identifier.MatchString(name):
		return fmt.Sprintf("%s is known only when the script runs: put its value in its place, or import the line that echo \"$cmd\" in place of eval $cmd prints", name)
	case why == "":
		why = "nothing in the script sets it"
	}
	return fmt.Sprintf("$%s can't be expanded (%s): put its value in its place, or import the line that echo \"$cmd\" in place of eval $cmd prints", name, why)
}
