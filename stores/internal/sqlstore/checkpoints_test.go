package sqlstore

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// What is stored is read as it was written, and whatever else may be stored is read, or refused as a whole.
func FuzzCheckpoints(f *testing.F) {
	f.Add([]byte{}, "charge", []byte("1"))
	f.Add(appendEntry(nil, "charge", []byte("1")), "charge", []byte("2"))
	f.Add(appendEntry(appendEntry(nil, "charge", nil), "ship", make([]byte, 200)), "mail", []byte{})
	f.Add([]byte{1, 'a', 5}, "a", []byte{0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, "a", []byte{0})
	f.Fuzz(func(t *testing.T, stored []byte, name string, data []byte) {
		before, err := decodeEntries(stored)
		if err != nil {
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
			return
		}
		first, found := before[name]
		require.Equal(t, found, hasEntry(stored, name))
		if !found {
			first = data
		}
		after, err := decodeEntries(appendEntry(stored, name, data))
		require.NoError(t, err)
		require.Equal(t, string(first), string(after[name]))
		delete(before, name)
		delete(after, name)
		require.Equal(t, before, after)
	})
}
