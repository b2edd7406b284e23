package grpcidempotency

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"
)

// MetadataKey is the name of the metadata with the key of a call.
const MetadataKey = "idempotency-key"

// WithKey returns a context whose outgoing metadata has key, in place of any other key. The key is for one operation.
// Store it with the operation before the first call. Then the call can be repeated after a crash.
func WithKey(ctx context.Context, key string) context.Context {
	if strings.ContainsAny(key, needQuotes) {
		key = `"` + escape.Replace(key) + `"`
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = make(metadata.MD, 1)
	}
	md.Set(MetadataKey, key)
	return metadata.NewOutgoingContext(ctx, md)
}

// A key with one of these characters is sent in quotes, as a string of RFC 9651, section 3.3.3.
const needQuotes = `",;\`

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
