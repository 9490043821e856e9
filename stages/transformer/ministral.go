package transformer

// Ministral (Mistral AI, October 2024) is Mistral with a window in those layers that layer_types says.

func init() {
	register(family{parse: parseMistral, names: decoderNames, drops: decoderDrops}, "ministral")
}
