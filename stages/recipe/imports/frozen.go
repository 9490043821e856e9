package imports

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// frozen makes model.freeze of the names of the parameters that do not train and of those that do, if it can say just that: all of the lowest layers, all that is
// below the first, or both.
func (r *recipe) frozen() {
	names := r.list("frozen")
	if names == nil {
		return
	}
	trains := r.list("training")
	layers, below, whole := map[int]bool{}, false, len(trains) > 0
	for _, name := range names {
		switch layer, place := r.place(name); place {
		case inLayer:
			layers[layer] = true
		case belowLayers:
			below = true
		case aboveLayers:
			whole = false
		}
	}
	for layer := range layers {
		whole = whole && layer < len(layers)
	}
	for _, name := range trains {
		layer, place := r.place(name)
		whole = whole && !(place == inLayer && layers[layer]) && !(place == belowLayers && below)
	}
	if !whole {
		r.without("frozen", "%s", counterparts["frozen"])
		return
	}
	if len(layers) == 0 && !below { // what no embedding reads
		return
	}
	r.keys["model.freeze"] = fmt.Sprintf("{layers: %d, embeddings: %t}", len(layers), below)
}

type place int

const (
	unused place = iota
	belowLayers
	inLayer
	aboveLayers
)

var (
	layerName = regexp.MustCompile(`\.(?:layer|layers|h|block|blocks)\.(\d{1,4})\.`)
	aboveName = regexp.MustCompile(`\.(?:final_norm|final_layer_norm|norm|ln_f|pooler|head|classifier|pre_classifier|score|cls|lm_head|decoder|generator_\w+|vocab_\w+)\.`)
)

// place tells where in a model a parameter is, by its name in a trainer of sentence-transformers, 0.model.encoder.layer.3.output.dense.weight, and in which layer.
func (r *recipe) place(name string) (int, place) {
	own, transformer := strings.CutPrefix(name, "0.")
	m := layerName.FindStringSubmatch(own)
	switch {
	case !transformer: // a module behind it, such as Dense
		return 0, aboveLayers
	case strings.Contains(own, "relative_attention_bias"): // all layers' own, which some keep in the first
		return 0, belowLayers
	case m != nil:
		layer, _ := strconv.Atoi(m[1])
		return layer, inLayer
	case strings.Contains(own, ".pooler.") && !r.pairs:
		return 0, unused
	case strings.Contains(own, "embeddings.") || !aboveName.MatchString(own): // embeddings.norm too
		return 0, belowLayers
	}
	return 0, aboveLayers
}
