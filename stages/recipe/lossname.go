package recipe

import (
	"cmp"
	"slices"
	"strings"
)

// lossName checks the loss that a key names against those that it may be, and tells whether it is one. A class of sentence-transformers is answered with
// our name.
func (c *checker) lossName(path string, l *Loss) bool {
	var all []string
	n := c.find(path)
	for _, k := range l.kinds() {
		if all = append(all, k.names...); n == nil || n.kind != scalar {
			continue
		}
		if slices.ContainsFunc(k.names, func(name string) bool { return ofClass(n.text) == strings.ReplaceAll(name, "_", "") }) {
			c.fail(path, "is %s, which is called %s here", describe(n), k.names[0])
			return false
		}
	}
	c.words(path, all...)
	return slices.Contains(all, l.Name)
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
