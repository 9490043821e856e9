// Package pipeline runs a training step as a typed graph of stages.
//
// A contrastive step has a dependency that most frameworks hide in hooks: every row's gradient depends on every other
// row's embedding, on every device. Here it is a graph that can be drawn, checked before it runs, scheduled the same
// way every time, and looked at afterwards. The package knows nothing of tensors, texts or models: it moves values
// between functions and decides when each runs and where.
//
// # Building
//
// A [Graph] holds stages. A stage has named inputs and outputs, and a function. Ports are typed: a Port[Batch] cannot
// be connected to an input of another type. What the compiler can't see (an unconnected input, a cycle that is not
// declared loop-carried, a port with two writers, a device that doesn't exist, levels that don't fit) is found by
// [Graph.Build], all of it at once, each with a path of graph, stage and port.
//
// # Levels
//
// A value carries an [Index], and a stage works at one [Level]:
//
//	Stream   items in a row, before anything is a batch: #0, #1, ...
//	Step     one optimizer step: 7
//	Batch    one contrastive batch of a step: 7.0, 7.1 (several when gradients accumulate)
//	Sub      one sub-batch of a batch: 7.0.0, 7.0.1, ...
//
// [In] on a coarser port fans out: every sub-batch of 7.0 sees the value of 7.0. [Collect] on a finer port gathers: it
// waits for a whole group and gets it in index order. Two kinds of stage change the level otherwise: one that emits
// batches ([Batches]) turns a stream into steps and batches, and one that splits ([Fan]) turns a batch into sub-batches,
// as many as it finds right.
//
// # Placement and order
//
// A stage runs in the host pool or on a lane of a device: compute, communication, fetch or copy. A lane is one locked OS
// thread with whatever belongs to it (a CUDA context and stream), and runs its tasks in one order, which is fixed as
// soon as a batch has been split: for every batch, stage by stage in the graph's order, each over its sub-batches (upwards,
// or downwards for [Descending] stages); the stages of the step follow its last batch, and with them those of batches that
// read what one of these has made, or what a [Final] output has. The arrival of data only gates
// that order, it never changes it. This is what makes reruns bit-equal. Host stages run when their inputs are there,
// in index order, up to [Parallel] of them at once.
//
// A stage of a stream runs as its items arrive, ahead of the steps by what its edges hold, each item after the one before. So
// [Graph.Build] refuses one on a lane of stages that work on steps, batches or sub-batches. A lane may have several that work on streams,
// and no others; which of them comes next then depends on what has arrived. Wherever it runs, a stage of a stream must not read
// what a step writes, as a model in training: no edge orders the two. What is to see the model works on batches.
//
// Edges are bounded in batches (in items for streams): a producer that is ahead by an edge's capacity waits. An edge from
// a step to the next one is [Loop]-carried.
//
// # Running
//
// The core in scheduler.go is a pure state machine without goroutines, clocks or devices: it gets what happened and
// answers what to start. [Plan.Run] acts on its answers. An error, a panic or a cancelled context stops every lane,
// names the stage and item, and leaves no goroutine behind. What can't be used of a source need not stop what came before it: [Task.EndBefore] has that
// finished first. Everything that ran can be written as a Chrome trace
// ([NewTracer]), which opens in Perfetto, and from which [Summary] computes how much communication was hidden.
package pipeline
