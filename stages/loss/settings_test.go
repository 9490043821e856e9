package loss

import (
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// Settings that would do nothing, or never end, are told before anything is computed: those of a loss in another loss too.
func TestSettings(t *testing.T) {
	bad := InfoNCE{Scale: -1}
	matryoshka, err := Matryoshka(bad, []int{2}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		l    interface{ Check() error }
		want string
	}{
		{InfoNCE{TileRows: -1}, "tiles of -1 and 0"},
		{InfoNCE{TileCols: -2}, "tiles of 0 and -2"},
		{M3{Block: -1}, "tiles of -1 and 0"},
		{LateInteraction{TileCols: -1}, "tiles of 0 and -1"},
		{InfoNCE{Hardness: HardNegatives}, `hardness "hard_negatives" of strength 0: one without the other does nothing`},
		{InfoNCE{HardnessStrength: 5}, `hardness "" of strength 5`},
		{Groups{Name: GroupKL, Scheme: NDCGLoss1}, "kl: weighting is of lambda, and does nothing here"},
		{Groups{Name: GroupRankNet, Mu: 3}, "rank_net: mu is of lambda"},
		{Groups{Name: GroupMSE, K: 3}, "mse: k is of rank_net, lambda"},
		{Groups{Name: GroupBCE, Sigma: 2}, "bce: sigma is of rank_net, lambda"},
		{Groups{Name: GroupRankNet, Alpha: 2}, "rank_net: alpha is of adr_mse"},
		{Groups{Name: GroupMSE, PosWeight: 2}, "mse: pos_weight is of bce"},
		{Groups{Name: GroupListNet, ByLabel: true}, "list_net: by_label is of list_mle, p_list_mle"},
		{Groups{Name: GroupCrossEntropy, Scale: 2}, "cross_entropy: scale is of mnrl"},
		{matryoshka.(interface{ Check() error }), "scale is -1"},
		{ByDataset{InfoNCE{}, bad}, "dataset 1, loss.InfoNCE: scale is -1"},
		{ByDataset{InfoNCE{}, nil}, "dataset 1 has no loss"},
		{Host(nil), "there is no function"},
	} {
		if err := c.l.Check(); err == nil || !strings.HasPrefix(strings.TrimPrefix(err.Error(), "loss.Host(nil): "), c.want) {
			t.Errorf("%T %+v: %v, want %q", c.l, c.l, err, c.want)
		}
	}
	for _, good := range []interface{ Check() error }{
		Groups{Name: GroupLambda, K: 1, Sigma: 2, Mu: 3}, Groups{Name: GroupLambda, Scheme: LambdaRank}, Groups{Name: GroupRankNet, K: 1, Sigma: 2}, Groups{Name: GroupADRMSE, Alpha: 2},
		Groups{Name: GroupBCE, PosWeight: 2}, Groups{Name: GroupListMLE, ByLabel: true}, Groups{Name: GroupPListMLE, ByLabel: true}, Groups{Name: GroupMNRL, Scale: 2},
		InfoNCE{Hardness: AllNegatives, HardnessStrength: 1, TileRows: 1, TileCols: 1}, ByDataset{InfoNCE{}, CoSENT{}}, Host(func(*Batch, [][]float32, [][]float32) (Result, error) { return Result{}, nil }),
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%T %+v: %v", good, good, err)
		}
	}
	if _, err := Matryoshka(nil, []int{1}, nil, 0); err == nil || err.Error() != "there is no loss" {
		t.Error(err)
	}
}

// Losses of embeddings, with others in them, say that a batch has none, or parts besides.
func TestBatchesOfOthers(t *testing.T) {
	s, _ := ref.New().OpenStream()
	a := newArena(t, s, 1<<20)
	tokens := vectorsBatch(t, s, gpustage.F64, 3, 4, nil, []int{2, 1, 3, 2, 1, 2})
	if _, err := (Flops{Loss: LateInteraction{}, Query: 1}).Compute(s, a, tokens); err != errNoEmbeddings {
		t.Error(err)
	}
	both := newBatch(t, s, gpustage.F64, 0, 3, 4, make([]float64, 24))
	m, _ := Matryoshka(InfoNCE{}, []int{2}, nil, 0)
	both.Parts = tokens.Parts
	if _, err := m.Compute(s, a, both); err == nil || !strings.HasPrefix(err.Error(), "matryoshka: parts of tokens") {
		t.Error(err)
	}
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
}

// nearOnly is a loss of those queries alone that are near to their positives: how many these are depends on the features that it sees.
type nearOnly struct{ Host }

var nearTo = nearOnly{func(b *Batch, x, dx [][]float32) (r Result, err error) {
	for i := range b.Rows {
		cosine := 0.0
		for k, v := range x[i] {
			cosine += float64(v * x[b.Rows+i][k])
		}
		if cosine < 0 {
			continue
		}
		r.Sum, r.Weight = r.Sum+cosine, r.Weight+1
		for k := range x[i] {
			dx[i][k], dx[b.Rows+i][k] = x[b.Rows+i][k], x[i][k]
		}
	}
	return r, nil
}}

// splitsToo says that it splits rows, of which other ranks' weights are not known.
type splitsToo struct{ nearOnly }

func (splitsToo) SplitsRows() {}

// Of a loss that is a mean over another weight with each number of features, a Matryoshka loss is the sum of the means.
func TestMatryoshkaOfOtherWeights(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := newBatch(t, s, gpustage.F32, 0, 3, 2, []float64{1, 1, 1, 2, 1, 3, 1, 0.5, 1, -9, -1, -1})
	want, gradient := 0.0, make([]float64, 12)
	weights := map[float64]bool{}
	for i, dim := range []int{2, 1} {
		alone, _ := Matryoshka(nearTo, []int{dim}, nil, 0)
		s.Fill(b.Gradient, 0)
		value, g := compute(t, s, alone, b)
		factor := []float64{1, 3}[i]
		want += factor * value
		for k, v := range g {
			gradient[k] += factor * v
		}
		r, _ := alone.Compute(s, newArena(t, s, 1<<16), b)
		weights[r.Weight] = true
	}
	if len(weights) != 2 {
		t.Fatalf("the same weight with each number of features: %v", weights)
	}
	both, _ := Matryoshka(nearTo, []int{2, 1}, []float64{1, 3}, 0)
	s.Fill(b.Gradient, 0)
	if got, g := compute(t, s, both, b); !(math.Abs(got-want) <= 1e-6) || !(worst(g, gradient) <= 1e-6) {
		t.Errorf("loss %v, want %v; gradient %v, want %v", got, want, g, gradient)
	}
	ranks, _ := Matryoshka(splitsToo{nearTo}, []int{2, 1}, nil, 0)
	if _, err := ranks.Compute(s, newArena(t, s, 1<<16), b); err == nil || !strings.Contains(err.Error(), "splits rows, and its Result.Weight is 2 with 1 features and 1 with fewer or more") {
		t.Error(err)
	}
}
