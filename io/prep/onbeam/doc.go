// Package onbeam runs the steps of package prep as an Apache Beam pipeline. It is built with -tags beam, and without
// the tag it is empty: Beam's hundred packages take minutes to compile, and nothing else needs them.
//
// A program calls Worker before it looks at its arguments, since runners start it again where the work is done, and Run with the configuration that
// prep.Run takes and one of Runners:
//
//	onbeam.Worker(os.Args[1:])
//	stats, err := onbeam.Run(ctx, config, onbeam.Options{Runner: "prism"})
//
// A pipeline of one's own takes prep's row functions into a DoFn: see the example of prep.Worker.
//
// # The story
//
// An element is a shard of the input, a range of blocks: row groups of parquet, stretches of JSON lines. Rows are never shuffled, only what they
// are compared by, and their ids:
//
//	shards -> keys -> group by text's hash -> survivors -> bands -> group by band -> dropped ids
//	   \                        \-> dropped ids                                          |
//	    \-----------------------------> group by shard <---------------------------------/
//	                                          |
//	                                    read again, write -> statistics -> merge
//
// Every shard's file is written by one call, under a temporary name, as a whole; a bundle that is tried again writes the same file. What a
// row is dropped for depends on the rows alone, so the files are those of the in-process runner, byte for byte.
//
// # Where it runs
//
// Input and output must be reachable from every worker under the same paths. Run waits for the job, and completes the output only when the
// job has succeeded.
package onbeam
