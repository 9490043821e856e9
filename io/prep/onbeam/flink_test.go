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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"contraflow/io/dataset"
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
func java(t *testing.T, jars, memory, class string, args ...string) (p *exec.Cmd, log *lockedBuffer) {
	t.Helper()
	line := []string{"-Xmx" + memory}
	for _, pkg := range []string{"java.util", "java.lang", "java.nio", "sun.nio.ch", "java.time"} {
		line = append(line, "--add-opens=java.base/"+pkg+"=ALL-UNNAMED")
	}
	line = append(line, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"), class)
	p = exec.Command("java", append(line, args...)...)
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
	return p, log
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

// jobServer starts Beam's job server for Flink, embedded or of a cluster, and returns the flags for it.
func jobServer(t *testing.T, jars, master string) []string {
	t.Helper()
	job := freePort(t)
	_, log := java(t, jars, "1500m", "org.apache.beam.runners.flink.FlinkJobServerDriver", "--job-host=localhost", fmt.Sprintf("--job-port=%d", job),
		fmt.Sprintf("--artifact-port=%d", freePort(t)), fmt.Sprintf("--expansion-port=%d", freePort(t)), "--flink-master="+master, "--artifacts-dir="+t.TempDir())
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
	flags := jobServer(t, jars, "[local]")
	if _, err := Run(deadline(t), c, Options{Runner: "universal", Flags: flags}); err != nil {
		t.Fatal(err)
	}
	sameFiles(t, c.Output.Dir, want.Output.Dir)
}

// TestFlinkTaskManagerKilled has a cluster of processes: while a shard is written, the task manager dies by SIGKILL. Another takes its place, Flink
// tries the work again, and the output is as if nothing had happened. Until then nothing looks complete.
func TestFlinkTaskManagerKilled(t *testing.T) {
	jars := flinkJars(t)
	c := raw(t)
	want, _ := local(t, c)
	rpc, rest := freePort(t), freePort(t)
	conf := t.TempDir()
	yaml := fmt.Sprintf(`jobmanager.rpc.address: localhost
jobmanager.rpc.port: %d
jobmanager.bind-host: localhost
jobmanager.memory.process.size: 1024m
rest.address: localhost
rest.port: %d
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: 2
taskmanager.cpu.cores: 2.0
taskmanager.memory.task.heap.size: 256m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.framework.heap.size: 64m
taskmanager.memory.framework.off-heap.size: 64m
taskmanager.memory.jvm-metaspace.size: 192m
taskmanager.memory.jvm-overhead.min: 64m
taskmanager.memory.jvm-overhead.max: 64m
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 5
restart-strategy.fixed-delay.delay: 1 s
heartbeat.interval: 1000
heartbeat.timeout: 5000
`, rpc, rest)
	if err := os.WriteFile(filepath.Join(conf, "config.yaml"), []byte(yaml), 0o666); err != nil {
		t.Fatal(err)
	}
	_, log := java(t, jars, "700m", "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "--configDir", conf)
	waitFor(t, "job manager", log, listens(rest))
	manager := func() *exec.Cmd {
		p, _ := java(t, jars, "700m", "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "--configDir", conf)
		return p
	}
	first := manager()
	var once sync.Once
	killed := make(chan struct{})
	writing = func(int) {
		once.Do(func() {
			if err := syscall.Kill(-first.Process.Pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			_, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"})
			if err == nil || !strings.Contains(err.Error(), "matches no file") {
				t.Errorf("half-written output was read: %v", err)
			}
			manager()
			close(killed)
		})
	}
	defer func() { writing = nil }()
	flags := jobServer(t, jars, fmt.Sprintf("localhost:%d", rest))
	if _, err := Run(deadline(t), c, Options{Runner: "universal", Flags: flags}); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	select {
	case <-killed:
	default:
		t.Fatal("the task manager was never killed")
	}
	sameFiles(t, c.Output.Dir, want.Output.Dir)
}
