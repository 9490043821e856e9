package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/pipeline"
	"contraflow/stages"
)

// A Run trains once, until it is closed, and its graph is run by Train alone: all else says so, and leaves the model that was trained.
func TestRunUsedAgain(t *testing.T) {
	j := newJob(t, 12)
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "once"), "train.max_steps=1"})
	refuses := func(what string, err error, want string) {
		t.Helper()
		var bug *pipeline.PanicError
		if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &bug) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	g, err := x.Graph()
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Build(pipeline.Devices(stages.OnDevice(x.device)))
	if err != nil {
		t.Fatal(err)
	}
	refuses("its graph", p.Run(t.Context()), "Train runs it")
	s, err := x.Train(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	was, err := os.ReadFile(filepath.Join(s.Model, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = x.Train(t.Context(), Resuming())
	refuses("again", err, "this Run has trained already")
	again := filepath.Join(j.dir, "again")
	if err := x.Save(nil, again); err != nil { // on a stream of the run's own
		t.Fatal(err)
	}
	if is, err := os.ReadFile(filepath.Join(again, "model.safetensors")); err != nil || string(is) != string(was) {
		t.Errorf("the model that was trained is saved as another: %v", err)
	}
	if is, err := os.ReadFile(filepath.Join(s.Model, "model.safetensors")); err != nil || string(is) != string(was) {
		t.Errorf("the model is another: %v", err)
	}
	for range 2 {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = x.Train(t.Context())
	refuses("closed", err, "is closed")
	_, err = x.Graph()
	refuses("closed", err, "is closed")
	_, err = x.Evaluate(t.Context())
	refuses("closed", err, "is closed")
	_, err = x.Verify(t.Context(), VerifyOptions{})
	refuses("closed", err, "is closed")
	_, err = x.Calibrate(t.Context(), 1, 1)
	refuses("closed", err, "is closed")
	refuses("closed", x.Save(nil, filepath.Join(j.dir, "none")), "is closed")
}

// What a calibration has left of a model is not what the recipe begins with, and a calibration of nothing is refused.
func TestTrainCalibrated(t *testing.T) {
	j := newJob(t, 12)
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "run")})
	for _, none := range [][2]int{{0, 1}, {1, 0}} {
		if _, err := x.Calibrate(t.Context(), none[0], none[1]); err == nil || !strings.Contains(err.Error(), "want at least 1 of each") {
			t.Errorf("%v: %v", none, err)
		}
	}
	if _, err := x.Calibrate(t.Context(), 1, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Train(t.Context()); err == nil || !strings.Contains(err.Error(), "has trained already") {
		t.Error(err)
	}
}

// A recipe without save.dir is read and opened by who saves nothing, and does not train.
func TestUnsaved(t *testing.T) {
	j := newJob(t, 26)
	path := filepath.Join(j.dir, "recipe.yaml")
	if err := os.WriteFile(path, []byte(j.text), 0o600); err != nil {
		t.Fatal(err)
	}
	const missing = "save.dir: is missing"
	if _, err := Load(path, nil); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("to be saved: %v", err)
	}
	r, err := LoadUnsaved(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, err := Open(t.Context(), r, Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Train(t.Context()); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("trains: %v", err)
	}
}

// opened opens the job's recipe with these settings for the test, on one rank.
func (j *job) opened(t testing.TB, sets []string) *Run {
	t.Helper()
	r, err := Parse("job", []byte(j.text), sets)
	if err != nil {
		t.Fatal(err)
	}
	x, err := Open(t.Context(), r, Observer{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}
