package stages_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// A device that is nil is found by Build, behind OnDevice too.
func TestOnNoDevice(t *testing.T) {
	g := pipeline.New("g")
	if _, err := g.Build(pipeline.Devices(stages.OnDevice(nil))); err == nil || err.Error() != `graph "g": Devices: device 0 is nil` {
		t.Error(err)
	}
}

// An encoder for which there is no room gives back what it has got until then, whatever ranks hold of the model.
func TestEncoderOutOfMemory(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, "bert/minilm-tiny"), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := transformer.ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	d := &devicetest.Counted{Device: ref.New()}
	sharded := collective.Mesh{Replicate: 1, Shard: 2}
	for _, tt := range []struct {
		ranks *stages.Replicas
		want  int // allocations
	}{
		{nil, 1},
		{stages.OnPaper(sharded, stages.Exchanging{}), 1},
		{stages.OnPaper(sharded, stages.Exchanging{Early: true}), 4},
		{stages.OnPaper(sharded, stages.Exchanging{Early: true, Streamed: true}), 6},
	} {
		m, err := transformer.New(d, c, transformer.Head{}, transformer.Options{Own: tt.ranks.Own()})
		if err != nil {
			t.Fatal(err)
		}
		n := devicetest.OutOfMemory(t, d, func() (func() error, error) {
			e, err := stages.NewEncoder(pipeline.New("g"), m, 0, -1, 1, stages.With(tt.ranks))
			if err != nil {
				return nil, err
			}
			return e.Close, nil
		})
		if n != tt.want {
			t.Errorf("%d allocations, want %d", n, tt.want)
		}
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}
}

// A stage that asks for the stream of a lane it does not have is told where to get one.
func TestNoStream(t *testing.T) {
	d := ref.New()
	defer d.Close()
	ours, another := stages.OnDevice(d), foreign{}
	compute := pipeline.On(0, pipeline.Compute)
	for _, tt := range []struct {
		device pipeline.Device
		opts   []pipeline.Option
		want   string
	}{
		{ours, nil, "the stage runs in the host pool, which has no stream: place it with pipeline.On(device, lane)"},
		{another, []pipeline.Option{compute}, "the stage's lane is a stages_test.foreign: pass Build the device from stages.OnDevice"},
		{ours, []pipeline.Option{compute}, ""},
	} {
		g := pipeline.New("g")
		given := false
		rows := pipeline.Source(g, "rows", func(context.Context) (int, error) {
			if given {
				return 0, io.EOF
			}
			given = true
			return 1, nil
		})
		pipeline.Sink(g, "work", rows, func(t *pipeline.Task, _ int) error { return stages.Stream(t).Sync() }, tt.opts...)
		plan, err := g.Build(pipeline.Devices(tt.device))
		if err != nil {
			t.Fatal(err)
		}
		err = plan.Run(t.Context())
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), `graph "g": stage "work", item #0: panic: stages.Stream: `) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v; want %q", err, tt.want)
		}
	}
}

// foreign is a device, and its lanes, of somebody else's.
type foreign struct{ pipeline.Lane }

func (foreign) Name() string                                        { return "foreign" }
func (f foreign) OpenLane(pipeline.LaneKind) (pipeline.Lane, error) { return f, nil }
func (foreign) Mark() pipeline.Mark                                 { return nil }
func (foreign) Err() error                                          { return nil }
func (foreign) Close() error                                        { return nil }
