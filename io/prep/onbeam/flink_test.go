//go:build beam && unix

package onbeam

import (
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
	"contraflow/io/prep"
	"contraflow/testdata/harness"
)

// flinkJars is the folder of jars that testdata/flink-pom.xml names, CONTRAFLOW_FLINK.
func flinkJars(t *testing.T) string {
	t.Helper()
	jars := os.Getenv("CONTRAFLOW_FLINK")
	_, err := exec.LookPath("java")
	if jars == "" || err != nil {
		harness.Missing(t, "needs java and CONTRAFLOW_FLINK, a folder with the jars of testdata/flink-pom.xml")
	}
	return jars
}

// java starts a class of the jars in a process group of its own, and ends it with the test.
func java(t *testing.T, jars, memory, class string, args ...string) (kill func(), log *harness.Output) {
	t.Helper()
	line := []string{"-Xmx" + memory, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"} // short lives
	for _, pkg := range []string{"java.util", "java.lang", "java.nio", "sun.nio.ch", "java.time"} {
		line = append(line, "--add-opens=java.base/"+pkg+"=ALL-UNNAMED")
	}
	line = append(line, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(jars, "*"), class)
	p := exec.Command("java", append(line, args...)...)
	log = new(harness.Output)
	p.Stdout, p.Stderr = log, log
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { p.Wait(); close(done) }()
	kill = sync.OnceFunc(func() {
		syscall.Kill(-p.Process.Pid, syscall.SIGKILL)
		<-done
	})
	t.Cleanup(kill)
	return kill, log
}

func waitFor(t *testing.T, what string, log *harness.Output, ready func() bool) {
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

// jobServer starts Beam's job server for a Flink, embedded or of a cluster, and returns the flags for it.
func jobServer(t *testing.T, jars, master string) []string {
	t.Helper()
	job := harness.FreePort(t)
	_, log := java(t, jars, "1500m", "org.apache.beam.runners.flink.FlinkJobServerDriver", "--job-host=localhost", fmt.Sprintf("--job-port=%d", job),
		fmt.Sprintf("--artifact-port=%d", harness.FreePort(t)), fmt.Sprintf("--expansion-port=%d", harness.FreePort(t)), "--flink-master="+master, "--artifacts-dir="+t.TempDir())
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

// cluster starts a Flink whose managers are processes of their own, and returns its address and what starts a task manager, of two slots.
func cluster(t *testing.T, jars string) (master string, taskManager func() (kill func(), log *harness.Output)) {
	t.Helper()
	rest, conf := harness.FreePort(t), t.TempDir()
	settings := []string{
		fmt.Sprintf("jobmanager.rpc.address: localhost\njobmanager.rpc.port: %d\nrest.address: localhost\nrest.port: %d", harness.FreePort(t), rest),
		"jobmanager.bind-host: localhost", "rest.bind-address: localhost", "jobmanager.memory.process.size: 1024m",
		"taskmanager.host: localhost", "taskmanager.bind-host: localhost", "taskmanager.numberOfTaskSlots: 2",
		// what Flink's scripts would work out from one number
		"taskmanager.cpu.cores: 2.0", "taskmanager.memory.task.heap.size: 256m", "taskmanager.memory.task.off-heap.size: 0m",
		"taskmanager.memory.managed.size: 128m", "taskmanager.memory.network.min: 256m", "taskmanager.memory.network.max: 256m", // every step has buffers at once
		"taskmanager.memory.framework.heap.size: 64m", "taskmanager.memory.framework.off-heap.size: 64m",
		"taskmanager.memory.jvm-metaspace.size: 192m", "taskmanager.memory.jvm-overhead.min: 64m", "taskmanager.memory.jvm-overhead.max: 64m",
		"restart-strategy.type: fixed-delay", "restart-strategy.fixed-delay.attempts: 20", "restart-strategy.fixed-delay.delay: 1 s",
		"classloader.resolve-order: parent-first", "heartbeat.interval: 1000", "heartbeat.timeout: 8000",
	}
	if err := os.WriteFile(filepath.Join(conf, "config.yaml"), []byte(strings.Join(settings, "\n")+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, log := java(t, jars, "600m", "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint", "--configDir", conf)
	waitFor(t, "job manager", log, listens(rest))
	return fmt.Sprintf("localhost:%d", rest), func() (func(), *harness.Output) {
		return java(t, jars, "600m", "org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "--configDir", conf)
	}
}

// TestFlinkTaskManagerKilled: while shards are written, the task manager dies by SIGKILL. Until another has taken its place and Flink has done
// its work again nothing looks complete; then the output is what it would have been.
func TestFlinkTaskManagerKilled(t *testing.T) {
	jars := flinkJars(t)
	c := raw(t)
	want, _ := local(t, c)
	master, taskManager := cluster(t, jars)
	kill, log := taskManager()
	flags := jobServer(t, jars, master)
	ctx := deadline(t)
	killed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if begun, _ := filepath.Glob(filepath.Join(c.Output.Dir, prep.Temporary, "*", "*train-*")); len(begun) > 0 {
				kill()
				_, err := dataset.Open(ctx, dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"})
				taskManager()
				killed <- err
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
		killed <- ctx.Err()
	}()
	if _, err := Run(ctx, c, Options{Runner: "universal", Flags: flags}); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	select {
	case err := <-killed:
		if err == nil {
			t.Error("half-written output was read")
		}
	default:
		t.Fatal("the task manager was never killed")
	}
	sameFiles(t, c.Output.Dir, want.Output.Dir)
}
