//go:build beam && unix

package onbeam

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// flinkJars is the folder of jars that testdata/flink-pom.xml names, CONTRAFLOW_FLINK.
func flinkJars(t *testing.T) string {
	t.Helper()
	jars := os.Getenv("CONTRAFLOW_FLINK")
	_, err := exec.LookPath("java")
	if jars == "" || err != nil {
		why := "needs java and CONTRAFLOW_FLINK, a folder with the jars of testdata/flink-pom.xml"
		if os.Getenv("CI") == "true" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return jars
}

// java starts a class of the jars in a process group of its own, and ends it with the test.
func java(t *testing.T, jars, memory, class string, args ...string) (log *lockedBuffer) {
	t.Helper()
	line := []string{"-Xmx" + memory}
	for _, pkg := range []string{"java.util", "java.lang", "java.nio", "sun.nio.ch", "java.time"} {
		line = append(line, "--add-opens=java.base/"+pkg+"=ALL-UNNAMED")
	}
	line = append(line, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"), class)
	p := exec.Command("java", append(line, args...)...)
	log = new(lockedBuffer)
	p.Stdout, p.Stderr = log, log
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { p.Wait(); close(done) }()
	t.Cleanup(func() {
		syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		<-done
	})
	return log
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.b.String()
	return s[max(0, len(s)-4000):]
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func waitFor(t *testing.T, what string, log *lockedBuffer, ready func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ready(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not there after two minutes:\n%s", what, log)
		}
	}
}

func listens(port int) func() bool {
	return func() bool {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("localhost:%d", port), time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
}

// jobServer starts Beam's job server with an embedded Flink, and returns the flags for it.
func jobServer(t *testing.T, jars string) []string {
	t.Helper()
	job := freePort(t)
	log := java(t, jars, "1500m", "org.apache.beam.runners.flink.FlinkJobServerDriver", "--job-host=localhost", fmt.Sprintf("--job-port=%d", job),
		fmt.Sprintf("--artifact-port=%d", freePort(t)), fmt.Sprintf("--expansion-port=%d", freePort(t)), "--flink-master=[local]", "--artifacts-dir="+t.TempDir())
	waitFor(t, "job server", log, listens(job))
	return []string{fmt.Sprintf("--endpoint=localhost:%d", job), "--environment_type=LOOPBACK", "--parallelism=2"}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestFlinkEqualsLocal(t *testing.T) {
	jars := flinkJars(t)
	c := raw(t)
	want, _ := local(t, c)
	flags := jobServer(t, jars)
	if _, err := Run(deadline(t), c, Options{Runner: "universal", Flags: flags}); err != nil {
		t.Fatal(err)
	}
	sameFiles(t, c.Output.Dir, want.Output.Dir)
}
