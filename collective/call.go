package collective

import (
	"fmt"
	"slices"

	"contraflow/gpustage"
)

// Op names a collective operation.
type Op string

const (
	OpAllGather     Op = "all-gather"
	OpReduceScatter Op = "reduce-scatter"
	OpAllReduce     Op = "all-reduce"
	OpBroadcast     Op = "broadcast"
	OpExchange      Op = "exchange"
)

// Call is one data collective as every rank must call it. It tells what travels, so it is at once what ranks compare
// before they trust each other, what [Traffic] counts and what a planner predicts with.
type Call struct {
	Op    Op
	Rows  []int // by rank. OpAllReduce: Parts(elements, ranks). OpBroadcast: everything at the root, 0 elsewhere
	Cols  int
	DType gpustage.DType // of the tensors
	Wire  gpustage.DType // of what travels
}

// GatherCall is an all-gather.
func GatherCall(rows []int, cols int, t, wire gpustage.DType) Call {
	return Call{OpAllGather, rows, cols, t, wire}
}

// ReduceScatterCall is a reduce-scatter.
func ReduceScatterCall(rows []int, cols int, t, wire gpustage.DType) Call {
	return Call{OpReduceScatter, rows, cols, t, wire}
}

// AllReduceCall is an all-reduce of n elements by so many ranks.
func AllReduceCall(n, size int, t, wire gpustage.DType) Call {
	return Call{OpAllReduce, Parts(n, size), 1, t, wire}
}

// BroadcastCall is a broadcast of n elements.
func BroadcastCall(n, size, root int, t gpustage.DType) Call {
	rows := make([]int, size)
	rows[root] = n
	return Call{OpBroadcast, rows, 1, t, t}
}

// ExchangeCall is a host exchange of messages of so many bytes, by rank.
func ExchangeCall(lengths []int) Call { return Call{Op: OpExchange, Rows: lengths, Cols: 1} }

// Parts cuts n elements into one part for each rank, whole cache lines where possible: in an all-reduce a rank sums its
// part and gives it to the others.
func Parts(n, size int) []int {
	const line = 16 // f32 elements of 64 bytes
	lines := (n + line - 1) / line
	parts := make([]int, size)
	at := 0
	for r := range parts {
		end := min(n, (r+1)*lines/size*line)
		parts[r] = end - at
		at = end
	}
	return parts
}

// Sum is the number of rows of all ranks.
func (c Call) Sum() int {
	n := 0
	for _, r := range c.Rows {
		n += r
	}
	return n
}

// Sent is the payload in bytes that leaves a rank: what the other ranks receive of it, each counted, however a library
// routes it.
func (c Call) Sent(rank int) int64 {
	return c.bytes(rank, c.Op == OpReduceScatter, c.Op == OpAllReduce)
}

// Received is the payload in bytes that arrives at a rank.
func (c Call) Received(rank int) int64 {
	if c.Op == OpBroadcast {
		if c.Rows[rank] > 0 {
			return 0
		}
		return int64(c.Sum()) * c.width()
	}
	return c.bytes(rank, c.Op == OpAllGather || c.Op == OpExchange, c.Op == OpAllReduce)
}

// bytes counts a rank's own rows for each other rank, or others' rows once, or both.
func (c Call) bytes(rank int, others, both bool) int64 {
	own := c.Rows[rank] * (len(c.Rows) - 1)
	rest := c.Sum() - c.Rows[rank]
	n := own
	if others {
		n = rest
	}
	if both {
		n = own + rest
	}
	return int64(n) * int64(c.Cols) * c.width()
}

// width is the size of an element on the wire.
func (c Call) width() int64 {
	if c.Op == OpExchange {
		return 1
	}
	return int64(c.Wire.Size())
}

// Equal tells whether two ranks mean the same.
func (c Call) Equal(o Call) bool {
	return c.Op == o.Op && c.Cols == o.Cols && c.DType == o.DType && c.Wire == o.Wire && slices.Equal(c.Rows, o.Rows)
}

func (c Call) String() string {
	wire := ""
	if c.Wire != c.DType {
		wire = fmt.Sprintf(", %s wire", c.Wire)
	}
	switch c.Op {
	case OpExchange:
		return fmt.Sprintf("%s of %v bytes", c.Op, c.Rows)
	case OpAllReduce:
		return fmt.Sprintf("%s of %s[%d]%s", c.Op, c.DType, c.Sum(), wire)
	case OpBroadcast:
		root := max(0, slices.IndexFunc(c.Rows, func(n int) bool { return n > 0 }))
		return fmt.Sprintf("%s of %s[%d] from rank %d", c.Op, c.DType, c.Sum(), root)
	}
	return fmt.Sprintf("%s of %s rows %v x %d%s", c.Op, c.DType, c.Rows, c.Cols, wire)
}
