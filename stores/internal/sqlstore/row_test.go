package sqlstore_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/settingtest"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

func TestEscapedNames(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "alice 'n\" $1%": "alice 'n\" $1%", "Ren\u00e9": `Ren\xc3\xa9`, `DOMAIN\alice`: `DOMAIN\x5calice`,
		"\x00\xff\x7f": `\x00\xff\x7f`,
	} {
		require.Equal(t, want, sqlstore.EscapeName(name))
		require.Equal(t, name, sqlstore.UnescapeName(want))
	}
	require.Equal(t, `\xZ \x4 \xAB`, sqlstore.UnescapeName(`\xZ \x4 \xAB`), "no escape sequences")
}

// Names are ASCII, tell each key apart, and show it.
func TestNamesOfKeys(t *testing.T) {
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	seen := make(map[sqlstore.Names]bool)
	for _, name := range append([]string{string(bytes)}, settingtest.Names...) {
		key := idempotency.Key{User: name, Endpoint: name + name, ID: "\\" + name}
		names := sqlstore.NamesOf(key)
		require.Equal(t, key, names.Key())
		require.False(t, seen[names], "%q", name)
		text := strings.Join(names[:], "")
		require.False(t, strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }), text)
		seen[names] = true
	}
}
