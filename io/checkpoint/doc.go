// Package checkpoint keeps a training run's state on disk so that it can go on exactly where it was.
//
// # What is in it
//
// A [Store] is a run's folder "checkpoints". Each checkpoint is a folder in it:
//
//	LATEST                         the name of the last complete one, for people and scripts
//	step-00001500/
//	    checkpoint.json            [State]: step, recipe, place in the data, and every part's size and hash
//	    rank-00000.safetensors     a part: pieces of the weights and of the optimizer's moments
//	    rank-00001.safetensors
//
// Every rank writes one part. A part holds pieces of parameters, each by vector ("weights", "moment 1"), the parameter's name and
// the place of its first element, so that who reads them need not be as many as who wrote them: [Checkpoint.Read]
// puts any range of any parameter together from the pieces of all parts. Parts are ordinary safetensors files.
//
// # How it is written
//
//  1. [Store.Begin] makes ".step-00001500.partial" and looks whether the disk has room.
//  2. Each rank writes and fsyncs its part into it ([Store.WritePart]) and learns its hash on the way.
//  3. [Store.Commit] checks that the parts are there and cover every parameter, writes and fsyncs checkpoint.json with everyone's
//     hashes, fsyncs the folder, renames it to "step-00001500", and fsyncs "checkpoints".
//  4. Only then LATEST is replaced, in the same manner, and what is older than the last save.keep complete checkpoints is
//     removed: first renamed to a hidden name, so that half of one is never taken for one. Damaged ones do not count, so a
//     complete one always stays.
//
// Whatever ends this at whatever byte (a kill, a power cut, a full disk), the checkpoint before is still there, and
// what is not complete is not taken for complete. The tests end it at every operation.
//
// # How it is found again
//
// [Store.Latest] looks at the folders from the newest down and takes the first whose checkpoint.json has its own hash and whose parts have
// theirs and cover every parameter. What is wrong with a newer one is told, by name. LATEST is not believed: between a
// rename and the next it names the one before.
package checkpoint
