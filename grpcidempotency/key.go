package grpcidempotency

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/metadata"
)

// MetadataKey is the name of the metadata with the key of a call.
const MetadataKey = "idempotency-key"

// WithKey returns a context whose outgoing metadata has key in place of any other. The key is for one operation. Store it
// with the operation before the first call; then the call can be repeated after a crash.
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

// Characters of which a key must be sent in quotes, as a string of RFC 9651, section 3.3.3.
const needQuotes = `",;\`

var (
	escape        = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	unescape      = strings.NewReplacer(`\\`, `\`, `\"`, `"`)
	removeEscapes = strings.NewReplacer(`\\`, "", `\"`, "")
)

const longestKey = 255

// parseKey returns the key in the metadata, by the rules that the header Idempotency-Key of HTTP has: it is bare or a
// string of RFC 9651, and has 1 to 255 visible ASCII characters.
func parseKey(values []string) (string, error) {
	if len(values) != 1 {
		return "", fmt.Errorf("%s was sent %d times", MetadataKey, len(values))
	}
	id, quoted := values[0], strings.HasPrefix(values[0], `"`)
	if quoted {
		content, closed := strings.CutSuffix(id[1:], `"`)
		if !closed || strings.ContainsAny(removeEscapes.Replace(content), `"\`) {
			return "", errors.New("a key that begins with a double quote must be a well-formed RFC 9651 string")
		}
		id = unescape.Replace(content)
	}
	switch {
	case id == "":
		return "", errors.New("the key is empty")
	case len(id) > longestKey:
		return "", fmt.Errorf("the key is longer than %d characters", longestKey)
	case strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7E }):
		return "", errors.New("a key must not contain spaces, control characters or characters outside of ASCII")
	case !quoted && strings.ContainsAny(id, needQuotes):
		return "", errors.New("a key with a comma, semicolon, backslash or double quote must be sent in quotes")
	}
	return id, nil
}
