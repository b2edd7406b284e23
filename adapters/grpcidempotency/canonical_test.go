package grpcidempotency_test

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idempotency-go/idempotency/adapters/grpcidempotency"
)

// buildSchema returns a file with messages that have fields of all kinds. The schema of an old build lacks every third
// field.
func buildSchema(t testing.TB, syntax string, old bool) protoreflect.FileDescriptor {
	t.Helper()
	text := fmt.Sprintf(`name: "all.proto" package: "test" syntax: %q
		enum_type { name: "Color" value { name: "NONE" number: 0 } value { name: "RED" number: 1 } }
		message_type { name: "All" extension_range { start: 1000 end: 2000 }`, syntax)
	if syntax == "proto3" {
		text = strings.Replace(text, "extension_range { start: 1000 end: 2000 }", "", 1)
	}
	number := 0
	add := func(format string, args ...any) {
		number++
		if !old || number%3 != 0 {
			text += fmt.Sprintf("\nfield { name: \"f%[1]d\" number: %[1]d ", number*7) + fmt.Sprintf(format, args...) + " }"
		}
	}
	for kind := descriptorpb.FieldDescriptorProto_TYPE_DOUBLE; kind <= descriptorpb.FieldDescriptorProto_TYPE_SINT64; kind++ {
		extra := ""
		switch kind {
		case descriptorpb.FieldDescriptorProto_TYPE_GROUP:
			continue
		case descriptorpb.FieldDescriptorProto_TYPE_MESSAGE:
			extra = `type_name: ".test.Leaf"`
		case descriptorpb.FieldDescriptorProto_TYPE_ENUM:
			extra = `type_name: ".test.Color"`
		}
		add("label: LABEL_OPTIONAL type: %s %s", kind, extra)
		add("label: LABEL_REPEATED type: %s %s", kind, extra)
		canBePacked := extra == "" && kind != descriptorpb.FieldDescriptorProto_TYPE_STRING &&
			kind != descriptorpb.FieldDescriptorProto_TYPE_BYTES
		if number%2 == 0 && canBePacked {
			add("label: LABEL_REPEATED type: %s options { packed: false }", kind)
			add("label: LABEL_REPEATED type: %s options { packed: true }", kind)
		}
	}
	if syntax == "proto3" {
		for _, kind := range []string{"INT32", "STRING", "BOOL", "DOUBLE"} {
			add(`label: LABEL_OPTIONAL type: TYPE_%s proto3_optional: true oneof_index: %d`, kind, strings.Count(text, "proto3_optional"))
		}
	}
	text += `
		field { name: "self" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".test.All" }
		field { name: "words" number: 5 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.All.WordsEntry" }
		field { name: "leaves" number: 6 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.All.LeavesEntry" }
		field { name: "flags" number: 8 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.All.FlagsEntry" }
		field { name: "counts" number: 9 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".test.All.CountsEntry" }`
	if syntax == "proto2" {
		const fields = `field { name: "a" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }`
		text += `
			nested_type { name: "One" ` + fields + ` } nested_type { name: "Many" ` + fields + ` }
			field { name: "one" number: 10 label: LABEL_OPTIONAL type: TYPE_GROUP type_name: ".test.All.One" }`
		if !old {
			text += ` field { name: "many" number: 11 label: LABEL_REPEATED type: TYPE_GROUP type_name: ".test.All.Many" }`
		}
	}
	for i := range strings.Count(text, "proto3_optional") {
		text += fmt.Sprintf("\noneof_decl { name: \"_o%d\" }", i)
	}
	entry := func(name, key, value string) {
		text += fmt.Sprintf(`
			nested_type { name: %q options { map_entry: true }
				field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_%s }
				field { name: "value" number: 2 label: LABEL_OPTIONAL %s } }`, name, key, value)
	}
	entry("WordsEntry", "STRING", "type: TYPE_STRING")
	entry("LeavesEntry", "SINT32", `type: TYPE_MESSAGE type_name: ".test.Leaf"`)
	entry("FlagsEntry", "BOOL", "type: TYPE_FLOAT")
	entry("CountsEntry", "FIXED64", `type: TYPE_ENUM type_name: ".test.Color"`)
	text += `}
		message_type { name: "Leaf"
			field { name: "a" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
			field { name: "b" number: 2 label: LABEL_REPEATED type: TYPE_INT32 } }`
	if syntax == "proto2" {
		text += `
		extension { name: "note" number: 1000 label: LABEL_OPTIONAL type: TYPE_STRING extendee: ".test.All" }
		extension { name: "marks" number: 1500 label: LABEL_REPEATED type: TYPE_SINT32 extendee: ".test.All" }`
	}
	var file descriptorpb.FileDescriptorProto
	require.NoError(t, prototext.Unmarshal([]byte(text), &file))
	described, err := protodesc.NewFile(&file, nil)
	require.NoError(t, err)
	return described
}

// setRandomFields sets about a third of the fields of m at random. In flat messages, a map has at most one entry,
// because encoders do not sort the entries of a map.
func setRandomFields(r *rand.Rand, m protoreflect.Message, depth int, flat bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if r.IntN(3) == 0 {
			setRandomField(r, m, fields.Get(i), depth, flat)
		}
	}
}

// setRandomField sets the field fd of m to a random value.
func setRandomField(r *rand.Rand, m protoreflect.Message, fd protoreflect.FieldDescriptor, depth int, flat bool) {
	value := func(fd protoreflect.FieldDescriptor, empty func() protoreflect.Value) protoreflect.Value {
		if fd.Message() == nil {
			return randomScalar(r, fd.Kind())
		}
		v := empty()
		if depth > 0 {
			setRandomFields(r, v.Message(), depth-1, flat)
		}
		return v
	}
	most := 4
	if flat {
		most = 1
	}
	switch {
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		for range r.IntN(most + 1) {
			entries.Set(randomScalar(r, fd.MapKey().Kind()).MapKey(), value(fd.MapValue(), entries.NewValue))
		}
	case fd.IsList():
		list := m.Mutable(fd).List()
		for range r.IntN(4) {
			list.Append(value(fd, list.NewElement))
		}
	default:
		m.Set(fd, value(fd, func() protoreflect.Value { return m.NewField(fd) }))
	}
}

// randomScalar returns a random value, often an edge of the range of kind.
func randomScalar(r *rand.Rand, kind protoreflect.Kind) protoreflect.Value {
	edges := []uint64{0, 1, 2, 127, 128, math.MaxInt32, 1 << 31, math.MaxUint32, 1 << 63, math.MaxUint64, r.Uint64()}
	n := edges[r.IntN(len(edges))]
	floats := []float64{0, math.Copysign(0, -1), 1, -1.5, math.Inf(1), math.NaN(), math.MaxFloat32, float64(float32(r.NormFloat64()))}
	switch kind {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n%2 == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n % 2)) // other numbers are unknown in a closed enum
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(floats[r.IntN(len(floats))]))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(floats[r.IntN(len(floats))])
	case protoreflect.StringKind:
		return protoreflect.ValueOfString([]string{"", "a", "ü", strings.Repeat("x", 200)}[r.IntN(4)])
	default:
		return protoreflect.ValueOfBytes([]byte([]string{"", "\x00", "\x0a\x00", "\xff"}[r.IntN(4)]))
	}
}

// decodeMessage decodes sent as a build with the schema of file does.
func decodeMessage(t testing.TB, file protoreflect.FileDescriptor, sent []byte) proto.Message {
	t.Helper()
	m := dynamicpb.NewMessage(file.Messages().ByName("All"))
	types := dynamicpb.NewTypes(registerFile(t, file))
	require.NoError(t, proto.UnmarshalOptions{Resolver: types}.Unmarshal(sent, m))
	return m
}

// The canonical form is an encoding of the message, so different messages have different forms. All encodings of a message
// have the same form.
func TestCanonicalIsOneToOne(t *testing.T) {
	t.Parallel()
	for _, syntax := range []string{"proto2", "proto3"} {
		file := buildSchema(t, syntax, false)
		r := rand.New(rand.NewPCG(1, 2))
		for range 150 {
			m := dynamicpb.NewMessage(file.Messages().ByName("All"))
			setRandomFields(r, m, 2, false)
			setExtensions(r, m, file)
			form := grpcidempotency.Canonical(m)
			require.True(t, proto.Equal(m, decodeMessage(t, file, form)))
			for range 3 {
				sent, err := proto.Marshal(m)
				require.NoError(t, err)
				require.Equal(t, form, grpcidempotency.Canonical(decodeMessage(t, file, sent)))
			}
		}
	}
}

// An old build, which does not know all fields of a message, computes the same canonical form as a recent build.
func TestCanonicalSurvivesNewFields(t *testing.T) {
	t.Parallel()
	for _, syntax := range []string{"proto2", "proto3"} {
		recent, old := buildSchema(t, syntax, false), buildSchema(t, syntax, true)
		require.Less(t, old.Messages().ByName("All").Fields().Len(), recent.Messages().ByName("All").Fields().Len())
		r := rand.New(rand.NewPCG(3, 4))
		for range 150 {
			m := dynamicpb.NewMessage(recent.Messages().ByName("All"))
			setRandomFields(r, m, 2, true)
			setExtensions(r, m, recent)
			// Encoders of generated code send fields in the order of their numbers, as Deterministic does.
			sent, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			known := grpcidempotency.Canonical(decodeMessage(t, recent, sent))
			require.Equal(t, known, grpcidempotency.Canonical(decodeMessage(t, old, sent)))
			empty := decodeEmpty(t, sent) // a build that knows none of the fields
			require.Equal(t, known, grpcidempotency.Canonical(empty))
		}
	}
}

// The canonical form does not depend on the order of fields and map entries, nor on whether a list is packed or sent in
// several pieces.
func TestCanonicalOfEncodings(t *testing.T) {
	t.Parallel()
	file := buildSchema(t, "proto3", false)
	fields := file.Messages().ByName("All").Fields()
	var packed protoreflect.FieldDescriptor
	for i := range fields.Len() {
		if fd := fields.Get(i); fd.IsPacked() && fd.Kind() == protoreflect.Int32Kind {
			packed = fd
		}
	}
	require.NotNil(t, packed)
	number := packed.Number()
	inOne := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), []byte{1, 2, 3})
	apart := protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), 1)
	apart = protowire.AppendBytes(protowire.AppendTag(apart, number, protowire.BytesType), []byte{2})
	apart = protowire.AppendVarint(protowire.AppendTag(apart, number, protowire.VarintType), 3)
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 9)
	word := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), []byte("\x0a\x01a\x12\x01b"))
	other := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), []byte("\x12\x01d\x0a\x01c"))

	form := func(parts ...[]byte) []byte {
		var sent []byte
		for _, part := range parts {
			sent = append(sent, part...)
		}
		return grpcidempotency.Canonical(decodeMessage(t, file, sent))
	}
	want := form(unknown, word, other, inOne)
	require.Equal(t, want, form(other, inOne, word, unknown))
	require.Equal(t, want, form(apart, other, unknown, word))
	require.NotEqual(t, want, form(unknown, word, other))
	require.NotEqual(t, want, form(word, other, inOne))
}

// The canonical form of an Any with a known type depends on the content, and not on the encoding of the content.
func TestCanonicalOfAny(t *testing.T) {
	t.Parallel()
	packed := func(content proto.Message) *anypb.Any {
		a, err := anypb.New(content)
		require.NoError(t, err)
		return a
	}
	content, err := structpb.NewStruct(map[string]any{"a": 1, "b": []any{nil, true}, "c": "x", "d": map[string]any{"e": 1, "f": 2}})
	require.NoError(t, err)
	nested := func() proto.Message {
		deep := packed(content)
		for range 15 {
			deep = packed(deep)
		}
		return deep
	}
	want := grpcidempotency.Canonical(nested())
	for range 20 { // each encoding of a map has another order
		require.Equal(t, want, grpcidempotency.Canonical(nested()))
	}
	delete(content.Fields, "a")
	require.NotEqual(t, want, grpcidempotency.Canonical(nested()))

	for name, a := range map[string]*anypb.Any{
		"unknown": {TypeUrl: "type.googleapis.com/test.Gone", Value: []byte("\x10\x01\x08\x01")},
		"damaged": {TypeUrl: "type.googleapis.com/google.protobuf.Struct", Value: []byte("\xff")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var again anypb.Any
			require.NoError(t, proto.Unmarshal(grpcidempotency.Canonical(a), &again))
			require.True(t, proto.Equal(a, &again))
		})
	}
	deep := packed(&amount{Value: 1})
	for range 100 {
		deep = packed(deep)
	}
	require.NotEmpty(t, grpcidempotency.Canonical(deep))
}

// Explicit presence, the sign of zero, and NaN change the canonical form.
func TestCanonicalTellsApart(t *testing.T) {
	t.Parallel()
	double := func(v float64) []byte { return grpcidempotency.Canonical(wrapperspb.Double(v)) }
	require.NotEqual(t, double(0), double(math.Copysign(0, -1)))
	require.Equal(t, double(math.NaN()), double(math.NaN()))
	require.NotEqual(t, double(math.NaN()), double(math.Inf(1)))

	file := buildSchema(t, "proto3", false)
	fields := file.Messages().ByName("All").Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		m := dynamicpb.NewMessage(file.Messages().ByName("All"))
		if fd.IsList() || fd.IsMap() || fd.Message() != nil {
			continue
		}
		m.Set(fd, fd.Default())
		require.Equal(t, fd.HasPresence(), len(grpcidempotency.Canonical(m)) > 0, fd.Name())
	}
	require.Empty(t, grpcidempotency.Canonical((*amount)(nil)))
}

// The canonical form must not change between builds, because fingerprints are compared with fingerprints that an earlier
// build has stored. A change breaks repetitions of calls that are under way during the update of a service.
func TestCanonicalIsStable(t *testing.T) {
	t.Parallel()
	content, err := structpb.NewStruct(map[string]any{
		"amount": 4200, "currency": "EUR", "tags": []any{"a", nil, true}, "z": map[string]any{},
	})
	require.NoError(t, err)
	packed, err := anypb.New(content)
	require.NoError(t, err)
	require.Equal(t, "07bc5545e8ed7ba2cb44d214151e79d9bae54f4a74b77fbb283085d756a6c7ed",
		fmt.Sprintf("%x", sha256.Sum256(grpcidempotency.Canonical(packed))))
}

func FuzzCanonical(f *testing.F) {
	for _, m := range []proto.Message{
		protodesc.ToFileDescriptorProto(anypb.File_google_protobuf_any_proto),
		structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(1)}}),
		&anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.BoolValue", Value: []byte("\x08\x01")},
	} {
		sent, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(sent)
	}
	partial := proto.UnmarshalOptions{AllowPartial: true}
	f.Fuzz(func(t *testing.T, sent []byte) {
		for _, kind := range []proto.Message{
			new(descriptorpb.FileDescriptorProto), new(structpb.Value), new(structpb.Struct), new(emptypb.Empty), new(anypb.Any),
		} {
			m, again := proto.Clone(kind), proto.Clone(kind)
			if partial.Unmarshal(sent, m) != nil {
				continue
			}
			form := grpcidempotency.Canonical(m)
			require.NoError(t, partial.Unmarshal(form, again))
			require.Equal(t, form, grpcidempotency.Canonical(again))
			if _, ok := m.(*anypb.Any); !ok { // the content of an Any may change its order
				require.True(t, proto.Equal(m, again))
			}
		}
	})
}

func BenchmarkCanonical(b *testing.B) {
	content, err := structpb.NewStruct(map[string]any{"amount": 4200, "currency": "EUR", "tags": []any{"a", "b"}})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		grpcidempotency.Canonical(content)
	}
}

// registerFile returns a registry with file.
func registerFile(t testing.TB, file protoreflect.FileDescriptor) *protoregistry.Files {
	t.Helper()
	files := new(protoregistry.Files)
	require.NoError(t, files.RegisterFile(file))
	return files
}

// setExtensions sets about half of the extensions of a schema in proto2.
func setExtensions(r *rand.Rand, m protoreflect.Message, file protoreflect.FileDescriptor) {
	for i := range file.Extensions().Len() {
		if r.IntN(2) == 0 {
			xt := dynamicpb.NewExtensionType(file.Extensions().Get(i))
			setRandomField(r, m, xt.TypeDescriptor(), 0, true)
		}
	}
}

// decodeEmpty decodes sent as a message without fields, so all fields of sent are unknown.
func decodeEmpty(t *testing.T, sent []byte) proto.Message {
	t.Helper()
	m := new(emptypb.Empty)
	require.NoError(t, proto.Unmarshal(sent, m))
	return m
}
