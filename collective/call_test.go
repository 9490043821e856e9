package collective_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
)

func TestParts(t *testing.T) {
	for size := 1; size <= 9; size++ {
		for n := range 400 {
			parts := collective.Parts(n, size)
			sum, at := 0, 0
			for k, p := range parts {
				if p < 0 || at%16 != 0 && p > 0 {
					t.Fatalf("Parts(%d, %d) = %v: part %d begins at %d", n, size, parts, k, at)
				}
				at += p
				sum += p
			}
			if sum != n || len(parts) != size || slices.Max(parts) > n/size+32 {
				t.Fatalf("Parts(%d, %d) = %v", n, size, parts)
			}
		}
	}
	if got := collective.Parts(1000, 3); !slices.Equal(got, []int{336, 336, 328}) {
		t.Errorf("%v", got)
	}
}

// What all send is what all receive, except that a rank that sends to several is counted for each.
func TestSentReceived(t *testing.T) {
	f32, bf16 := gpustage.F32, gpustage.BF16
	rows := []int{3, 0, 7, 2}
	for _, c := range []collective.Call{
		collective.GatherCall(rows, 5, f32, f32), collective.GatherCall(rows, 5, f32, bf16),
		collective.ReduceScatterCall(rows, 5, f32, f32), collective.AllReduceCall(999, 4, f32, bf16),
		collective.BroadcastCall(17, 4, 2, gpustage.F64), collective.ExchangeCall(rows),
	} {
		sent, received := int64(0), int64(0)
		for r := range rows {
			sent += c.Sent(r)
			received += c.Received(r)
		}
		if sent != received || sent == 0 {
			t.Errorf("%v: %d bytes are sent, %d received", c, sent, received)
		}
	}
	if got := collective.GatherCall(rows, 5, f32, bf16).Sent(2); got != 7*5*2*3 {
		t.Errorf("all-gather: %d bytes", got)
	}
	if got := collective.ReduceScatterCall(rows, 5, f32, f32).Sent(2); got != 5*5*4 {
		t.Errorf("reduce-scatter: %d bytes", got)
	}
	if got := collective.BroadcastCall(17, 4, 2, f32).Received(1); got != 17*4 {
		t.Errorf("broadcast: %d bytes", got)
	}
	if c := collective.ExchangeCall(rows); c.Sent(2) != 7*3 || c.Received(2) != 5 {
		t.Errorf("exchange: %d bytes and %d", c.Sent(2), c.Received(2))
	}
	if got := collective.AllReduceCall(999, 4, f32, bf16).Sent(0); got != (240*3+759)*2 { // its sums of 240 elements, and 759 for others to sum
		t.Errorf("all-reduce: %d bytes", got)
	}
}

func TestEqual(t *testing.T) {
	a := collective.GatherCall([]int{1, 2}, 3, gpustage.F32, gpustage.F32)
	if !a.Equal(collective.GatherCall([]int{1, 2}, 3, gpustage.F32, gpustage.F32)) {
		t.Error("not equal to itself")
	}
	for _, b := range []collective.Call{
		collective.GatherCall([]int{2, 1}, 3, gpustage.F32, gpustage.F32), collective.GatherCall([]int{1, 2}, 4, gpustage.F32, gpustage.F32),
		collective.GatherCall([]int{1, 2}, 3, gpustage.F64, gpustage.F32), collective.GatherCall([]int{1, 2}, 3, gpustage.F32, gpustage.BF16),
		collective.ReduceScatterCall([]int{1, 2}, 3, gpustage.F32, gpustage.F32),
	} {
		if a.Equal(b) || a.String() == b.String() {
			t.Errorf("%v and %v", a, b)
		}
	}
}

func TestMesh(t *testing.T) {
	m := collective.Mesh{Replicate: 3, Shard: 4}
	seen := map[int]bool{}
	for w := range m.Replicate {
		for s := range m.Shard {
			r := m.Rank(w, s)
			if gw, gs := m.Place(r); gw != w || gs != s || r < 0 || r >= m.Size() || seen[r] {
				t.Errorf("rank %d at %d, %d: %d, %d", r, w, s, gw, gs)
			}
			seen[r] = true
		}
	}
}

func ExampleConnect() {
	mesh := collective.Mesh{Replicate: 2, Shard: 3}
	err := local.Run(mesh.Size(), func(w collective.World) error {
		c, err := collective.Connect(context.Background(), w, mesh)
		if err != nil {
			return err
		}
		if w.Rank() == 4 {
			replicate, shard := mesh.Place(w.Rank())
			fmt.Printf("%v: rank 4 is replica %d, shard %d; %d ranks hold its parameters, %d the parts of its replica\n",
				mesh, replicate, shard, c.Replicate.Size(), c.Shard.Size())
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 2 x 3 (replicate x shard): rank 4 is replica 1, shard 1; 2 ranks hold its parameters, 3 the parts of its replica
	// <nil>
}

func ExampleCall() {
	gradients := collective.ReduceScatterCall([]int{500, 500, 500, 500}, 1000, gpustage.F32, gpustage.BF16)
	fmt.Println(gradients)
	fmt.Println("rank 0 sends", gradients.Sent(0), "bytes")
	// Output:
	// reduce-scatter of f32 rows [500 500 500 500] x 1000, bf16 wire
	// rank 0 sends 3000000 bytes
}
