package tcpstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// store serves torch's own store, and sets a key of its own after a while.
const store = `
import sys, time, torch.distributed as d
s = d.TCPStore("localhost", 0, None, True, wait_for_workers=False, use_libuv=sys.argv[1] == "libuv")
print(s.port, flush=True)
s.wait(["from go"])
time.sleep(0.2)
s.set("from python", b"got " + s.get("from go"))
sys.stdin.read()
`

// What is asked has the bytes that torch's clients send, and an answer that is none is an error that says what it was.
func TestAnswers(t *testing.T) {
	for _, c := range []struct{ waited, got, want string }{
		{"\x00", "\x03\x00\x00\x00\x00\x00\x00\x00abc", "abc"},
		{"\x00", "\x00\x00\x00\x00\x00\x00\x00\x00", ""},
		{"\x01", "", `waiting for "name" in the store at 127.0.0.1`}, // torch's WAIT_CANCELED
		{"\x01", "", "the store answers 1"},
		{"\x00", "\x01\x00\x10\x00\x00\x00\x00\x00", "the store answers with 1048577 bytes"},
		{"\x00", "\x03\x00\x00\x00\x00\x00\x00\x00ab", "unexpected EOF"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan string, 1)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			hello, wait, get := make([]byte, 5), make([]byte, 1+8+8+5), make([]byte, 1+8+5)
			_, e1 := io.ReadFull(conn, hello)
			_, e2 := io.ReadFull(conn, wait)
			_, e3 := conn.Write([]byte(c.waited))
			if c.got == "" {
				return
			}
			_, e4 := io.ReadFull(conn, get)
			_, e5 := conn.Write([]byte(c.got))
			asked <- fmt.Sprintf("%q %q %q %v", hello, wait, get, errors.Join(e1, e2, e3, e4, e5))
		}()
		client, err := Dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		v, err := client.Get(t.Context(), "name")
		if err != nil {
			v = err.Error()
		}
		if v != c.want && (err == nil || !strings.Contains(v, c.want)) {
			t.Errorf("after %q and %q: %q, want %q", c.waited, c.got, v, c.want)
		}
		// The number 0x3C85F7CE, then one key, of five bytes with its slash.
		const want = `"\x00\xce\xf7\x85<" "\x06\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00/name" "\x03\x05\x00\x00\x00\x00\x00\x00\x00/name" <nil>`
		if c.got != "" {
			if got := <-asked; got != want {
				t.Errorf("asked %s, want %s", got, want)
			}
		}
		if err := errors.Join(client.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	}
}

// Who waits for a value ends with the context, and says why; the context of an answer that has come stops nothing any more.
func TestGetEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.CopyN(io.Discard, conn, 5+1+8+8+5)
		_, _ = conn.Write([]byte("\x00\x03\x00\x00\x00\x00\x00\x00\x00abc"))
		_, _ = io.Copy(io.Discard, conn) // and no answer to anything else
	}()
	client, err := Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first, cancel := context.WithCancel(t.Context())
	if v, err := client.Get(first, "name"); err != nil || v != "abc" {
		t.Fatalf("%q, %v", v, err)
	}
	cancel()
	late := errors.New("too late")
	second, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
	defer cancel()
	if v, err := client.Get(second, "name"); !errors.Is(err, late) {
		t.Errorf("%q, %v; want %v", v, err, late)
	}
}

// CONTRAFLOW_PYTHON is a Python with torch. Both of the store's servers understand us, and their other clients what we set.
func TestTorch(t *testing.T) {
	python := os.Getenv("CONTRAFLOW_PYTHON")
	if python == "" {
		t.Skip("CONTRAFLOW_PYTHON names no Python with torch")
	}
	for _, kind := range []string{"libuv", "threads"} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(python, "-c", store, kind)
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Wait()
			defer in.Close()
			lines := bufio.NewScanner(out)
			if !lines.Scan() {
				t.Fatal("no store")
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			c, err := Dial(ctx, "localhost:"+lines.Text())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Set("from go", "10.0.0.1:1234"); err != nil {
				t.Fatal(err)
			}
			if v, err := c.Get(ctx, "from python"); err != nil || v != "got 10.0.0.1:1234" {
				t.Errorf("%q, %v", v, err)
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			if v, err := c.Get(short, "nothing"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%q, %v", v, err)
			}
		})
	}
}
