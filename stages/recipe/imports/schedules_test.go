package imports_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// What transformers' schedules make of their options, and what they do not have.
func TestSchedules(t *testing.T) {
	for _, c := range []struct {
		settings imports.Settings
		schedule string // as the recipe has it
		said     string
	}{
		{imports.Settings{}, "linear", ""},
		{imports.Settings{"lr_scheduler_kwargs": map[string]any{}}, "linear", ""},
		{imports.Settings{"lr_scheduler_type": "SchedulerType.COSINE_WITH_RESTARTS", "lr_scheduler_kwargs": map[string]any{"num_cycles": 1.0}}, "cosine", ""},
		{imports.Settings{"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": `{"num_cycles": 4}`}, "{name: cosine, cycles: 4}", ""},
		{imports.Settings{"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": map[string]any{"num_cycles": 0.5}}, "cosine", ""},
		{imports.Settings{"lr_scheduler_type": "linear", "lr_scheduler_kwargs": map[string]any{"num_cycles": 2.0, "power": 1.0}}, "linear", "# without counterpart: lr_scheduler_kwargs: linear has no num_cycles, power\n"},
		{imports.Settings{"lr_scheduler_type": "cosine_with_min_lr"}, "cosine", "the learning rate falls to 0\n"},
		{imports.Settings{"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": map[string]any{"min_lr_rate": 0.1, "warmup_lr_rate": 0.0}}, "{name: cosine, min_ratio: 0.1, ahead: true}", "warmup_lr_rate: 0: "},
		{imports.Settings{"lr_scheduler_type": "polynomial"}, "{name: polynomial, min_ratio: 0.002}", ""}, // 1e-7 of 5e-5
		{imports.Settings{"lr_scheduler_type": "warmup_stable_decay"}, "cosine", "no num_decay_steps"},
		{imports.Settings{"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": map[string]any{"num_decay_steps": 5.0, "num_stable_steps": 0.0}}, "{name: cosine, stable_steps: 0, decay_steps: 5}", ""},
		{imports.Settings{"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": map[string]any{"num_decay_steps": 0.0, "min_lr_ratio": 0.2}}, "{name: constant, warmup_from: 0.2}", ""},
		{imports.Settings{"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": map[string]any{"num_decay_steps": 5.0, "decay_type": "linear", "num_cycles": 2.0}}, "{name: linear, decay_steps: 5}", ""},
		{imports.Settings{"lr_scheduler_type": "greedy", "lr_scheduler_kwargs": map[string]any{"patience": 2.0}}, "linear", "lr_scheduler_kwargs: they are greedy's"},
		{imports.Settings{"lr_scheduler_type": "sawtooth"}, "linear", "sawtooth, which transformers does not have"},
		// One that never falls: transformers' polynomial refuses it, and its cosine is constant at the learning rate itself and rises to what is above.
		{imports.Settings{"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": map[string]any{"lr_end": 1.0, "power": 2.0}}, "constant", "# without counterpart: lr_scheduler_kwargs: lr_end: 1 is not less than learning_rate, 5e-05, which transformers refuses: here it stays"},
		{imports.Settings{"learning_rate": 1e-8, "lr_scheduler_type": "polynomial"}, "constant", "lr_end: 1e-07 is not less than learning_rate, 1e-08"},
		{imports.Settings{"learning_rate": 5e-5, "lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": map[string]any{"lr_end": 5e-5}}, "constant", "which transformers refuses"},
		{imports.Settings{"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": map[string]any{"min_lr": 1e-3, "num_cycles": 2.0}}, "constant", "# without counterpart: lr_scheduler_kwargs: min_lr: 0.001 is not less than learning_rate, 5e-05, which rises to it there"},
		{imports.Settings{"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": map[string]any{"min_lr": 5e-5}}, "constant", "# assumed: min_lr of lr_scheduler_kwargs is the learning rate itself"},
		{imports.Settings{"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": map[string]any{"min_lr_rate": 1.0}}, "constant", "# assumed: min_lr_rate of lr_scheduler_kwargs is the learning rate itself"},
		{imports.Settings{"lr_scheduler_type": "cosine_warmup_with_min_lr", "lr_scheduler_kwargs": map[string]any{"min_lr": 1e-3, "warmup_lr_rate": 0.5}}, "{name: constant, warmup_from: 0.5, ahead: true}", "which rises to it there"},
	} {
		r, res := convert(t, imports.SentenceTransformers, c.settings, 1)
		want, err := recipe.Parse("want", []byte(res.Recipe), []string{"optimizer.schedule=" + c.schedule})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.Optimizer, want.Optimizer) || !strings.Contains(res.Recipe, c.said) || c.said == "" && strings.Contains(res.Recipe, "lr_scheduler") || len(res.Unknown) > 0 {
			t.Errorf("%v:\n%s", c.settings, res.Recipe)
		}
	}
	for want, s := range map[string]imports.Settings{
		"lr_scheduler_kwargs: want a mapping":            {"lr_scheduler_kwargs": "num_cycles=2"},
		"lr_scheduler_kwargs: num_cycles: want a number": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": map[string]any{"num_cycles": "two"}},
	} {
		if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// max_steps ends a run, however many epochs are said.
func TestMaxSteps(t *testing.T) {
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"num_train_epochs": 1.5, "max_steps": 2e6}, 1)
	if r.Train.MaxSteps != 2e6 || r.Train.Epochs != 2e6 {
		t.Errorf("%s", res.Recipe)
	}
	if r, res := convert(t, imports.SentenceTransformers, imports.Settings{"num_train_epochs": 1.5, "max_steps": -1.0}, 1); r.Train.MaxSteps != 0 || r.Train.Epochs != 1.5 {
		t.Errorf("%s", res.Recipe)
	}
}

func TestConstantSchedule(t *testing.T) {
	for _, c := range []struct {
		settings imports.Settings
		warmup   string
		said     bool
	}{
		{imports.Settings{"lr_scheduler_type": "constant"}, "0 0", false},
		{imports.Settings{"lr_scheduler_type": "SchedulerType.CONSTANT", "warmup_ratio": 0.1}, "0 0", true},
		{imports.Settings{"lr_scheduler_type": "constant", "warmup_steps": 100.0}, "0 0", true},
		{imports.Settings{"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 100.0}, "0 100", false},
	} {
		r, res := convert(t, imports.SentenceTransformers, c.settings, 1)
		steps := 0
		if r.Optimizer.WarmupSteps != nil {
			steps = *r.Optimizer.WarmupSteps
		}
		if got := fmt.Sprint(r.Optimizer.WarmupRatio, steps); got != c.warmup || r.Optimizer.Schedule.Name != "constant" || strings.Contains(res.Recipe, "there is no warm-up") != c.said {
			t.Errorf("%v: %s\n%s", c.settings, got, res.Recipe)
		}
	}
}
