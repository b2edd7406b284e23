package idempotency_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

func FuzzFingerprintJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.50,"é"],"a":null}`, `9007199254740993`, `{"a":1,"a":2}`, `-0`, `1e400`, `"\ud800"`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		fp, err := content{"", js, body}.fingerprint(idempotency.FingerprintJSON)
		if !json.Valid([]byte(body)) {
			require.Error(t, err)
			return
		}
		if err != nil {
			return // well-formed, but with a name twice or not UTF-8
		}
		var compact, indented bytes.Buffer
		require.NoError(t, json.Compact(&compact, []byte(body)))
		require.NoError(t, json.Indent(&indented, []byte(body), "\t", "  "))
		for _, same := range []string{compact.String(), indented.String()} {
			again, err := content{"", js, same}.fingerprint(idempotency.FingerprintJSON)
			require.NoError(t, err)
			require.Equal(t, fp, again, "%q, %q", body, same)
		}
	})
}
