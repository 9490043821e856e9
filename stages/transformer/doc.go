// Package transformer is the encoder: configuration, parameters, forward and backward, pooling.
//
// There is one implementation, driven by a [Config]; a family maps Hugging Face's configuration and tensor names onto it. Forward
// and backward are written by hand over package gpustage's ops, backward under forward, so the same code runs on every device
// and in f64 for verification.
//
// # What a pass does
//
// A sub-batch is packed: T tokens of texts, one behind the other, without padding between them. On devices that record passes a few rows
// of padding follow (buckets.go). [Model.Forward] computes the hidden states layer by layer, pools each
// row and normalizes it if the model says so. With Keep, the activations that the backward pass needs stay in the arena;
// without, a layer's are gone when the next one starts. In training both run the same ops on the same shapes, so a pass that keeps
// nothing, a kept one and a replayed one have the same bits; one that only embeds does not write what a backward pass alone would read. Activation checkpointing keeps the input of every k-th layer only and computes the
// layers between again during the backward pass; a pass that goes backward at once ([Model.Replay]) has its last
// segment still.
//
// Between pooling and normalization there may be dense layers (EmbeddingGemma, LaBSE): modules of sentence-transformers, with files
// of their own. An embedding then has as many features as the last one gives. LoRA leaves them as they are: an adapter's file has no
// place for them.
//
// Static embeddings ([Static]) are the table and the pooling, without layers: where the device can (gpustage.Bagger) the table's rows are summed
// where they lie, and a pass keeps nothing.
//
// An [MLMHead] makes sparse embeddings, of as many features as the vocabulary has tokens, in the place of pooling (splade.go).
//
// [TokenHeads] give parts of tokens besides, from the same hidden states: BGE-M3's lexical weights and vectors; or vectors alone, ColBERT's.
//
// # What trains
//
// [Tuning] freezes embeddings and layers, or trains LoRA's factors in the weights' place. What is frozen lies first in the flat vector
// of parameters; gradients, optimizer moments, buckets of reductions and shards are like the rest alone ([Layout.Trained]). No product is
// computed for a gradient that nobody wants, nothing is kept below the lowest place at which something trains, and a backward
// pass ends there.
//
// LoRA is in linear, which all projections go through. Projections that are one product keep being one, each adding its own factors'
// product to its columns of the sum; activations and dropout, elsewhere part of the product's last pass, wait for
// the complete sum. Merging the factors into W once a step would save their products where LoRA's dropout is 0,
// for a second copy of every target's weight: they are 3 % of the arithmetic at rank 16 and C = 1024.
//
// # Families
//
// A layer is two halves, attention and feed-forward, each y = sum(x + out(branch(in(x)))), where in, out and sum are norms that a
// family has or has not. Everything else is numbers and switches of Config: grouped heads, causal or windowed attention, rotary or
// learned positions, a relative bias or attention that sees distances, gates, caps, scales, biases.
//
// To add a family, write one file: register its model_type with a function from config.json to Config, the names of its
// tensors by their roles, where it drops, and its heads, if it is to rerank or to make sparse embeddings. ministral.go is 7 lines. A key that transformers reads in
// that family and Config has no word for is an error that names it, never something else computed; keys of other families are
// ignored, as they are there. A test changes each key that transformers writes for the family and wants another Config or an
// error. Then let testdata/golden/families/make.py make one golden, a small random model with what transformers computes of
// it: the tests find it, and check hidden states, every parameter's gradient, replay, memory and spans.
// testdata/peers/families.py compares with sentence-transformers, texts and all.
//
// # Positions
//
// Angles of rotary positions are computed in float64 and rounded once. In transformers they are float32 throughout, which is off by
// 1e-4 radians or so at thousands of tokens; the difference shows in the last digits of embeddings. Scaling variants that depend
// on the length look at each text alone, where transformers looks at the longest of the batch. More tokens than a model was trained
// for are refused; a model that knows distances alone (T5) takes any number.
//
// # What is kept
//
// Per layer of BERT's shape and token, in elements: the fused query-key-value projection (3C), the attention's output (C), the
// inputs of both norms (2C), and the feed-forward's pre-activation (F = 4C). The norms' outputs, which the next products take, and
// the activation's are computed again instead of kept: three passes over [T, C] and [T, F] for 6 of 16 C. In bf16 the projection, the
// attention's output and the pre-activation, 8 of the 10 C, may wait in bf16 (gpustage.KeepsBF16), or are of bf16 from the start (gpustage.TakesBF16).
//
// A lean pass ([Model.Lean]) does without the projection and the pre-activation, 7 of the 10 C, 28 of 40 bytes a feature in f32. Its way back makes
// each with the product that made it, of what the weight's gradient needs made again anyway: 7 of a forward pass's 12 C² multiply-adds, but neither
// attention nor the passes that move hidden states. Where operands are of bf16 other passes keep the norms' outputs too, as products take them, and
// a lean one does not: 6 bytes a feature instead of 24. It makes them again of the norms' inputs, which wait in bf16, and so they are of those
// in any pass (gpustage.Norm).
//
// # An exact zero
//
// Softmax does not see a constant added to all its inputs, so without rotary positions the gradient of the key projection's bias is zero:
// adding b to every key adds <q, b> to every score of query q. Where keys have a norm it is that norm's beta. (DeBERTa's keys meet queries of distances
// besides, so that theirs is not; but that of keys of distances is.) Other frameworks sum its rounding errors and let Adam
// turn them into steps of full size; here that bias gets no gradient at all.
package transformer
