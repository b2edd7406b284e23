package idempotency_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

func FuzzKeyHeader(f *testing.F) {
	for _, seed := range []string{"abc", `"abc"`, `"a\"b\\c"`, `"a`, "a,b", `"a";b=1`, "caf\xe9", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		id, ok := keyOf(t, line)
		if !ok {
			return
		}
		if len(id) < 1 || len(id) > 255 || strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
			t.Fatalf("%q was taken for %q", line, id)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
		if line != id && line != quoted {
			t.Fatalf("%q is neither %q nor %q", line, id, quoted)
		}
		if again, ok := keyOf(t, quoted); !ok || again != id {
			t.Fatalf("%q is %q bare, but %q quoted", line, id, again)
		}
	})
}

func FuzzResponse(f *testing.F) {
	const head = "response/1 crc=01234567"
	for _, resp := range []idempotency.Response{
		{}, {Status: 200, Omitted: true}, {Status: 204, Header: "A\n"}, frozen,
	} {
		data, err := resp.MarshalBinary()
		require.NoError(f, err)
		f.Add(string(data[len(head):]))
	}
	f.Fuzz(func(t *testing.T, rest string) {
		var resp, again idempotency.Response
		require.Error(t, resp.UnmarshalBinary([]byte(head+rest+"x")))
		if resp.UnmarshalBinary([]byte(summed(1, rest))) != nil {
			require.Zero(t, resp)
			return
		}
		encoded, err := resp.MarshalBinary()
		require.NoError(t, err)
		require.NoError(t, again.UnmarshalBinary(encoded))
		require.Equal(t, resp, again)
	})
}

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
