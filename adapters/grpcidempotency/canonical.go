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

// Canonical returns the canonical encoding of m. Equal messages have the same encoding, and messages that differ have
// different ones, whichever build of the service has decoded them. It is the default of Options.Fingerprint.
//
// [proto.Marshal] does not promise that, not even with Deterministic. Canonical is in the format of protobuf, too:
//
//   - Fields are sorted by number, known and unknown ones together. So a field that was added to the schema has the same
//     form in the build that knows it and in the build before. Repeated values keep their order.
//   - The entries of a map are sorted by key, and have both key and value.
//   - A repeated field is packed if its descriptor says so, however it was sent.
//   - A [anypb.Any] whose type is registered has the canonical encoding of its message, up to 16 levels deep.
//   - Floating-point numbers are compared by their bits: 0 and -0 differ, and a NaN equals itself.
//
// A field that a build does not know stands as it was sent. It may be a message that only the newer build knows. For
// such a field the two builds agree if its own fields were sent in the order of their numbers, and if it has no map of
// two or more entries. Encoders keep that order, except that some do not for a oneof.
func Canonical(m proto.Message) []byte {
	var w reverseWriter
	w.message(m.ProtoReflect(), mostEmbedded)
	return w.written()
}

// mostEmbedded bounds how often content of an Any is decoded again, which takes time for each level.
const mostEmbedded = 16

// reverseWriter writes an encoding from its end to its beginning. The length of a message stands before its content and
// is known after it. So nothing is moved or measured twice, however deep messages are nested.
type reverseWriter struct {
	buffer []byte
	start  int     // of what is written in buffer
	fields []field // known ones of the messages that are being written, one after the other
}

// field is a populated field that the schema knows.
type field struct {
	fd    protoreflect.FieldDescriptor
	value protoreflect.Value
}

// unknownField is a field that the schema does not know. A message may have a million of them.
type unknownField struct {
	number     protowire.Number
	start, end int32 // of the field with its tag; no message has 2 GiB
}

func (w *reverseWriter) written() []byte { return w.buffer[w.start:] }

func (w *reverseWriter) size() int { return len(w.buffer) - w.start }

// room returns the n bytes before those that are written, to be filled.
func (w *reverseWriter) room(n int) []byte {
	if n > w.start {
		larger := make([]byte, max(256, 2*len(w.buffer)+n))
		start := len(larger) - w.size()
		copy(larger[start:], w.written())
		w.buffer, w.start = larger, start
	}
	w.start -= n
	return w.buffer[w.start : w.start+n]
}

func (w *reverseWriter) raw(b []byte)  { copy(w.room(len(b)), b) }
func (w *reverseWriter) text(s string) { copy(w.room(len(s)), s) }
func (w *reverseWriter) varint(v uint64) {
	protowire.AppendVarint(w.room(protowire.SizeVarint(v))[:0], v)
}
func (w *reverseWriter) fixed32(v uint32) {
	protowire.AppendFixed32(w.room(protowire.SizeFixed32())[:0], v)
}
func (w *reverseWriter) fixed64(v uint64) {
	protowire.AppendFixed64(w.room(protowire.SizeFixed64())[:0], v)
}
func (w *reverseWriter) tag(number protowire.Number, kind protowire.Type) {
	w.varint(protowire.EncodeTag(number, kind))
}

// lengthSince writes how much was written since the size was before.
func (w *reverseWriter) lengthSince(before int) { w.varint(uint64(w.size() - before)) }

// message writes the fields of m. An Any among them is decoded if it is nested less than so many levels deep.
func (w *reverseWriter) message(m protoreflect.Message, levels int) {
	first := len(w.fields)
	m.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		w.fields = append(w.fields, field{fd, value})
		return true
	})
	known, raw := w.fields[first:], m.GetUnknown()
	slices.SortFunc(known, func(a, b field) int { return cmp.Compare(a.fd.Number(), b.fd.Number()) })
	unknown := sortedUnknown(raw)
	for k, u := len(known), len(unknown); k+u > 0; {
		if k == 0 || u > 0 && unknown[u-1].number >= known[k-1].fd.Number() {
			u--
			w.raw(raw[unknown[u].start:unknown[u].end])
			continue
		}
		k--
		if isAnyValue(known[k].fd) {
			w.anyValue(m, known[k], levels)
		} else {
			w.field(known[k].fd, known[k].value, levels)
		}
	}
	w.fields = w.fields[:first]
}

// sortedUnknown returns the unknown fields of a message by number. Those with the same number keep their order.
func sortedUnknown(raw []byte) (fields []unknownField) {
	for start := 0; start < len(raw); {
		number, _, n := protowire.ConsumeField(raw[start:])
		if n < 0 { // never: it was parsed when the message was decoded
			n = len(raw) - start
		}
		fields = append(fields, unknownField{number, int32(start), int32(start + n)})
		start += n
	}
	slices.SortFunc(fields, func(a, b unknownField) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.start, b.start))
	})
	return fields
}

// isAnyValue reports whether fd is the field with the content of an Any.
func isAnyValue(fd protoreflect.FieldDescriptor) bool {
	return fd.FullName() == "google.protobuf.Any.value"
}

// anyValue writes the content of an Any.
func (w *reverseWriter) anyValue(m protoreflect.Message, f field, levels int) {
	content := embedded(m, f.value.Bytes(), levels)
	if content == nil {
		w.field(f.fd, f.value, levels)
		return
	}
	before := w.size()
	w.message(content.ProtoReflect(), levels-1)
	w.lengthSince(before)
	w.tag(f.fd.Number(), protowire.BytesType)
}

// embedded returns the message in an Any; nil if its type is not registered, or it cannot be decoded.
func embedded(m protoreflect.Message, value []byte, levels int) proto.Message {
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

// field writes a field with all its values.
func (w *reverseWriter) field(fd protoreflect.FieldDescriptor, value protoreflect.Value, levels int) {
	switch {
	case fd.IsMap():
		w.entries(fd, value.Map(), levels)
	case fd.IsList() && fd.IsPacked():
		before := w.size()
		for i := value.List().Len() - 1; i >= 0; i-- {
			w.scalar(fd.Kind(), value.List().Get(i))
		}
		w.lengthSince(before)
		w.tag(fd.Number(), protowire.BytesType)
	case fd.IsList():
		for i := value.List().Len() - 1; i >= 0; i-- {
			w.single(fd, value.List().Get(i), levels)
		}
	default:
		w.single(fd, value, levels)
	}
}

// entries writes a map.
func (w *reverseWriter) entries(fd protoreflect.FieldDescriptor, entries protoreflect.Map, levels int) {
	keys := make([]protoreflect.MapKey, 0, entries.Len())
	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.SortFunc(keys, keyOrder(fd.MapKey().Kind()))
	for _, key := range slices.Backward(keys) {
		before := w.size()
		w.single(fd.MapValue(), entries.Get(key), levels)
		w.single(fd.MapKey(), key.Value(), levels)
		w.lengthSince(before)
		w.tag(fd.Number(), protowire.BytesType)
	}
}

// keyOrder returns how to compare the keys of a map.
func keyOrder(key protoreflect.Kind) func(a, b protoreflect.MapKey) int {
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

// single writes one value with its tag.
func (w *reverseWriter) single(fd protoreflect.FieldDescriptor, value protoreflect.Value, levels int) {
	switch fd.Kind() {
	case protoreflect.GroupKind:
		w.tag(fd.Number(), protowire.EndGroupType)
		w.message(value.Message(), levels)
		w.tag(fd.Number(), protowire.StartGroupType)
	case protoreflect.MessageKind:
		before := w.size()
		w.message(value.Message(), levels)
		w.lengthSince(before)
		w.tag(fd.Number(), protowire.BytesType)
	default:
		w.tag(fd.Number(), w.scalar(fd.Kind(), value))
	}
}

// scalar writes a value without a tag, and returns its type on the wire.
func (w *reverseWriter) scalar(kind protoreflect.Kind, value protoreflect.Value) protowire.Type {
	switch kind {
	case protoreflect.BoolKind:
		w.varint(protowire.EncodeBool(value.Bool()))
	case protoreflect.EnumKind:
		w.varint(uint64(value.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		w.varint(uint64(value.Int()))
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		w.varint(protowire.EncodeZigZag(value.Int()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind:
		w.varint(value.Uint())
	case protoreflect.Sfixed32Kind:
		w.fixed32(uint32(value.Int()))
		return protowire.Fixed32Type
	case protoreflect.Fixed32Kind:
		w.fixed32(uint32(value.Uint()))
		return protowire.Fixed32Type
	case protoreflect.FloatKind:
		w.fixed32(math.Float32bits(float32(value.Float())))
		return protowire.Fixed32Type
	case protoreflect.Sfixed64Kind:
		w.fixed64(uint64(value.Int()))
		return protowire.Fixed64Type
	case protoreflect.Fixed64Kind:
		w.fixed64(value.Uint())
		return protowire.Fixed64Type
	case protoreflect.DoubleKind:
		w.fixed64(math.Float64bits(value.Float()))
		return protowire.Fixed64Type
	case protoreflect.StringKind:
		w.text(value.String())
		w.varint(uint64(len(value.String())))
		return protowire.BytesType
	case protoreflect.BytesKind:
		w.raw(value.Bytes())
		w.varint(uint64(len(value.Bytes())))
		return protowire.BytesType
	}
	return protowire.VarintType
}
