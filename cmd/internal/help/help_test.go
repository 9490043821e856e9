package help

import "testing"

// Paragraphs are wrapped; what is indented, cobra's with tabs, stands as it is.
func TestParagraphs(t *testing.T) {
	got := paragraphs("one two\nthree four\n\n  {a: b,  c: d, e: f}\nand\nmore\n\n\tsource <(x completion bash)", 12)
	if want := "one two\nthree four\n\n  {a: b,  c: d, e: f}\nand more\n\n\tsource <(x completion bash)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := Wrapped("usage: (a | b | c)", "  ", "      ", 14), "  usage: (a |\n      b | c)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
