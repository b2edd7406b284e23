package mysqlstore_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// Each session replays what any other session has stored, whatever their character sets are. The tests cover names
// that a character set does not have, and answers of any bytes.
func TestSessionsOfOtherCharacterSets(t *testing.T) {
	t.Parallel()
	sessions := [][]string{
		{"charset=utf8mb4"}, {"charset=utf8"}, {"charset=latin1"}, {"charset=gbk"},
		{"charset=utf8mb4", "character_set_connection=latin1", "character_set_results=ascii"},
	}
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), openPool(t, sharedServer(t).DSN()), opts))
	stores := make(map[string]idempotency.Store)
	for _, settings := range sessions {
		db := openPool(t, sharedServer(t).DSN(), settings...)
		stores[fmt.Sprint(settings)] = mysqlstore.New(db, opts)
	}
	bytesOfAnyKind := make([]byte, 1<<15)
	for i := range bytesOfAnyKind {
		bytesOfAnyKind[i] = byte(i * i >> 3)
	}
	for name, writer := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, text := range []string{"a", "ä", "😀", "中", `\`, "\xff"} {
				key := idempotency.Key{User: text, Endpoint: text, ID: name + text}
				for _, size := range []int{100, len(bytesOfAnyKind)} {
					key.ID += "."
					resp := idempotency.Response{Status: 201, Body: bytes.Clone(bytesOfAnyKind[:size])}
					_, claim, err := writer.Begin(t.Context(), key, request)
					require.NoError(t, err, text)
					require.NotNil(t, claim, text)
					require.NoError(t, claim.Complete(t.Context(), resp, time.Hour), text)
					for by, reader := range stores {
						record, _, err := reader.Begin(t.Context(), key, request)
						require.NoError(t, err, "%q read by %s", text, by)
						require.Equal(t, &resp, record.Response, "%q read by %s", text, by)
					}
				}
			}
		})
	}
}
