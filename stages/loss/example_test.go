package loss_test

import (
	"fmt"
	"math/rand/v2"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages/loss"
)

// A test of a loss of one's own: a query is to be nearer to its positive than a margin. A Host's function has embeddings as float32s; this one
// computes in float64, so that small steps show its gradient. Next to it stands one with a sign that is wrong.
func ExampleCheckGradient() {
	hinge := func(sign float64) loss.Host {
		return func(b *loss.Batch, embeddings, gradient [][]float32) (r loss.Result, err error) {
			for i := range b.Rows {
				query, positive, w := embeddings[i], embeddings[b.Rows+i], b.Weight(i)
				distance := 0.0
				for k, q := range query {
					d := float64(q) - float64(positive[k])
					distance += d * d
				}
				if distance > 0.5 {
					for k, q := range query {
						d := 2 * w * (float64(q) - float64(positive[k]))
						gradient[i][k], gradient[b.Rows+i][k] = float32(d), float32(-sign*d)
					}
				}
				r.Sum, r.Weight = r.Sum+w*max(0, distance-0.5), r.Weight+w
			}
			return r, nil
		}
	}
	stream, err := ref.New().OpenStream()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stream.Close()
	batch, err := loss.RandomBatch(stream.Device(), gpustage.F64, rand.New(rand.NewPCG(1, 2)), 4, 3, 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(loss.CheckGradient(stream, hinge(1), batch, loss.GradientCheck{}))
	err = loss.CheckGradient(stream, hinge(-1), batch, loss.GradientCheck{})
	fmt.Println("with the wrong sign:", err != nil)
	// Output:
	// <nil>
	// with the wrong sign: true
}
