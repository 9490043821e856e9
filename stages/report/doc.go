// Package report shows runs to people: one HTML file that needs no network, no server and no other file.
//
// A run's folder holds metrics.jsonl (a line for each step and each evaluation), recipe.yaml and run.json (what the run was, where its
// time went, one of its steps task by task). [Load] reads them, of a run that has ended as of one that still runs or that was killed;
// [Write] draws any number of runs over each other:
//
//   - loss, learning rate, gradient norm, throughput, memory and evaluations against steps;
//   - the stage graph with each stage's share of the time, how long lanes waited for it, and how full the queues were;
//   - one step's timeline, a row for each lane, with the communication that computing hid and that which it did not;
//   - what the data came to: padding that was not computed, texts that were cut, rows that were left out and why;
//   - the recipe, or where several runs' recipes differ.
//
// # Size
//
// A figure has at most some 800 points however long the run was: where there are more steps, each pixel's smallest and largest value
// stay, so that no spike is lost. 10,000 steps make a file of a few hundred kilobytes.
package report
