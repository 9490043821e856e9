package dataset

import (
	"testing"

	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

// TestConvertedIntegers: of a file whose writer knows no logical types the converted ones say what an integer's size and sign are, and what is none.
func TestConvertedIntegers(t *testing.T) {
	for c, want := range map[deprecated.ConvertedType]struct {
		name     string
		unsigned bool
	}{
		deprecated.Uint8: {"uint8", true}, deprecated.Uint16: {"uint16", true}, deprecated.Uint32: {"uint32", true}, deprecated.Uint64: {"uint64", true},
		deprecated.Int8: {"int8", false}, deprecated.Int16: {"int16", false}, deprecated.Int32: {"int32", false}, deprecated.Int64: {"int64", false},
		deprecated.Date: {"date", false}, deprecated.Decimal: {"decimal", false}, deprecated.TimestampMicros: {"timestamp", false}, deprecated.TimeMicros: {"time", false},
	} {
		var elem format.SchemaElement
		elem.Type.V, elem.Type.Valid = format.Int64, true
		elem.ConvertedType.V, elem.ConvertedType.Valid = c, true
		n := &node{elem: &elem}
		if integer := c >= deprecated.Uint8 && c <= deprecated.Int64; n.scalarName() != want.name || n.unsigned() != want.unsigned || n.isNumber() != integer {
			t.Errorf("%v: %s, unsigned %v, a number %v", c, n.scalarName(), n.unsigned(), n.isNumber())
		}
	}
}

// TestWidths: decimals that one writer puts into 9 bytes and another into 16 are no column of one table, though both have the same name.
func TestWidths(t *testing.T) {
	decimal := func(width int32) *node {
		return &node{elem: &format.SchemaElement{Type: thrift.New(format.FixedLenByteArray), TypeLength: thrift.New(width), ConvertedType: thrift.New(deprecated.Decimal)}}
	}
	if _, a, b := unlike("d", decimal(9), decimal(16)); a == nil || b == nil {
		t.Error("9 and 16 bytes are taken for the same")
	}
	if _, a, b := unlike("d", decimal(9), decimal(9)); a != nil || b != nil {
		t.Error("9 and 9 bytes are not")
	}
}
