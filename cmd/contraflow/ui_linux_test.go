package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"contraflow/stages/recipe"
)

// pseudoTerminal opens a terminal of some width and height, 0 by 0 if nobody says, and its other end.
func pseudoTerminal(t *testing.T, width, height uint16) (terminal, other *os.File) {
	t.Helper()
	other, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	t.Cleanup(func() { other.Close() })
	ioctl := func(request uintptr, value unsafe.Pointer) {
		t.Helper()
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, other.Fd(), request, uintptr(value)); errno != 0 {
			t.Fatal(errno)
		}
	}
	var locked, number int32
	ioctl(syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	ioctl(syscall.TIOCGPTN, unsafe.Pointer(&number))
	if width > 0 {
		size := [4]uint16{height, width}
		ioctl(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	}
	if terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return terminal, other
}

// shown is what a terminal was given, up to a text.
func shown(t *testing.T, other *os.File, end string) string {
	t.Helper()
	var got bytes.Buffer
	for buf := make([]byte, 4096); !strings.Contains(got.String(), end); {
		n, err := other.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(buf[:n])
	}
	return got.String()
}

// A terminal gets a bar where one can be drawn, and lines where not: of a terminal that does not say how wide it is, as under script, or can't move its cursor.
func TestTerminal(t *testing.T) {
	for _, c := range []struct {
		width uint16
		term  string
		lines bool
	}{{80, "xterm", false}, {0, "xterm", true}, {80, "dumb", true}} {
		t.Setenv("TERM", c.term)
		terminal, other := pseudoTerminal(t, c.width, 24)
		u := newUI(terminal, false).withLog("auto")
		u.begin(2)
		for step := 1; step <= 2; step++ {
			u.step(recipe.Metrics{Step: step, Loss: 1.5, Due: true})
		}
		u.close()
		fmt.Fprint(terminal, "the end\n")
		got := shown(t, other, "the end")
		if lines := strings.Contains(got, "step 1/2  loss 1.5000  grad "); lines != c.lines || !strings.Contains(got, "step 2/2") {
			t.Errorf("%d columns, %s: lines %v, want %v:\n%q", c.width, c.term, lines, c.lines, got)
		}
	}
}

// Lines say how long a run still takes, by the steps that it has made, printed or not.
func TestLinesLeft(t *testing.T) {
	var b bytes.Buffer
	u := &ui{w: &b}
	u.begin(110)
	u.began = time.Now().Add(-20 * time.Second)
	for step := 91; step <= 100; step++ { // a resumed run's
		u.step(recipe.Metrics{Step: step, Loss: 1.5, Due: step == 100})
	}
	u.step(recipe.Metrics{Step: 110, Loss: 1.5, Due: true})
	if want := "step 100/110  loss 1.5000  grad 0  lr 0  0 pairs/s  0 tokens/s  20s left\nstep 110/110  loss 1.5000  grad 0  lr 0  0 pairs/s  0 tokens/s\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}

// How far something is takes one line of a terminal, of which what is said next takes the place; elsewhere each time has a line. After five seconds it says
// how fast it is.
func TestPassing(t *testing.T) {
	t.Setenv("TERM", "xterm")
	terminal, other := pseudoTerminal(t, 22, 24)
	var file strings.Builder
	for _, w := range []io.Writer{terminal, &file} {
		u := newUI(w, false)
		for done := int64(1); done <= 3; done++ {
			u.said = time.Time{} // it is due
			u.progress(done, 4, "", "text", "texts")
			if done == 1 {
				u.began = u.began.Add(-10 * time.Second)
			}
		}
		u.printf("the end\n")
	}
	if got, want := shown(t, other, "the end\r\n"), "1 of 4 texts\r\x1b[K2 of 4 texts  0.1/s\r\x1b[K3 of 4 texts  0.2/s\r\x1b[Kthe end\r\n"; got != want {
		t.Errorf("a terminal shows %q, want %q", got, want)
	}
	if got, want := file.String(), "1 of 4 texts\n2 of 4 texts  0.1/s  20s left\n3 of 4 texts  0.2/s  5s left\nthe end\n"; got != want {
		t.Errorf("a file has %q, want %q", got, want)
	}
}

// What is printed on a terminal takes the place of the line of progress there, and a file gets nothing of that.
func TestPassingPrinted(t *testing.T) {
	t.Setenv("TERM", "xterm")
	terminal, other := pseudoTerminal(t, 80, 24)
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	newUI(terminal, false).progress(1, 4, "", "text", "texts")
	newUI(&stdout{file: file}, false).say("plan", "fits     yes")
	fmt.Fprintln(&stdout{file: terminal, terminal: true}, "0.5")
	if got, want := shown(t, other, "0.5\r\n"), "1 of 4 texts\r\x1b[K0.5\r\n"; got != want {
		t.Errorf("a terminal shows %q, want %q", got, want)
	}
	if got := mustRead(t, file.Name()); got != "fits     yes\n" {
		t.Errorf("a file has %q", got)
	}
}

// What is done twice has its own pace each time.
func TestPaceBeginsAnew(t *testing.T) {
	var b strings.Builder
	u := newUI(&b, false)
	u.progress(1, 4, "", "text", "texts")
	u.began = u.began.Add(-time.Hour)
	u.progress(4, 4, "", "text", "texts")
	u.said = time.Time{}
	u.progress(1, 8, "", "text", "texts")
	u.began, u.said = u.began.Add(-10*time.Second), time.Time{}
	u.progress(2, 8, "", "text", "texts")
	if got, want := b.String(), "1 of 4 texts\n4 of 4 texts  0.0/s\n1 of 8 texts\n2 of 8 texts  0.1/s  1m0s left\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
