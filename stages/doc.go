// Package stages is what a training graph is made of, one file per stage, in the order in which data flows:
//
//	ingest -> tokenize -> batch -> split -> embed -> loss -> backward -> update
//	                                          |   dEmbeddings   |          |
//	                                          +-- kept passes --+          +-- weights, to the next step's embed
//
// With several ranks, header, gather, scatter and reduce join them: see [Replicas]. A second model whose embeddings a loss compares has
// stages of its own between embed and loss: see [Guide].
//
// Each function adds one stage to a pipeline.Graph and returns its output port, so a pipeline reads as the list above, and a
// stage of one's own goes between any two of them. [Train] adds all of them, for who has none to put between, and [Encoder.Run]
// runs the graph. What stages of one model share on its device (parameters, gradients, the arena, embeddings, kept passes) is an
// [Encoder].
//
// # The gradient contract
//
// The loss of an optimizer step is
//
//	sum over batches b and rows i of w_i l_i / sum over batches b and rows i of w_i
//
// over the contrastive batches that it accumulates and their rows on all ranks; w_i is 1 unless the data gives weights. Negatives are those of
// a row's own batch. Losses and gradients stay sums until the update, which divides once, before clipping: so there is no factor of the number of
// ranks, and rows that are shared out unevenly change nothing.
//
// For one recipe, global batch, weights and seed every choice of replicas, shards, sub-batches, replay budget, activation checkpointing, overlap
// and tiles gives the gradient of one process that caches nothing and sees the whole batch at once. How far a tensor's gradient may be from that is
// measured by transformer.GradientError: in f32, 1e-5 of the tensor's largest value. With the same ranks and sub-batches gradients are the same bits,
// whatever the replay budget, overlap or threads. Command verify-grads tells for a model and data, and package recipe's Verify how.
//
// # The cached pass and the replay budget
//
// A contrastive batch may be thousands of times larger than what fits through the model at once. It is split into sub-batches;
// embed computes each one's embeddings, the loss sees all of them and gives their gradient, and backward sends each sub-batch's
// part of it through the model (GradCache, Gao et al., arXiv 2101.06983). GradCache forwards every sub-batch twice, because
// it keeps no activations of the first pass. Here embed keeps those of the last sub-batches, as many as fit the replay budget;
// backward goes from the last to the first, starts with the kept ones and replays the others. Where not all fit, what is kept is the
// part that costs most to compute again for its memory (a lean pass; see keeping). So a small batch costs what plain training costs,
// a huge one what GradCache costs, and gradients are the same bits whatever the budget.
//
// # Rerankers
//
// A model that scores trains on the same graph: its sequences are pairs (a document with its row's query in front), its embeddings have one
// dimension, or as many as a layer-wise reranker has layers that score, and its loss is a sum over groups, the documents of a row. It has
// no need of the cached pass, since a group's gradient follows from its own scores, and nothing but parameters' gradients travels between
// ranks. It goes through the cached pass nevertheless: with all activations kept, which is the rule within the replay budget, that is the
// plain pass, one batch wide; beyond the budget, large batches and groups larger than a sub-batch work at the price of a replay. There is
// one schedule, one set of collectives and one resume for both kinds of models. Documents of other rows may be in a group, too: see [InBatch].
//
// # Parts
//
// What a model gives of a text is a set of parts: its embedding, and of an M3 also a lexical weight and a vector for each of its tokens.
// Embed, gather, loss, scatter and backward treat them alike; see parts.go.
package stages
