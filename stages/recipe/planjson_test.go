package recipe_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/stages/recipe"
)

// keysOf are the keys of an object and of all within it, but those of things that have their names from elsewhere.
func keysOf(v any) (keys []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, v := range v {
			keys = append(append(keys, k), keysOf(v)...)
		}
	case []any:
		for _, v := range v {
			keys = append(keys, keysOf(v)...)
		}
	}
	return keys
}

// A plan for programs has all figures of the one for people, under keys that the page lists, and none that nobody knows.
func TestPlanJSON(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	whole := recipe.Forecast{
		Mesh: collective.Mesh{Replicate: 4, Shard: 2}, Link: sim.Link{Bandwidth: 1.25e9, Latency: 50 * time.Microsecond},
		Rates: recipe.Rates{Forward: 1e-4, Backward: 3e-4, Device: "a device"}, Rows: 64, Tokens: 8000, First: 11 << 20,
		Memory: recipe.Memory{Parameters: 1 << 20, Packed: 2 << 20, Gradients: 3 << 20, Optimizer: 4 << 20, Embeddings: 5 << 20, Tokens: 1 << 20, Activations: 6 << 20, Working: 7 << 20, Guide: 8 << 20, Evaluation: 9 << 20,
			Traveling: 10 << 20, Snapshot: 12 << 20, Device: 13 << 20, HostSnapshot: 14 << 20},
		Room: 60 << 20, Budget: 15 << 20, Kept: 16 << 20, Fits: errors.New("the run needs more"), Sent: 17 << 20,
		Shardings: []recipe.Holding{{Choice: "parameters resident", State: 18 << 20, Sent: 19 << 20}, {Choice: "parameters streamed", Chosen: true, State: 20 << 20, Sent: 17 << 20}},
		Stages:    []recipe.Traffic{{"gather", 1, 2 << 20, time.Millisecond}, {"reduce 0.up", 2, 3 << 20, 2 * time.Millisecond}, {"reduce 1.up", 3, 4 << 20, 3 * time.Millisecond}},
		StepTime:  2 * time.Second, Comm: 8 * time.Millisecond, Exposed: 2 * time.Millisecond, Tail: time.Millisecond, Steps: 90,
		When: [][2]string{{"rate", "goes up"}, {"eval", "every 10 steps"}, {"save", "every 20 steps"}}, Bound: "ingest",
	}
	alone := recipe.Forecast{Mesh: collective.Mesh{Replicate: 1, Shard: 1}, Rows: 8, Tokens: 90, Budget: -1, Kept: 3 << 20, Memory: recipe.Memory{Parameters: 1 << 20}, Steps: 1, When: [][2]string{{"rate", "goes up"}}}
	fits := alone
	fits.Room, fits.Budget = 1<<30, 0
	for name, c := range map[string]struct {
		f    recipe.Forecast
		want string
	}{
		"all": {whole, `{"mesh": {"replicate": 4, "shard": 2}, "ranks": 8, "link": {"bytes_per_s": 1.25e9, "latency_s": 5e-5}, "tokens_per_s": 2500, "device": "a device", "rows": 64, "tokens": 8000,
			"step_s": 2, "rows_per_s": 32, "bound_by": "ingest", "memory_bytes": {"total": 83886080, "model": 1048576, "packed_weights": 2097152, "gradients": 3145728, "optimizer": 4194304,
			"embeddings": 5242880, "kept_activations": 6291456, "working": 7340032, "guide": 8388608, "evaluation": 9437184, "under_way_between_ranks": 10485760, "snapshots": 12582912,
			"device": 13631488, "host_snapshots": 14680064}, "first_step_bytes": 11534336, "room_bytes": 62914560, "fits": false, "fits_not": "the run needs more", "replay_budget_bytes": 15728640,
			"activations_bytes": 16777216, "shardings": [{"choice": "parameters resident", "chosen": false, "state_bytes": 18874368, "sent_bytes": 19922944},
			{"choice": "parameters streamed", "chosen": true, "state_bytes": 20971520, "sent_bytes": 17825792}], "steps": 90,
			"when": {"rate": "goes up", "eval": "every 10 steps", "save": "every 20 steps"}, "sent_bytes": 17825792, "communication_s": 0.008, "hidden": 0.75, "exposed_s": 0.002, "tail_s": 0.001,
			"traffic": [{"stage": "reduce *.up", "collectives": 5, "sent_bytes": 7340032, "time_s": 0.005}, {"stage": "gather", "collectives": 1, "sent_bytes": 2097152, "time_s": 0.001}]}`},
		"one rank of which nobody knows much": {alone, `{"mesh": {"replicate": 1, "shard": 1}, "ranks": 1, "rows": 8, "tokens": 90, "memory_bytes": {"total": 1048576, "model": 1048576}, "first_step_bytes": 0,
			"activations_bytes": 3145728, "steps": 1, "when": {"rate": "goes up"}, "sent_bytes": 0, "communication_s": 0}`},
		"nothing kept": {fits, `{"mesh": {"replicate": 1, "shard": 1}, "ranks": 1, "rows": 8, "tokens": 90, "memory_bytes": {"total": 1048576, "model": 1048576}, "first_step_bytes": 0, "room_bytes": 1073741824,
			"fits": true, "replay_budget_bytes": 0, "activations_bytes": 3145728, "steps": 1, "when": {"rate": "goes up"}, "sent_bytes": 0, "communication_s": 0}`},
	} {
		text, err := json.Marshal(&c.f)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := errors.Join(json.Unmarshal(text, &got), json.Unmarshal([]byte(c.want), &want)); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %s\nwant %s", name, text, c.want)
		}
		said := string(page[strings.Index(string(page), "`--json` prints the same"):])
		for _, key := range keysOf(got) {
			if !strings.Contains(said, "`"+key+"`") {
				t.Errorf("README.md does not list the key %s", key)
			}
		}
	}
}
