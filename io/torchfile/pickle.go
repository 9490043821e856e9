package torchfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"regexp"

	"contraflow/io/safetensors"
)

// Values of a pickle are Go's nil, bool, int64, float64 and string, tuple, *sequence, *dictionary, global, storage and tensor.
type (
	tuple      []any
	sequence   struct{}
	dictionary struct{ keys, values []any }
	global     string // a name that is known, as "module.name"
	storage    struct {
		dtype    safetensors.DType
		key      string
		elements int64
	}
	tensor struct {
		storage storage
		offset  int64
		shape   []int
		stride  []int64
	}
	mark struct{}
)

var storages = map[global]safetensors.DType{
	"torch.FloatStorage": safetensors.F32, "torch.HalfStorage": safetensors.F16, "torch.BFloat16Storage": safetensors.BF16, "torch.DoubleStorage": safetensors.F64,
	"torch.LongStorage": safetensors.I64, "torch.IntStorage": safetensors.I32, "torch.ShortStorage": safetensors.I16, "torch.CharStorage": safetensors.I8,
	"torch.ByteStorage": safetensors.U8, "torch.BoolStorage": safetensors.Bool, // of positions and masks that models keep
}

const (
	orderedDict     global = "collections.OrderedDict"
	rebuildTensor   global = "torch._utils._rebuild_tensor_v2"
	rebuildParam    global = "torch._utils._rebuild_parameter"
	maxDims                = 8
	maxStack               = 1 << 16
	maxInstructions        = 1 << 20
)

// otherTensors are the names of what rebuilds tensors that no storage of those types holds as they are: of other types, sparse, quantized, of subclasses.
var otherTensors = regexp.MustCompile(`^torch\.(_utils\._rebuild_\w+|_tensor\._rebuild_from_type_v2|\w+Storage)$`)

func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case string:
		return fmt.Sprintf("the string %.40q", v)
	case tuple:
		return "a tuple"
	case *sequence:
		return "a list"
	case *dictionary:
		return "a dictionary"
	case tensor:
		return "a tensor"
	case global:
		return string(v)
	}
	return fmt.Sprintf("%v", v)
}

// machine is the state of a pickle's interpreter.
type machine struct {
	in    *bytes.Reader
	stack []any
	memo  map[uint32]any
}

// run interprets a pickle.
func run(data []byte) (v any, err error) {
	m := &machine{in: bytes.NewReader(data), memo: map[uint32]any{}}
	for range maxInstructions {
		at := len(data) - m.in.Len()
		op, err := m.in.ReadByte()
		if err != nil {
			return nil, fmt.Errorf("it ends at byte %d without its last instruction", at)
		}
		if op == '.' {
			v, err := m.pop()
			if err != nil || len(m.stack) > 0 {
				return nil, fmt.Errorf("%d values are left at the end, want one", len(m.stack))
			}
			return v, nil
		}
		if err := m.step(op); err != nil {
			return nil, fmt.Errorf("byte %d, instruction %#02x: %w", at, op, err)
		}
		if len(m.stack) > maxStack {
			return nil, fmt.Errorf("byte %d: more than %d values at once", at, maxStack)
		}
	}
	return nil, fmt.Errorf("more than %d instructions", maxInstructions)
}

func (m *machine) push(v any) error {
	m.stack = append(m.stack, v)
	return nil
}

func (m *machine) pop() (any, error) {
	n := len(m.stack) - 1
	if n < 0 {
		return nil, fmt.Errorf("a value is missing")
	}
	v := m.stack[n]
	m.stack = m.stack[:n]
	if _, ok := v.(mark); ok {
		return nil, fmt.Errorf("a value is missing")
	}
	return v, nil
}

// popMark gives what lies above the last mark.
func (m *machine) popMark() ([]any, error) {
	for i := len(m.stack) - 1; i >= 0; i-- {
		if _, ok := m.stack[i].(mark); ok {
			items := append([]any(nil), m.stack[i+1:]...)
			m.stack = m.stack[:i]
			return items, nil
		}
	}
	return nil, fmt.Errorf("a mark is missing")
}

func (m *machine) bytes(n uint64) ([]byte, error) {
	if n > uint64(m.in.Len()) {
		return nil, fmt.Errorf("it wants %d bytes, and %d are left", n, m.in.Len())
	}
	b := make([]byte, n)
	m.in.Read(b)
	return b, nil
}

// number reads n bytes, little-endian.
func (m *machine) number(n uint64) (uint64, error) {
	b, err := m.bytes(n)
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:]), err
}

func (m *machine) text(lengthBytes uint64) (string, error) {
	n, err := m.number(lengthBytes)
	if err != nil {
		return "", err
	}
	b, err := m.bytes(n)
	return string(b), err
}

func (m *machine) line() (string, error) {
	var b []byte
	for {
		c, err := m.in.ReadByte()
		if err != nil {
			return "", fmt.Errorf("a line without an end")
		}
		if c == '\n' {
			return string(b), nil
		}
		b = append(b, c)
	}
}

func (m *machine) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		n, err := m.number(1)
		if err == nil && n > 5 {
			err = fmt.Errorf("protocol %d", n)
		}
		return err
	case 0x95: // FRAME
		_, err := m.number(8)
		return err
	case '(':
		return m.push(mark{})
	case 'N':
		return m.push(nil)
	case 0x88, 0x89:
		return m.push(op == 0x88)
	case 'K', 'M', 'J':
		n, err := m.number(map[byte]uint64{'K': 1, 'M': 2, 'J': 4}[op])
		if err != nil {
			return err
		}
		if op == 'J' {
			return m.push(int64(int32(uint32(n))))
		}
		return m.push(int64(n))
	case 0x8a: // LONG1
		return m.long()
	case 'G':
		b, err := m.bytes(8)
		if err != nil {
			return err
		}
		return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 'X', 0x8c: // BINUNICODE, SHORT_BINUNICODE
		s, err := m.text(map[byte]uint64{'X': 4, 0x8c: 1}[op])
		if err != nil {
			return err
		}
		return m.push(s)
	case ')':
		return m.push(tuple{})
	case '}':
		return m.push(&dictionary{})
	case ']':
		return m.push(&sequence{})
	case 0x85, 0x86, 0x87: // TUPLE1 to TUPLE3
		n := int(op - 0x84)
		t := make(tuple, n)
		for i := n - 1; i >= 0; i-- {
			var err error
			if t[i], err = m.pop(); err != nil {
				return err
			}
		}
		return m.push(t)
	case 't':
		items, err := m.popMark()
		if err != nil {
			return err
		}
		return m.push(tuple(items))
	case 'a', 'e', 's', 'u':
		return m.fill(op)
	case 'q', 'r', 0x94, 'h', 'j':
		return m.remember(op)
	case 'c', 0x93: // GLOBAL, STACK_GLOBAL
		return m.name(op)
	case 'R':
		return m.reduce()
	case 'b':
		return m.build()
	case 'Q':
		return m.persistent()
	}
	return fmt.Errorf("%w: dictionaries of tensors don't need that instruction", ErrUnsafe)
}

func (m *machine) long() error {
	n, err := m.number(1)
	if err != nil {
		return err
	}
	if n > 8 {
		return fmt.Errorf("a number of %d bytes", n)
	}
	v, err := m.number(n)
	if err != nil {
		return err
	}
	if shift := 64 - 8*n; n > 0 {
		return m.push(int64(v<<shift) >> shift)
	}
	return m.push(int64(0))
}

// fill adds to a list or a dictionary.
func (m *machine) fill(op byte) (err error) {
	var items []any
	if op == 'e' || op == 'u' {
		items, err = m.popMark()
	} else {
		items = make([]any, map[byte]int{'a': 1, 's': 2}[op])
		for i := len(items) - 1; i >= 0 && err == nil; i-- {
			items[i], err = m.pop()
		}
	}
	if err != nil {
		return err
	}
	if len(m.stack) == 0 {
		return fmt.Errorf("a value is missing")
	}
	switch to := m.stack[len(m.stack)-1].(type) {
	case *sequence:
		if op == 'a' || op == 'e' { // no list is asked for what it holds
			return nil
		}
	case *dictionary:
		if (op == 's' || op == 'u') && len(items)%2 == 0 {
			for i := 0; i < len(items); i += 2 {
				to.keys, to.values = append(to.keys, items[i]), append(to.values, items[i+1])
			}
			return nil
		}
	}
	return fmt.Errorf("%d values can't be added to %s", len(items), describe(m.stack[len(m.stack)-1]))
}

// remember keeps a value, or gives one that was kept.
func (m *machine) remember(op byte) error {
	at, err := uint64(len(m.memo)), error(nil)
	if op != 0x94 {
		at, err = m.number(map[byte]uint64{'q': 1, 'h': 1, 'r': 4, 'j': 4}[op])
	}
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' {
		v, ok := m.memo[uint32(at)]
		if !ok {
			return fmt.Errorf("nothing was kept as number %d", at)
		}
		return m.push(v)
	}
	if len(m.stack) == 0 {
		return fmt.Errorf("a value is missing")
	}
	m.memo[uint32(at)] = m.stack[len(m.stack)-1]
	return nil
}

// name looks a name up among those that are known.
func (m *machine) name(op byte) error {
	var parts [2]string
	for i := range parts {
		var err error
		var v any
		if op == 'c' {
			parts[i], err = m.line()
		} else if v, err = m.pop(); err == nil {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("a name that is %s", describe(v))
			}
			parts[1-i] = s
		}
		if err != nil {
			return err
		}
	}
	g := global(parts[0] + "." + parts[1])
	if _, ok := storages[g]; !ok && g != orderedDict && g != rebuildTensor && g != rebuildParam {
		if otherTensors.MatchString(string(g)) {
			return fmt.Errorf("a tensor that %.80s makes, of a type or a kind that is not supported", string(g))
		}
		return fmt.Errorf("%w: it calls %.80q, which no dictionary of tensors needs", ErrUnsafe, string(g))
	}
	return m.push(g)
}

// reduce is what a call of a known name would make.
func (m *machine) reduce() error {
	args, err := m.pop()
	if err != nil {
		return err
	}
	f, err := m.pop()
	if err != nil {
		return err
	}
	g, _ := f.(global)
	list, ok := args.(tuple)
	switch {
	case !ok:
	case g == orderedDict && len(list) == 0:
		return m.push(&dictionary{})
	case g == rebuildTensor && (len(list) == 6 || len(list) == 7):
		if len(list) == 7 { // such as {"neg": True}: its elements are not those of the storage
			if d, ok := list[6].(*dictionary); !ok || len(d.keys) > 0 {
				return fmt.Errorf("a tensor that is not what its storage holds, such as a negative view: save what its resolve_neg() is")
			}
		}
		t, err := newTensor(list)
		if err != nil {
			return err
		}
		return m.push(t)
	case g == rebuildParam && len(list) == 3:
		if t, ok := list[0].(tensor); ok {
			return m.push(t)
		}
	}
	return fmt.Errorf("%w: a call of %s with %s", ErrUnsafe, describe(f), describe(args))
}

func newTensor(args tuple) (t tensor, err error) {
	var ok [4]bool
	var shape, stride tuple
	t.storage, ok[0] = args[0].(storage)
	t.offset, ok[1] = args[1].(int64)
	shape, ok[2] = args[2].(tuple)
	stride, ok[3] = args[3].(tuple)
	if ok != [4]bool{true, true, true, true} || len(shape) != len(stride) || len(shape) > maxDims {
		return t, fmt.Errorf("a tensor of %s, %s, %s and %s", describe(args[0]), describe(args[1]), describe(args[2]), describe(args[3]))
	}
	for i := range shape {
		n, ok1 := shape[i].(int64)
		s, ok2 := stride[i].(int64)
		if !ok1 || !ok2 || n < 0 || n > math.MaxInt32 {
			return t, fmt.Errorf("a tensor of %s along one dimension", describe(shape[i]))
		}
		t.shape, t.stride = append(t.shape, int(n)), append(t.stride, s)
	}
	return t, nil
}

// build sets a dictionary's attributes: a module's _metadata, which says nothing of tensors.
func (m *machine) build() error {
	if _, err := m.pop(); err != nil {
		return err
	}
	if len(m.stack) > 0 {
		if _, ok := m.stack[len(m.stack)-1].(*dictionary); ok {
			return nil
		}
	}
	return fmt.Errorf("%w: attributes of something that is no dictionary", ErrUnsafe)
}

// persistent is a storage: ("storage", class, key, device, elements).
func (m *machine) persistent() error {
	v, err := m.pop()
	if err != nil {
		return err
	}
	id, ok := v.(tuple)
	if !ok || len(id) != 5 || id[0] != "storage" {
		return fmt.Errorf("%s is no storage", describe(v))
	}
	class, _ := id[1].(global)
	dtype, known := storages[class]
	key, isKey := id[2].(string)
	n, isNumber := id[4].(int64)
	if !known || !isKey || !isNumber {
		return fmt.Errorf("a storage of %s, %s and %s", describe(id[1]), describe(id[2]), describe(id[4]))
	}
	return m.push(storage{dtype, key, n})
}

// encode is the pickle of a dictionary of tensors, as torch.save writes it: protocol 2, without what remembers values.
func encode(tensors []safetensors.Tensor) ([]byte, error) {
	b := []byte{0x80, 2}
	name := func(g global) {
		i := bytes.LastIndexByte([]byte(g), '.')
		b = append(b, fmt.Sprintf("c%s\n%s\n", g[:i], g[i+1:])...)
	}
	text := func(s string) {
		b = append(binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(s))), s...)
	}
	number := func(n int) { // LONG1 has no bounds
		b = append(b, 0x8a, 8)
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	empty := func() {
		name(orderedDict)
		b = append(b, ")R"...)
	}
	empty()
	b = append(b, '(')
	for i, t := range tensors {
		class := global("")
		for g, d := range storages {
			if d == t.DType {
				class = g
			}
		}
		if class == "" {
			return nil, fmt.Errorf("tensor %q: type %s is not supported", t.Name, t.DType)
		}
		text(t.Name)
		name(rebuildTensor)
		b = append(b, "(("...)
		text("storage")
		name(class)
		text(fmt.Sprint(i))
		text("cpu")
		number(t.Len())
		b = append(b, "tQ"...)
		number(0)
		for _, strides := range []bool{false, true} {
			b = append(b, '(')
			for k, d := range t.Shape {
				if strides {
					d = 1
					for _, inner := range t.Shape[k+1:] {
						d *= inner
					}
				}
				number(d)
			}
			b = append(b, 't')
		}
		b = append(b, 0x89)
		empty()
		b = append(b, "tR"...)
	}
	return append(b, "u."...), nil
}
