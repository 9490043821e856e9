package recipe

import (
	"cmp"
	"slices"
	"strings"
)

// lossName checks the loss that a key names against a list, in which synonyms stand side by side: kinds are the names of each loss, the usual one first.
// A class of sentence-transformers is answered with our name.
func (c *checker) lossName(path string, kinds [][]string) {
	n := c.find(path)
	if n != nil && n.kind == scalar {
		for _, names := range kinds {
			if slices.ContainsFunc(names, func(name string) bool { return ofClass(n.text) == strings.ReplaceAll(name, "_", "") }) {
				c.fail(path, "is %s, which is called %s here", describe(n), names[0])
				return
			}
		}
	}
	c.words(path, slices.Concat(kinds...)...)
}

// ofClass is what a class's name says of its loss: CachedMultipleNegativesRankingLoss is multiplenegativesranking.
func ofClass(name string) string {
	name, ok := strings.CutSuffix(name[strings.LastIndexByte(name, '.')+1:], "Loss")
	if !ok {
		return ""
	}
	name = strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(name, "Cached"), "Sparse"))
	return cmp.Or(map[string]string{"distillkldiv": "distillkl", "binarycrossentropy": "bce"}[name], name) // two that are shortened here
}
