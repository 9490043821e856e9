package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"contraflow/testdata/harness"
)

// parseLine reads {"q": text, "l": list, "o": {"in": text}} as a dataset would.
func parseLine(line []byte) (q, in *string, l []*string, reason string) {
	var p jsonlParser
	p.want = []sourceColumn{{name: "q"}, {name: "l", list: true}, {name: "o.in"}}
	texts := make([]textColumn, 3)
	for i := range texts {
		texts[i].reset(i == 1)
	}
	_, reason = p.parse(line, 0, len(line), texts, nil)
	text := func(s span) *string {
		if s.n == null {
			return nil
		}
		v := string(line[s.off : s.off+s.n])
		return &v
	}
	for i := range texts {
		texts[i].arena = line
	}
	texts[1].end(1)
	for _, s := range texts[1].row(0) {
		l = append(l, text(s))
	}
	return text(texts[0].row(0)[0]), text(texts[2].row(0)[0]), l, reason
}

// compareWithStandard holds a line against encoding/json.
func compareWithStandard(t *testing.T, line []byte) {
	t.Helper()
	if !utf8.Valid(line) {
		parseLine(bytes.Clone(line)) // must survive; texts that aren't UTF-8 are refused later
		return
	}
	var want map[string]any
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber() // 1e777 is JSON, if not a float64
	valid := json.Valid(line) && dec.Decode(&want) == nil && want != nil
	q, in, l, reason := parseLine(bytes.Clone(line))
	if json.Valid(line) && want == nil { // JSON, but no object
		if !strings.HasPrefix(reason, "it is ") || !strings.HasSuffix(reason, ", where an object { } should be") {
			t.Fatalf("%q: %q, encoding/json says that it is JSON, and no object", line, reason)
		}
		return
	}
	if valid != !strings.HasPrefix(reason, "not JSON") {
		t.Fatalf("%q: %q, encoding/json says valid: %v", line, reason, valid)
	}
	if !valid || reason != "" {
		return
	}
	show := func(v any) string { b, _ := json.Marshal(v); return string(b) }
	if v, ok := want["q"]; ok && show(v) != show(q) {
		t.Fatalf("%q: q is %s, want %s", line, show(q), show(v))
	}
	if v, ok := want["l"].([]any); ok && len(v) > 0 && show(v) != show(l) {
		t.Fatalf("%q: l is %s, want %s", line, show(l), show(v))
	}
	_, direct := want["o.in"]
	if o, ok := want["o"].(map[string]any); ok && !direct && o["in"] != nil && bytes.Count(line, []byte(`"o"`)) == 1 && show(o["in"]) != show(in) {
		t.Fatalf("%q: o.in is %s, want %s", line, show(in), show(o["in"]))
	}
}

var jsonSeeds = []string{
	`{"q":"a","l":["b","c",null],"o":{"in":"d"}}`, `{}`, ` { "q" : null , "l" : [ ] } `, `{"q":"a","q":"b"}`, `{"l":["a"],"l":["b","c"]}`,
	`{"q":"\u0041\u00e9\ud83d\ude42\n\t\"\\\/\b\f\r"}`, `{"q":"\u00E9\uABCD\uD83D\uDE42\u00AF"}`, `{"q":"\u00G9"}`, `{"q":"\ud83d"}`, `{"q":"\ud83dx\ude42"}`, `{"q":"\ud83d\u0041"}`, `{"\u0071":"key with an escape"}`,
	`{"q":"日本語 🙂"}`, "{\"q\":\"\x00\"}", "{\"q\":\"tab\tinside\"}", `{"q":"unfinished`, `{"q":"\`, `{"q":"\u12`, `{"q":"\x"}`, `{"q":"a"`, `{"q":"a",}`, `{"q"}`, `{"q":}`, `{,}`,
	`{"x":[1,-2.5e+10,0,0.1,1E5,true,false,null,{"y":[]}]}`, `{"x":1e777}`, `{"x":01}`, `{"x":-}`, `{"x":1.}`, `{"x":.5}`, `{"x":1e}`, `{"x":+1}`, `{"x":tru}`, `{"x":nul}`, `{"x":NaN}`,
	`{"q":"a"} x`, `{"q":"a"}{}`, `[]`, `"text"`, `12`, ``, `null`, `{"q":1}`, `{"l":"text"}`, `{"l":[1]}`, `{"q":["a"]}`, `{"q":1,"q":"b"}`, `{"o.in":"x"}`, `{"o":{"in":"x","in":"y"}}`, `{"o":[1]}`, "\ufeff{}",
	`{"q":"0123456\\"}`, `{"q":"01234567\""}`, `{"q":"\\\\\\\\"}`,
}

func TestJSONAgainstStandard(t *testing.T) {
	for _, line := range jsonSeeds {
		compareWithStandard(t, []byte(line))
		for cut := range len(line) {
			compareWithStandard(t, []byte(line[:cut]))
			compareWithStandard(t, []byte(line[:cut]+line[cut+1:]))
		}
	}
	deep := func(n int) []byte { return []byte(`{"x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`) }
	if _, _, _, reason := parseLine(deep(maxJSONDepth - 1)); reason != "" {
		t.Error(reason)
	}
	if _, _, _, reason := parseLine(deep(1 << 20)); !strings.Contains(reason, "nested") {
		t.Errorf("a million brackets: %q", reason)
	}
}

func FuzzJSONL(f *testing.F) {
	for _, line := range jsonSeeds {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.Count(line, []byte("[")) < maxJSONDepth && bytes.Count(line, []byte("{")) < maxJSONDepth {
			compareWithStandard(t, line)
		}
	})
}

// FuzzJSONLFile: no file of lines panics, as data or as its reader's blocks.
func FuzzJSONLFile(f *testing.F) {
	for _, line := range jsonSeeds {
		f.Add([]byte(line))
	}
	f.Add([]byte("{\"q\": \"a\", \"p\": \"b\"}\n\r\n{\"p\": \"d\", \"q\": \"c\"}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "fuzz.jsonl")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		harness.Bounded(t, func() { _, err = readAll(path, Source{Query: "q", Positive: "p"}) })
		if err != nil && strings.Contains(err.Error(), "runtime error") {
			t.Fatal(err)
		}
	})
}

// TestLongLines: rows are whole wherever they lie in what is read at a time, 1 MiB.
func TestLongLines(t *testing.T) {
	harness.Thorough(t)
	const buffer = 1 << 20
	for _, ends := range []string{"\n", "\r\n", "  \n", "\n\n"} {
		for _, less := range []int{0, 1, 2, 3, 20} {
			empty := `{"q": "a", "p": ""}`
			long := strings.Repeat("x", buffer-less-len(empty))
			text := empty[:len(empty)-2] + long + `"}` + ends + `{"q": "b", "p": "y"}` + ends
			dir := write(t, map[string]string{"a.jsonl": text + strings.Replace(text, "a", "c", 1)})
			d, err := Open(t.Context(), Source{Paths: []string{dir + "/a.jsonl"}, Query: "q", Positive: "p"})
			if err != nil {
				t.Fatal(err)
			}
			rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 1, 2, 3})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range [][]string{{"a", long}, {"b", "y"}, {"c", long}, {"b", "y"}} {
				if !slices.Equal(rows[i].Texts, want) {
					t.Errorf("ends %q, %d bytes before the border: row %d has query %q and %d bytes", ends, less, i, rows[i].Texts[0], len(rows[i].Texts[1]))
				}
			}
		}
	}
}

func TestJSONReasons(t *testing.T) {
	for line, want := range map[string]string{
		`{"q": 12}`:        "it is a number, want a string",
		`{"q": ["a"]}`:     "it is a list, want a string",
		`{"l": "a"}`:       "it is a string, want a list of strings",
		`{"l": ["a", {}]}`: "it is an object, want a list of strings",
		`{"q": "a" "l"}`:   `not JSON at byte 11: '"' where a comma or } should be`,
		`{"q": "a`:         "not JSON at byte 9: it ends where the end of a string should be",
		`["a"]`:            "it is a list, where an object { } should be",
		` [["a", {}]]`:     "it is a list, where an object { } should be",
		`-1.5 `:            "it is a number, where an object { } should be",
		`"a\"b"`:           "it is a string, where an object { } should be",
		`false`:            "it is true or false, where an object { } should be",
		`null`:             "it is null, where an object { } should be",
		`["a"] x`:          "not JSON at byte 1: '[' where an object { } should be",
		`["a" "b"]`:        "not JSON at byte 1: '[' where an object { } should be",
		`{"q": "a\x"}`:     `not JSON at byte 10: the escape \x is not known`,
		`{"q": "a\u00g0"}`: `not JSON at byte 9: \u without four hexadecimal digits`,
		` {` + "\r":        "not JSON at byte 3: the object goes on in other lines, where each row is one line (jq -c . makes a line of each object)",
		"{\x00":            `not JSON at byte 2: '\x00' where a key in quotes should be`,
		`{}`:               "",
	} {
		if _, _, _, got := parseLine([]byte(line)); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func BenchmarkJSONL(b *testing.B) {
	line := []byte(fmt.Sprintf(`{"query": %q, "pos": [%q, %q], "neg": [%q], "scores": [1.5, 2]}`, strings.Repeat("query ", 8), strings.Repeat("passage ", 20), strings.Repeat("ü ", 20), strings.Repeat("n ", 100)))
	var p jsonlParser
	p.want = []sourceColumn{{name: "query"}, {name: "pos", list: true}, {name: "neg", list: true}}
	texts := make([]textColumn, 3)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		for i := range texts {
			texts[i].reset(i > 0)
		}
		if _, reason := p.parse(line, 0, len(line), texts, nil); reason != "" {
			b.Fatal(reason)
		}
	}
}

// A file may be longer than a line.
func TestLongFile(t *testing.T) {
	const n = maxLine>>20 + 1
	for end, want := range map[string]string{"\"}\n": "", "": "long.jsonl:1: the line is longer than 256 MiB"} {
		piece := []byte(`{"query": "` + strings.Repeat("q", 1<<20) + end)
		left := n
		j := &jsonlFile{path: "long.jsonl"}
		err := j.count(t.Context(), &pieces{next: func() ([]byte, error) {
			if left == 0 {
				return nil, io.EOF
			}
			left--
			return piece, nil
		}}, 0, defaultLimit)
		if want == "" && (err != nil || j.rows != n) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d rows, %v, want %q", j.rows, err, want)
		}
	}
}
