package dataset

import (
	"fmt"
	"strings"

	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/format"
)

// A parquet schema, read by shape. Names inside a list ("element", "item", "array", "bag") differ between writers and
// mean nothing; what counts is which levels repeat and which may be null.
//
//	3 levels  optional group pos (LIST) { repeated group list { optional binary element (STRING) } }     pyarrow, HF datasets
//	2 levels  optional group pos (LIST) { repeated binary array (STRING) }                               old Hive and Avro writers
//	1 level   repeated binary pos (STRING)                                                               protobuf writers

// node is an element of the schema's tree.
type node struct {
	elem     *format.SchemaElement
	children []*node
	maxRep   uint8 // repetition level of a value here
	maxDef   uint8 // definition level of a value that is not null
	leaf     int   // index of the column chunk; -1 for groups
}

func (n *node) repetition() format.FieldRepetitionType {
	if n.elem.RepetitionType.Valid {
		return n.elem.RepetitionType.V
	}
	return format.Required
}

func (n *node) isList() bool {
	if _, ok := n.elem.LogicalType.Value.(*format.ListType); ok {
		return true
	}
	return n.elem.ConvertedType.Valid && n.elem.ConvertedType.V == deprecated.List
}

func (n *node) isMap() bool {
	if _, ok := n.elem.LogicalType.Value.(*format.MapType); ok {
		return true
	}
	return n.elem.ConvertedType.Valid && (n.elem.ConvertedType.V == deprecated.Map || n.elem.ConvertedType.V == deprecated.MapKeyValue)
}

// buildSchema makes the tree of a footer's flat list. Returns the root and the leaves in order.
func buildSchema(elems []format.SchemaElement) (root *node, leaves []*node, err error) {
	next := 0
	var build func(parent *node, depth int) (*node, error)
	build = func(parent *node, depth int) (*node, error) {
		if depth > 64 {
			return nil, fail(ErrCorrupt, "its schema is nested more than 64 levels deep")
		}
		if next >= len(elems) {
			return nil, fail(ErrCorrupt, "its schema ends too early")
		}
		n := &node{elem: &elems[next], leaf: -1}
		next++
		if parent != nil {
			n.maxRep, n.maxDef = parent.maxRep, parent.maxDef
			switch n.repetition() {
			case format.Optional:
				n.maxDef++
			case format.Repeated:
				n.maxRep++
				n.maxDef++
			}
		}
		if n.elem.Type.Valid && parent != nil {
			n.leaf = len(leaves)
			leaves = append(leaves, n)
			return n, nil
		}
		for range n.elem.NumChildren.V {
			child, err := build(n, depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
		return n, nil
	}
	if root, err = build(nil, 0); err != nil {
		return nil, nil, err
	}
	if next != len(elems) {
		return nil, nil, fail(ErrCorrupt, "its schema has %d elements too many", len(elems)-next)
	}
	return root, leaves, nil
}

// find returns the nodes that name may mean: top-level columns of exactly that name, or paths a.b of groups. Parquet lets several have one name.
func (n *node) find(name string) (found []*node) {
	for _, c := range n.children {
		if c.elem.Name == name {
			found = append(found, c)
		}
	}
	if found != nil {
		return found
	}
	for _, c := range n.children {
		rest, ok := strings.CutPrefix(name, c.elem.Name+".")
		if ok && c.leaf < 0 && !c.isList() && c.repetition() != format.Repeated {
			found = append(found, c.find(rest)...)
		}
	}
	return found
}

// names lists the columns that find can find, groups by their members.
func (n *node) names() []string {
	var names []string
	for _, c := range n.children {
		if c.leaf >= 0 || c.isList() || c.repetition() == format.Repeated || len(c.children) == 0 {
			names = append(names, c.elem.Name)
			continue
		}
		for _, inner := range c.names() {
			names = append(names, c.elem.Name+"."+inner)
		}
	}
	return names
}

// column is a node seen as a column of scalars or of lists of scalars.
type column struct {
	leaf    *node
	list    bool
	listDef uint8 // definition level from which a list has an element
}

// asColumn reads the shape of n. ok is false for structs, maps, lists of those and lists of lists.
func (n *node) asColumn() (c column, ok bool) {
	switch {
	case n.leaf >= 0 && n.maxRep == 0:
		return column{leaf: n}, true
	case n.leaf >= 0 && n.repetition() == format.Repeated && n.maxRep == 1: // 1 level
		return column{leaf: n, list: true, listDef: n.maxDef}, true
	}
	if !n.isList() || n.maxRep != 0 || len(n.children) != 1 {
		return column{}, false
	}
	rep := n.children[0]
	if rep.repetition() != format.Repeated || rep.maxRep != 1 {
		return column{}, false
	}
	if rep.leaf >= 0 { // 2 levels
		return column{leaf: rep, list: true, listDef: rep.maxDef}, true
	}
	// By the format's rule for old files, a group named "array" or NAME_tuple is itself the element: a struct.
	if len(rep.children) != 1 || rep.elem.Name == "array" || rep.elem.Name == n.elem.Name+"_tuple" {
		return column{}, false
	}
	if el := rep.children[0]; el.leaf >= 0 && el.repetition() != format.Repeated { // 3 levels
		return column{leaf: el, list: true, listDef: rep.maxDef}, true
	}
	return column{}, false
}

// isText reports whether a leaf holds text: strings, and byte arrays without a meaning of their own, as Impala, Spark and
// others wrote strings (what isn't UTF-8 in them is found when rows are checked).
func (n *node) isText() bool {
	if !n.elem.Type.Valid || n.elem.Type.V != format.ByteArray {
		return false
	}
	switch n.elem.LogicalType.Value.(type) {
	case nil, *format.StringType, *format.EnumType, *format.JsonType:
	default:
		return false
	}
	if c := n.elem.ConvertedType; c.Valid {
		return c.V == deprecated.UTF8 || c.V == deprecated.Enum || c.V == deprecated.Json
	}
	return true
}

// isNumber reports whether a leaf holds integers or floats.
func (n *node) isNumber() bool {
	if !n.elem.Type.Valid {
		return false
	}
	switch n.elem.LogicalType.Value.(type) {
	case nil, *format.IntType:
	default:
		return false
	}
	if c := n.elem.ConvertedType; c.Valid && (c.V < deprecated.Uint8 || c.V > deprecated.Int64) {
		return false
	}
	switch n.elem.Type.V {
	case format.Int32, format.Int64, format.Float, format.Double:
		return true
	}
	return false
}

// isNull reports whether a leaf holds nothing but nulls, as Arrow says of a column, or of lists, that have no value: it is one of texts or of numbers.
func (n *node) isNull() bool {
	_, ok := n.elem.LogicalType.Value.(*format.NullType)
	return ok
}

// isPlain reports whether a leaf's values are what they are stored as: of a decimal 1.0 that is 10, and of a date the days since 1970.
func (n *node) isPlain() bool {
	return n.isText() || n.isNumber() || n.isNull() || n.elem.Type.V == format.Boolean
}

// unsigned reports whether an integer leaf is annotated as unsigned.
func (n *node) unsigned() bool {
	if t, ok := n.elem.LogicalType.Value.(*format.IntType); ok {
		return !t.IsSigned
	}
	c := n.elem.ConvertedType
	return c.Valid && c.V >= deprecated.Uint8 && c.V <= deprecated.Uint64
}

// typeName describes a node as a user knows it: "string", "list<int64>", "struct<title, text>".
func (n *node) typeName() string {
	if c, ok := n.asColumn(); ok && c.list {
		return "list<" + c.leaf.scalarName() + ">"
	}
	if n.leaf >= 0 {
		return n.scalarName()
	}
	if n.isList() && len(n.children) == 1 {
		inner := n.children[0]
		if len(inner.children) == 1 && inner.elem.Name != "array" {
			inner = inner.children[0]
		}
		return "list<" + inner.typeName() + ">"
	}
	var fields []string
	for _, c := range n.children {
		fields = append(fields, c.elem.Name)
	}
	return "struct<" + strings.Join(fields, ", ") + ">"
}

func (n *node) scalarName() string {
	if n.isText() {
		return "string"
	}
	if name := n.integerName(); name != "" {
		return name
	}
	if n.elem.LogicalType.Value != nil {
		return strings.ToLower(n.elem.LogicalType.String())
	}
	if name := convertedNames[n.elem.ConvertedType.V]; n.elem.ConvertedType.Valid && name != "" {
		return name
	}
	switch n.elem.Type.V {
	case format.Boolean:
		return "bool"
	case format.Int32:
		return "int32"
	case format.Int64:
		return "int64"
	case format.Int96:
		return "int96"
	case format.Float:
		return "float32"
	case format.Double:
		return "float64"
	case format.ByteArray:
		return "binary"
	case format.FixedLenByteArray:
		return fmt.Sprintf("fixed_len_byte_array(%d)", n.elem.TypeLength.V)
	}
	return fmt.Sprintf("type %d", n.elem.Type.V)
}

// integerName is the name of an integer that says its size or sign, "" for other types. One of 64 bits with a sign is what an int64 of which nothing
// is said is: writers differ in whether they say it.
func (n *node) integerName() string {
	bits, sign := 0, ""
	if t, ok := n.elem.LogicalType.Value.(*format.IntType); ok {
		bits = int(t.BitWidth)
	} else if c := n.elem.ConvertedType; n.elem.LogicalType.Value == nil && c.Valid && c.V >= deprecated.Uint8 && c.V <= deprecated.Int64 {
		bits = 8 << ((c.V - deprecated.Uint8) % 4)
	} else {
		return ""
	}
	if n.unsigned() {
		sign = "u"
	}
	return fmt.Sprint(sign, "int", bits)
}

var convertedNames = map[deprecated.ConvertedType]string{
	deprecated.Decimal: "decimal", deprecated.Date: "date", deprecated.TimeMillis: "time", deprecated.TimeMicros: "time",
	deprecated.TimestampMillis: "timestamp", deprecated.TimestampMicros: "timestamp", deprecated.Bson: "bson",
	deprecated.Interval: "interval",
}

// width returns the bytes of a fixed-width value, 0 for byte arrays and booleans.
func (n *node) width() int {
	switch n.elem.Type.V {
	case format.Int32, format.Float:
		return 4
	case format.Int64, format.Double:
		return 8
	case format.Int96:
		return 12
	case format.FixedLenByteArray:
		return int(n.elem.TypeLength.V)
	}
	return 0
}
