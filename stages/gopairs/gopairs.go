// Package gopairs makes training data of the Go sources that every Go user has: pairs of a doc comment and the function
// that it describes, which is retrieval of code by a sentence, without a download.
//
// # What a pair is
//
// The comment is the query: its text as go doc shows it, without comment markers and directives. The function's body is
// the document: what stands between its braces, shifted left, without its declaration line. Go's doc comments begin with
// the function's name, and the declaration has that name, its parameters and their types: with the declaration, matching
// names would be the whole task.
//
// # What is left out, and counted
//
// Nothing disappears silently: Skipped says how many files and functions were left out for which reason.
//
//   - Test files and testdata folders: their comments say what is tested, and testdata is no code that anybody reads.
//   - Vendor folders: copies of other modules. The Go sources hold golang.org/x twice, in two versions, and nearly equal
//     pairs would sit on both sides of a split.
//   - Folders that the go command does not see, which are those that begin with . or _.
//   - Generated files (by the line that ast.IsGenerated looks for), and files that do not parse.
//   - Functions without a doc comment, or without a body (written in assembly), or whose comment has fewer than 4 words
//     or body fewer than 3: "Len is part of sort.Interface" can stay, "See above" and "return nil" can't be found by
//     anybody. A word is a run of letters and digits.
//   - Comments and bodies that another pair has already, apart from white space, in the order of files: implementations
//     per platform repeat them, and a repeated text is a false negative in every contrastive batch and in every corpus.
//
// Files for other platforms count like all others, since nothing is compiled. Links to folders are not followed.
//
// # Split
//
// Split keeps a package's pairs together: functions of one package share names and habits, and a model must not have
// seen them.
package gopairs

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unicode"
)

const (
	minCommentWords = 4
	minBodyWords    = 3
)

// Pair is a doc comment and the body of the function that it belongs to.
type Pair struct {
	Package string // the folder below the root, with slashes: "net/http"; "." for the root itself
	File    string // below the root, with slashes
	Line    int    // of the function's declaration, from 1
	Name    string // "Split", or "Reader.Read" for a method
	Comment string
	Body    string
}

// ID identifies the pair among those of its root: "net/http/server.go:123".
func (p Pair) ID() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Skipped counts what Extract left out.
type Skipped struct {
	// Files. Each counts once, for the first reason that applies.
	Testdata   int // below a testdata folder
	Vendor     int // below a vendor folder
	Hidden     int // below a folder whose name begins with . or _, or named so themselves
	Tests      int // *_test.go
	Generated  int
	Unparsable int

	// Functions of the files that remain, likewise.
	NoComment        int
	NoBody           int
	ShortComment     int
	ShortBody        int
	DuplicateComment int
	DuplicateBody    int
}

// Extraction is what Extract found.
type Extraction struct {
	Root       string
	Files      int      // that were read
	Functions  int      // in them: the pairs and all functions that Skipped counts
	Pairs      []Pair   // by file, in the order of paths, then by line
	Skipped    Skipped  //
	Unparsable []string // a message with place and reason for each file that does not parse
}

// String is a summary of a few lines, for a log.
func (x *Extraction) String() string {
	s := x.Skipped
	return fmt.Sprintf("%d pairs from %d functions in %d files of %s\n", len(x.Pairs), x.Functions, x.Files, x.Root) +
		fmt.Sprintf("files left out: %d tests, %d testdata, %d vendor, %d hidden, %d generated, %d that do not parse\n",
			s.Tests, s.Testdata, s.Vendor, s.Hidden, s.Generated, s.Unparsable) +
		fmt.Sprintf("functions left out: %d without comment, %d without body, %d short comments, %d short bodies, %d repeated comments, %d repeated bodies",
			s.NoComment, s.NoBody, s.ShortComment, s.ShortBody, s.DuplicateComment, s.DuplicateBody)
}

// Extract reads all Go files below root, which may be the sources of Go itself (DefaultRoot), a module or any folder
// with Go code, on all of the processor's cores. The result is the same on every run. progress, if not nil, is called
// now and then with the number of files done and of all files, never by two goroutines at once. It returns ctx's error
// when cancelled. A file that can't be read is an error, one that does not parse is counted.
func Extract(ctx context.Context, root string, progress func(done, total int)) (*Extraction, error) {
	x := &Extraction{Root: root}
	files, err := x.list(ctx)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no Go sources under %s (tests, testdata and vendor folders don't count): name a folder that has some with --source", root)
	}
	found, err := parseAll(ctx, root, files, progress)
	if err != nil {
		return nil, err
	}
	x.collect(found)
	if len(x.Pairs) == 0 {
		return nil, fmt.Errorf("no function with a doc comment of %d words or more under %s: name another folder with --source\n%s", minCommentWords, root, x)
	}
	return x, nil
}

// list finds the files to read, as paths below the root with slashes, in the order of WalkDir, which is that of names.
func (x *Extraction) list(ctx context.Context) ([]string, error) {
	// WalkDir does not follow the root when it is a link, and Debian's GOROOT/src is one.
	root, err := filepath.EvalSymlinks(x.Root)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(root); err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a folder", root)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("no Go sources under %s: install Go with its sources, or name a folder with Go code with --source: %w", x.Root, err)
	}
	var files []string
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return ctx.Err()
		}
		below, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		below = filepath.ToSlash(below)
		if reason := x.Skipped.file(below); reason != nil {
			*reason++
			return nil
		}
		if info, err := os.Stat(name); err != nil {
			return err
		} else if !info.Mode().IsRegular() { // a link to a folder that has the name of a file
			return nil
		}
		files = append(files, below)
		return nil
	})
	return files, err
}

// file is the counter of the reason for which a path's file is left out, or nil.
func (s *Skipped) file(below string) *int {
	dir, name := path.Split(below)
	for folder := range strings.SplitSeq(dir, "/") {
		switch {
		case folder == "testdata":
			return &s.Testdata
		case folder == "vendor":
			return &s.Vendor
		case strings.HasPrefix(folder, ".") || strings.HasPrefix(folder, "_"):
			return &s.Hidden
		}
	}
	switch {
	case strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"):
		return &s.Hidden
	case strings.HasSuffix(name, "_test.go"):
		return &s.Tests
	}
	return nil
}

// file is what parse found in one file.
type file struct {
	generated  bool
	unparsable string // the parser's message
	functions  []function
}

type function struct {
	Pair
	noComment, noBody bool
}

func parseAll(ctx context.Context, root string, files []string, progress func(done, total int)) ([]file, error) {
	found := make([]file, len(files))
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex // of next, done and progress
	next, done := 0, 0
	take := func(finished int) int {
		mu.Lock()
		defer mu.Unlock()
		done += finished
		if progress != nil && finished > 0 && (done%64 == 0 || done == len(files)) {
			progress(done, len(files))
		}
		next++
		return next - 1
	}
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wait.Go(func() {
			for i := take(0); i < len(files) && work.Err() == nil; i = take(1) {
				var err error
				if found[i], err = parse(root, files[i]); err != nil {
					stop(err)
				}
			}
		})
	}
	wait.Wait()
	return found, context.Cause(work)
}

func parse(root, below string) (file, error) {
	src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(below)))
	if err != nil {
		return file{}, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, below, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{unparsable: err.Error()}, nil
	}
	f := file{generated: ast.IsGenerated(tree)}
	if f.generated {
		return f, nil
	}
	for _, d := range tree.Decls {
		decl, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		place := fset.PositionFor(decl.Name.Pos(), false) // a //line comment must not change what the ID says
		fn := function{Pair: Pair{Package: path.Dir(below), File: below, Line: place.Line, Name: name(decl)}}
		fn.Comment = strings.TrimSpace(decl.Doc.Text())
		fn.noComment = fn.Comment == ""
		if fn.noBody = decl.Body == nil; !fn.noBody {
			at := fset.File(decl.Pos()).Offset
			fn.Body = shiftLeft(string(src[at(decl.Body.Lbrace)+1 : at(decl.Body.Rbrace)]))
		}
		f.functions = append(f.functions, fn)
	}
	return f, nil
}

// name is the function's name, with its receiver's type in front: "Reader.Read".
func name(decl *ast.FuncDecl) string {
	if decl.Recv == nil || len(decl.Recv.List) == 0 {
		return decl.Name.Name
	}
	receiver := decl.Recv.List[0].Type
	for {
		switch t := receiver.(type) {
		case *ast.StarExpr:
			receiver = t.X
		case *ast.ParenExpr:
			receiver = t.X
		case *ast.IndexExpr: // of one type parameter
			receiver = t.X
		case *ast.IndexListExpr:
			receiver = t.X
		case *ast.Ident:
			return t.Name + "." + decl.Name.Name
		default:
			return decl.Name.Name
		}
	}
}

// shiftLeft takes the tab away that the body of a formatted function has before each line, and the space around it all.
// A line of a raw string may lose one that belongs to it: this is text to read, not to compile.
func shiftLeft(body string) string {
	lines := strings.Split(strings.ReplaceAll(body, "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "\t")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// collect makes pairs of the functions, in the order of files, and counts the others.
func (x *Extraction) collect(found []file) {
	s := &x.Skipped
	comments, bodies := map[string]bool{}, map[string]bool{}
	for _, f := range found {
		x.Files++
		switch {
		case f.unparsable != "":
			s.Unparsable++
			x.Unparsable = append(x.Unparsable, f.unparsable)
		case f.generated:
			s.Generated++
		}
		for _, fn := range f.functions {
			x.Functions++
			comment, body := strings.Join(strings.Fields(fn.Comment), " "), strings.Join(strings.Fields(fn.Body), " ")
			switch {
			case fn.noComment:
				s.NoComment++
			case fn.noBody:
				s.NoBody++
			case words(comment) < minCommentWords:
				s.ShortComment++
			case words(body) < minBodyWords:
				s.ShortBody++
			case comments[comment]:
				s.DuplicateComment++
			case bodies[body]:
				s.DuplicateBody++
			default:
				comments[comment], bodies[body] = true, true
				x.Pairs = append(x.Pairs, fn.Pair)
			}
		}
	}
}

func words(text string) int {
	return len(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }))
}
