// Package stages is what a training graph is made of, one file per stage, in the order in which data flows:
//
//	ingest -> tokenize -> batch -> split -> embed -> loss -> backward -> update
//	                                          |   dEmbeddings   |          |
//	                                          +-- kept passes --+          +-- weights, to the next step's embed
//
// With several ranks, header, gather, scatter and reduce join them: see [Replicas].
//
// Each function adds one stage to a pipeline.Graph and returns its output port, so a pipeline reads as the list above, and a
// stage of one's own goes between any two of them. What stages of one model share on its device (parameters, gradients,
// the arena, embeddings, kept passes) is an [Encoder].
//
// # The cached pass and the replay budget
//
// A contrastive batch may be thousands of times larger than what fits through the model at once. It is split into sub-batches;
// embed computes each one's embeddings, the loss sees all of them and gives their gradient, and backward sends each sub-batch's
// part of it through the model (GradCache, Gao et al., arXiv 2101.06983). GradCache forwards every sub-batch twice, because
// it keeps no activations of the first pass. Here embed keeps those of the last sub-batches, as many as fit the replay budget;
// backward goes from the last to the first, starts with the kept ones and replays the others. So a small batch costs
// what plain training costs, a huge one what GradCache costs, and gradients are the same bits whatever the budget.
//
// # One division
//
// Losses and gradients stay sums until the step's update: over rows, columns, sub-batches and accumulated batches. Only there
// they are divided, by the sum of the rows' weights over everything the step has seen.
package stages
