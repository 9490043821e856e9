package loss

import (
	"fmt"
	"math"

	"contraflow/gpustage"
)

// TeacherEmbedding wants every text of a row to have the embedding that a teacher has given the row: sentence-transformers' MSELoss and
// EmbedDistillLoss without a projection. With the teacher's t and the mean over the row's texts,
//
//	Euclidean   l = |x - t|
//	Cosine      l = 1 - cos(x, t)
//	otherwise   l = |x - t|^2 / E
//
// Embeddings are taken as they are.
type TeacherEmbedding struct {
	meanOverRows
	Metric Metric // "": the mean squared error
}

// Check finds settings that make no sense.
func (l TeacherEmbedding) Check() error {
	if err := checkMetric(l.Metric, Cosine, Euclidean); err != nil {
		return fmt.Errorf("distance %w", err)
	}
	return nil
}

func (l TeacherEmbedding) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.check(); err != nil {
		return Result{}, err
	}
	lo, hi := b.Own()
	e := b.Embeddings.Cols
	if hi == lo {
		return Result{}, nil
	}
	if b.Teacher == nil {
		return Result{}, fmt.Errorf("the loss needs a teacher's embeddings: data.train[].teacher (in Go dataset.Source.Teacher) names their column")
	}
	if size := len(b.Teacher) / (hi - lo); size != e {
		return Result{}, fmt.Errorf("a teacher's embeddings have %d dimensions, the model's have %d", size, e)
	}
	mark := a.Mark()
	defer a.Release(mark)
	v := viewOf(s, a, b, l.Metric == Cosine)

	var texts, rows []int32 // the own rows' sequences
	count := make([]float64, hi-lo)
	for n := range b.N() {
		row := b.rowOf(n)
		if row >= lo && row < hi {
			texts, rows = append(texts, int32(n)), append(rows, int32(row))
			count[row-lo]++
		}
	}
	losses := make([]float64, hi-lo)
	inner := a.Mark()
	for from := 0; from < len(texts); from += chunk {
		to := min(len(texts), from+chunk)
		n, t := to-from, v.x.DType
		teacher := make([]float64, 0, n*e)
		for _, row := range rows[from:to] {
			own := b.Teacher[(int(row)-lo)*e : (int(row)-lo+1)*e]
			norm := 1.0
			if l.Metric == Cosine {
				sum := 0.0
				for _, x := range own {
					sum += float64(x) * float64(x)
				}
				norm = max(math.Sqrt(sum), 1e-12)
			}
			for _, x := range own {
				teacher = append(teacher, float64(x)/norm)
			}
		}
		index := a.Scratch(s, gpustage.I32, 1, n)
		s.CopyIn(index, gpustage.Bytes(texts[from:to]))
		x, y, w := a.Scratch(s, t, n, e), a.Scratch(s, t, n, e), a.Scratch(s, t, 1, n)
		s.Gather(x, v.x, index, false)
		gpustage.Upload(s, y, teacher)
		if l.Metric == Cosine {
			s.RowDot(w, x, y, 1)
		} else {
			s.Scale(y, y, -1)
			s.Add(y, y, x)
			s.RowDot(w, y, y, 1)
		}
		values, err := download(s, w)
		if err != nil {
			return Result{}, err
		}
		for i, row := range rows[from:to] {
			share := 1 / count[int(row)-lo]
			coef := share * b.Weight(int(row)) // of y
			switch value := values[i]; l.Metric {
			case Cosine:
				losses[int(row)-lo] += share * (1 - value)
				coef = -coef
			case Euclidean:
				d := math.Sqrt(value)
				losses[int(row)-lo] += share * d
				if d > 0 {
					coef /= d
				}
			default:
				losses[int(row)-lo] += share * value / float64(e)
				coef *= 2 / float64(e)
			}
			values[i] = coef
		}
		gpustage.Upload(s, w, values)
		s.Fill(x, 0)
		s.RowAxpy(x, y, w, 1)
		s.ScatterAdd(v.dx, x, index)
		a.ReleaseScratch(inner)
	}
	v.finish(s, b)
	var r Result
	for i, l := range losses {
		if err := r.add(lo+i, b.Weight(lo+i), l); err != nil {
			return Result{}, err
		}
	}
	return r, nil
}

// Memory is that of a chunk.
func (l TeacherEmbedding) Memory(z Size) int {
	return viewMemory(z, l.Metric == Cosine) + 2*chunk*z.Dim*z.DType.Size() + 2*chunk*8 + 8*64
}
