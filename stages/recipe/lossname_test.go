package recipe

import (
	"fmt"
	"strings"
	"testing"
)

// A class of sentence-transformers is answered with the name that the pages have, and what is only like it with the names there are.
func TestLossClasses(t *testing.T) {
	for class, want := range map[string]string{
		"MultipleNegativesRankingLoss": "mnrl", "losses.CachedMultipleNegativesRankingLoss": "mnrl", "SparseMarginMSELoss": "margin_mse", "CachedGISTEmbedLoss": "gist", "CoSENTLoss": "cosent",
		"AnglELoss": "angle", "SparseDistillKLDivLoss": "distill_kl", "BatchHardSoftMarginTripletLoss": "batch_hard_soft_margin_triplet", "OnlineContrastiveLoss": "online_contrastive",
	} {
		_, err := Parse("r.yaml", []byte(minimal), []string{"loss.name=" + class})
		if w := fmt.Sprintf("loss.name: is %q, which is called %s here", class, want); err == nil || !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "want one of") {
			t.Errorf("%s: %v, want %s", class, err, w)
		}
	}
	for class, want := range map[string]string{"PListMLELoss": "p_list_mle", "BinaryCrossEntropyLoss": "bce", "ADRMSELoss": "adr_mse", "LambdaLoss": "lambda"} {
		_, err := Parse("r.yaml", []byte(strings.Replace(minimal, "path: m", "path: m, kind: reranker", 1)), []string{"loss.name=" + class})
		if w := fmt.Sprintf("loss.name: is %q, which is called %s here", class, want); err == nil || !strings.Contains(err.Error(), w) || strings.Contains(err.Error(), "missing") { // what a loss lacks that there is not
			t.Errorf("%s: %v, want %s", class, err, w)
		}
	}
	for _, name := range []string{"mnrls", "SoftmaxLoss", "infonce loss"} {
		if _, err := Parse("r.yaml", []byte(minimal), []string{"loss.name=" + name}); err == nil || !strings.Contains(err.Error(), "want one of angle, ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse("r.yaml", []byte(minimal), []string{"loss.name=multiple_negatives_ranking"}); err != nil {
		t.Error(err)
	}
}
