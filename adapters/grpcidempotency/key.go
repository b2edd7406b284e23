package grpcidempotency

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

// MetadataKey is the name of the metadata field with the key of a call.
const MetadataKey = "idempotency-key"

// WithKey returns a context with key in the outgoing metadata, in place of any earlier key. Use a new key for each operation. To
// repeat the call after a crash, store the key with the operation before the first call.
func WithKey(ctx context.Context, key string) context.Context {
	if strings.ContainsAny(key, charsToQuote) {
		key = `"` + quoteEscaper.Replace(key) + `"`
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Set(MetadataKey, key)
	return metadata.NewOutgoingContext(ctx, md)
}

// charsToQuote are the characters that require quotes around a key, as a string of RFC 9651, section 3.3.3.
const charsToQuote = `",;\`

var quoteEscaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
