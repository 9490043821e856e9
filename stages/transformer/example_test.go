package transformer_test

import (
	"fmt"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages/transformer"
)

// A model from a Hugging Face configuration, with random weights, and a pass over two texts' tokens, there and back.
func Example() {
	c, err := transformer.ParseConfig([]byte(`{"model_type": "qwen3", "vocab_size": 100, "hidden_size": 16, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32, "max_position_embeddings": 64}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	dev := ref.New()
	s, _ := dev.OpenStream()
	m, err := transformer.New(dev, c, transformer.Head{Pooling: gpustage.LastPooling, Normalize: true}, transformer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Init(s, 42)

	rows := transformer.Rows{IDs: []int32{5, 17, 99, 7, 8}, Cu: []int32{0, 3, 5}} // three tokens, and two
	arena, _ := gpustage.NewArena(dev, m.Memory([]int{3, 2}).Backward)
	pass := m.Forward(s, arena, rows, true, true)
	fmt.Println("embeddings:", pass.Embeddings())

	grads, _ := m.NewGradients()
	pass.Backward(pass.Embeddings(), grads)
	q, _ := m.Layout.Find("layers.1.self_attn.q_proj.weight")
	fmt.Println("gradient of", q.Name, "is", m.Layout.View(grads, q))

	long := transformer.Rows{IDs: make([]int32, 65), Cu: []int32{0, 65}}
	fmt.Println(m.Check(long))
	// Output:
	// embeddings: f32[2 16]
	// gradient of layers.1.self_attn.q_proj.weight is f32[32 16]
	// row 0 of the sub-batch has 65 tokens, the model was trained with 64 positions: cut texts to a max_length of at most that
}
