package grpcidempotency

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Canonical returns the canonical encoding of m. Equal messages have the same encoding, and different messages have different
// encodings, in every build of the service. Canonical is the default of Options.Fingerprint.
//
// [proto.Marshal] promises less: with Deterministic, the encoding may still differ between two builds. Canonical uses the
// protobuf wire format with these rules:
//
//   - Known and unknown fields are sorted together by number, so a new field of the schema has the same encoding in the build
//     with the field and in the build before. Repeated values keep their order.
//   - The entries of a map are sorted by key, and have both key and value.
//   - A repeated field is packed if its descriptor says so, however the client has sent the field.
//   - An [anypb.Any] with a registered type has the canonical encoding of its message, up to 16 levels deep.
//   - Floating-point numbers are compared by their bits: 0 and -0 differ, and a NaN equals itself.
//
// Unknown fields keep the bytes that the client has sent. If an unknown field is a message that a newer build knows, both builds
// agree only if the client has sent the fields of that message in the order of their numbers, and if the message has no map
// with two or more entries. Encoders keep the order, but some make an exception for a oneof.
func Canonical(m proto.Message) []byte {
	var w reverseEncoder
	w.writeMessage(m.ProtoReflect(), maxAnyDepth)
	return w.bytesWritten()
}

// maxAnyDepth bounds how many levels of Any in Any are decoded, because each level decodes the inner content again.
const maxAnyDepth = 16

// reverseEncoder writes an encoding from the end to the beginning. The length of a message precedes the content, but is known
// only after the content. Writing backward avoids measuring or moving the content once for each level of nesting.
type reverseEncoder struct {
	buffer     []byte
	start      int              // offset of the first written byte in buffer
	fieldStack []populatedField // known fields of the messages being written, outermost first
}

// populatedField is a populated field that the schema knows.
type populatedField struct {
	descriptor protoreflect.FieldDescriptor
	value      protoreflect.Value
}

// unknownField is the place of a field that is missing in the schema. Offsets of 32 bits keep the struct small, because a message
// may have a million unknown fields.
type unknownField struct {
	number                 protowire.Number
	startOffset, endOffset int32 // of the field with its tag; messages are smaller than 2 GiB
}

func (w *reverseEncoder) bytesWritten() []byte { return w.buffer[w.start:] }

func (w *reverseEncoder) byteCount() int { return len(w.buffer) - w.start }

// reserveRoom returns the n bytes before the written bytes for the caller to fill.
func (w *reverseEncoder) reserveRoom(n int) []byte {
	if n > w.start {
		larger := make([]byte, max(256, 2*len(w.buffer)+n))
		start := len(larger) - w.byteCount()
		copy(larger[start:], w.bytesWritten())
		w.buffer, w.start = larger, start
	}
	w.start -= n
	return w.buffer[w.start : w.start+n]
}

func (w *reverseEncoder) writeBytes(b []byte)  { copy(w.reserveRoom(len(b)), b) }
func (w *reverseEncoder) writeString(s string) { copy(w.reserveRoom(len(s)), s) }
func (w *reverseEncoder) writeVarint(v uint64) {
	protowire.AppendVarint(w.reserveRoom(protowire.SizeVarint(v))[:0], v)
}
func (w *reverseEncoder) writeFixed32(v uint32) {
	protowire.AppendFixed32(w.reserveRoom(protowire.SizeFixed32())[:0], v)
}
func (w *reverseEncoder) writeFixed64(v uint64) {
	protowire.AppendFixed64(w.reserveRoom(protowire.SizeFixed64())[:0], v)
}
func (w *reverseEncoder) writeTag(number protowire.Number, kind protowire.Type) {
	w.writeVarint(protowire.EncodeTag(number, kind))
}

// writeLengthSince writes the number of bytes written since byteCount was before.
func (w *reverseEncoder) writeLengthSince(before int) { w.writeVarint(uint64(w.byteCount() - before)) }

// writeMessage writes the fields of m. levels is the number of nested levels of Any to decode.
func (w *reverseEncoder) writeMessage(m protoreflect.Message, levels int) {
	first := len(w.fieldStack)
	m.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		w.fieldStack = append(w.fieldStack, populatedField{fd, value})
		return true
	})
	known, raw := w.fieldStack[first:], m.GetUnknown()
	slices.SortFunc(known, func(a, b populatedField) int { return cmp.Compare(a.descriptor.Number(), b.descriptor.Number()) })
	unknown := sortUnknownFields(raw)
	for k, u := len(known), len(unknown); k+u > 0; {
		if k == 0 || u > 0 && unknown[u-1].number >= known[k-1].descriptor.Number() {
			u--
			w.writeBytes(raw[unknown[u].startOffset:unknown[u].endOffset])
			continue
		}
		k--
		if isAnyValue(known[k].descriptor) {
			w.writeAnyValue(m, known[k], levels)
		} else {
			w.writeField(known[k].descriptor, known[k].value, levels)
		}
	}
	w.fieldStack = w.fieldStack[:first]
}

// sortUnknownFields returns the unknown fields of a message, sorted by number. Fields with the same number keep their order.
func sortUnknownFields(raw []byte) (fields []unknownField) {
	for start := 0; start < len(raw); {
		number, _, n := protowire.ConsumeField(raw[start:])
		if n < 0 { // impossible: raw was parsed when the message was decoded
			n = len(raw) - start
		}
		fields = append(fields, unknownField{number, int32(start), int32(start + n)})
		start += n
	}
	slices.SortFunc(fields, func(a, b unknownField) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.startOffset, b.startOffset))
	})
	return fields
}

// isAnyValue reports whether fd is the field with the content of an Any.
func isAnyValue(fd protoreflect.FieldDescriptor) bool {
	return fd.FullName() == "google.protobuf.Any.value"
}

// writeAnyValue writes the content of an Any.
func (w *reverseEncoder) writeAnyValue(m protoreflect.Message, f populatedField, levels int) {
	content := decodeAny(m, f.value.Bytes(), levels)
	if content == nil {
		w.writeField(f.descriptor, f.value, levels)
		return
	}
	before := w.byteCount()
	w.writeMessage(content.ProtoReflect(), levels-1)
	w.writeLengthSince(before)
	w.writeTag(f.descriptor.Number(), protowire.BytesType)
}

// decodeAny returns the message in an Any, or nil if the type is unregistered, the content malformed, or levels used up.
func decodeAny(m protoreflect.Message, value []byte, levels int) proto.Message {
	if levels == 0 {
		return nil
	}
	name := m.Get(m.Descriptor().Fields().ByName("type_url")).String()
	content, err := anypb.UnmarshalNew(&anypb.Any{TypeUrl: name, Value: value}, proto.UnmarshalOptions{AllowPartial: true})
	if err != nil {
		return nil
	}
	return content
}

// writeField writes a field with all its values.
func (w *reverseEncoder) writeField(fd protoreflect.FieldDescriptor, value protoreflect.Value, levels int) {
	switch {
	case fd.IsMap():
		w.writeMapEntries(fd, value.Map(), levels)
	case fd.IsList() && fd.IsPacked():
		before := w.byteCount()
		for i := value.List().Len() - 1; i >= 0; i-- {
			w.writeScalar(fd.Kind(), value.List().Get(i))
		}
		w.writeLengthSince(before)
		w.writeTag(fd.Number(), protowire.BytesType)
	case fd.IsList():
		for i := value.List().Len() - 1; i >= 0; i-- {
			w.writeSingleField(fd, value.List().Get(i), levels)
		}
	default:
		w.writeSingleField(fd, value, levels)
	}
}

// writeMapEntries writes the entries of a map, sorted by key.
func (w *reverseEncoder) writeMapEntries(fd protoreflect.FieldDescriptor, entries protoreflect.Map, levels int) {
	keys := make([]protoreflect.MapKey, 0, entries.Len())
	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.SortFunc(keys, compareMapKeys(fd.MapKey().Kind()))
	for _, key := range slices.Backward(keys) {
		before := w.byteCount()
		w.writeSingleField(fd.MapValue(), entries.Get(key), levels)
		w.writeSingleField(fd.MapKey(), key.Value(), levels)
		w.writeLengthSince(before)
		w.writeTag(fd.Number(), protowire.BytesType)
	}
}

// compareMapKeys returns a function that compares map keys of a kind.
func compareMapKeys(key protoreflect.Kind) func(a, b protoreflect.MapKey) int {
	switch key {
	case protoreflect.StringKind:
		return func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) }
	case protoreflect.BoolKind:
		return func(a, b protoreflect.MapKey) int {
			return cmp.Compare(protowire.EncodeBool(a.Bool()), protowire.EncodeBool(b.Bool()))
		}
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Uint(), b.Uint()) }
	default:
		return func(a, b protoreflect.MapKey) int { return cmp.Compare(a.Int(), b.Int()) }
	}
}

// writeSingleField writes a value with its tag.
func (w *reverseEncoder) writeSingleField(fd protoreflect.FieldDescriptor, value protoreflect.Value, levels int) {
	switch fd.Kind() {
	case protoreflect.GroupKind:
		w.writeTag(fd.Number(), protowire.EndGroupType)
		w.writeMessage(value.Message(), levels)
		w.writeTag(fd.Number(), protowire.StartGroupType)
	case protoreflect.MessageKind:
		before := w.byteCount()
		w.writeMessage(value.Message(), levels)
		w.writeLengthSince(before)
		w.writeTag(fd.Number(), protowire.BytesType)
	default:
		w.writeTag(fd.Number(), w.writeScalar(fd.Kind(), value))
	}
}

// writeScalar writes a value without a tag, and returns the wire type.
func (w *reverseEncoder) writeScalar(kind protoreflect.Kind, value protoreflect.Value) protowire.Type {
	switch kind {
	case protoreflect.BoolKind:
		w.writeVarint(protowire.EncodeBool(value.Bool()))
	case protoreflect.EnumKind:
		w.writeVarint(uint64(value.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		w.writeVarint(uint64(value.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		w.writeVarint(protowire.EncodeZigZag(value.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		w.writeVarint(value.Uint())
	case protoreflect.Sfixed32Kind:
		w.writeFixed32(uint32(value.Int()))
		return protowire.Fixed32Type
	case protoreflect.Fixed32Kind:
		w.writeFixed32(uint32(value.Uint()))
		return protowire.Fixed32Type
	case protoreflect.FloatKind:
		w.writeFixed32(math.Float32bits(float32(value.Float())))
		return protowire.Fixed32Type
	case protoreflect.Sfixed64Kind:
		w.writeFixed64(uint64(value.Int()))
		return protowire.Fixed64Type
	case protoreflect.Fixed64Kind:
		w.writeFixed64(value.Uint())
		return protowire.Fixed64Type
	case protoreflect.DoubleKind:
		w.writeFixed64(math.Float64bits(value.Float()))
		return protowire.Fixed64Type
	case protoreflect.StringKind:
		w.writeString(value.String())
		w.writeVarint(uint64(len(value.String())))
		return protowire.BytesType
	case protoreflect.BytesKind:
		w.writeBytes(value.Bytes())
		w.writeVarint(uint64(len(value.Bytes())))
		return protowire.BytesType
	}
	return protowire.VarintType
}
