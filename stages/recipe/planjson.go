package recipe

import (
	"cmp"
	"encoding/json"
	"strings"
)

// planJSON is a forecast for programs, as contraflow plan --json prints it: all that String says. Memory is in bytes, times are in seconds; where nobody knows
// a figure its key is missing. README.md lists the keys.
type planJSON struct {
	Mesh  meshJSON  `json:"mesh"`
	Ranks int       `json:"ranks"`
	Link  *linkJSON `json:"link,omitempty"` // of several ranks

	TokensPerS float64 `json:"tokens_per_s,omitempty"` // that a rank trains
	Device     string  `json:"device,omitempty"`       // that it trains them on
	Rows       int     `json:"rows"`                   // of a step, over all ranks
	Tokens     int     `json:"tokens"`                 // likewise
	Step       float64 `json:"step_s,omitempty"`
	RowsPerS   float64 `json:"rows_per_s,omitempty"`
	BoundBy    string  `json:"bound_by,omitempty"` // the host's stage that takes as long as a step

	Memory      map[string]int64 `json:"memory_bytes"` // of a device, at most: total, and its parts
	FirstStep   int64            `json:"first_step_bytes"`
	Room        int64            `json:"room_bytes,omitempty"`
	Fits        *bool            `json:"fits,omitempty"`
	Why         string           `json:"fits_not,omitempty"` // why not, and what would
	Budget      *int64           `json:"replay_budget_bytes,omitempty"`
	Activations int64            `json:"activations_bytes"` // all of a batch's
	Shardings   []Holding        `json:"shardings,omitempty"`

	Steps int               `json:"steps"`
	When  map[string]string `json:"when"` // rate, eval and save, in words

	Sent    int64         `json:"sent_bytes"` // by a rank per step
	Comm    float64       `json:"communication_s"`
	Hidden  *float64      `json:"hidden,omitempty"` // the share of it that computing hides
	Exposed *float64      `json:"exposed_s,omitempty"`
	Tail    *float64      `json:"tail_s,omitempty"` // from the last backward to the end of the update
	Stages  []trafficJSON `json:"traffic,omitempty"`
}

type meshJSON struct {
	Replicate int `json:"replicate"`
	Shard     int `json:"shard"`
}

type linkJSON struct {
	Bandwidth float64 `json:"bytes_per_s,omitempty"` // in each direction; without it there is no limit
	Latency   float64 `json:"latency_s"`
}

type trafficJSON struct {
	Stage       string  `json:"stage"`
	Collectives int     `json:"collectives"`
	Sent        int64   `json:"sent_bytes"`
	Time        float64 `json:"time_s"`
}

// MarshalJSON is the forecast for programs; stages/recipe/README.md lists its keys.
func (f *Forecast) MarshalJSON() ([]byte, error) {
	p := planJSON{
		Mesh: meshJSON{f.Mesh.Replicate, f.Mesh.Shard}, Ranks: f.Mesh.Size(), Rows: f.Rows, Tokens: f.Tokens,
		Memory: map[string]int64{"total": f.Memory.Total()}, FirstStep: f.First, Room: f.Room, Activations: f.Kept, Shardings: f.Shardings,
		Steps: f.Steps, When: map[string]string{}, Sent: f.Sent, Comm: f.Comm.Seconds(),
	}
	for _, part := range f.Memory.parts() {
		if part.bytes > 0 {
			p.Memory[cmp.Or(part.key, strings.ReplaceAll(part.name, " ", "_"))] = part.bytes
		}
	}
	if f.Memory.HostSnapshot > 0 {
		p.Memory["host_snapshots"] = f.Memory.HostSnapshot
	}
	if f.Room > 0 {
		fits := f.Fits == nil
		p.Fits = &fits
	}
	if f.Fits != nil {
		p.Why = f.Fits.Error()
	}
	if f.Budget >= 0 {
		p.Budget = &f.Budget
	}
	for _, l := range f.When {
		p.When[l[0]] = l[1]
	}
	several := f.Mesh.Size() > 1
	if several {
		p.Link = &linkJSON{f.Link.Bandwidth, f.Link.Latency.Seconds()}
	}
	if f.timed() {
		p.TokensPerS, p.Device, p.Step, p.RowsPerS, p.BoundBy = f.Rates.TokensPerS(), f.Rates.Device, f.StepTime.Seconds(), f.rowsPerS(), f.Bound
	}
	if f.timed() && several {
		hidden, exposed, tail := f.hidden(), f.Exposed.Seconds(), f.Tail.Seconds()
		p.Hidden, p.Exposed, p.Tail = &hidden, &exposed, &tail
	}
	for _, s := range f.traffic() {
		p.Stages = append(p.Stages, trafficJSON{s.Stage, s.Collectives, s.Sent, s.Time.Seconds()})
	}
	return json.Marshal(p)
}
