package benchmark

import (
	"fmt"
	"strings"
	"sync/atomic"
)

const keyLength = 36 // of a UUID

var keySets atomic.Uint64

// NewKeys returns n keys in the form of a UUID, none of which another call returns. They are parts of one string, so
// that they cost the garbage collector nothing.
func NewKeys(n int) []string {
	set := keySets.Add(1)
	var b strings.Builder
	b.Grow(n * keyLength)
	for i := range n {
		fmt.Fprintf(&b, "%08x-%04x-4000-8000-%012x", uint32(i)*2654435761, uint16(set>>16), set&0xffff<<32|uint64(i))
	}
	all := b.String()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = all[i*keyLength : (i+1)*keyLength]
	}
	return keys
}
