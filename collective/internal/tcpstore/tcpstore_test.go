package tcpstore

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
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
