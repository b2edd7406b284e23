package idempotency_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

var (
	bareKey   = regexp.MustCompile(`^[!#-+\-.-:<-\[\]-~]{1,255}$`)
	quotedKey = regexp.MustCompile(`^"(?:[!#-\[\]-~]|\\["\\])+"$`)
	escapes   = regexp.MustCompile(`\\(["\\])`)
)

// keyByForm returns the key in a line of the header in another way than the package does: by the form in RFC 9651.
func keyByForm(line string) (id string, ok bool) {
	if bareKey.MatchString(line) {
		return line, true
	}
	if quotedKey.MatchString(line) {
		id = escapes.ReplaceAllString(line[1:len(line)-1], "$1")
	}
	if id == "" || len(id) > 255 {
		return "", false
	}
	return id, true
}

// FuzzKeyHeader looks for a line that is taken for another key than it has, or refused although it has one, or accepted
// although it has none. Two lines have no key.
func FuzzKeyHeader(f *testing.F) {
	for _, seed := range []string{
		"abc", `"abc"`, `"a\"b\\c"`, `"a`, "a,b", `"a";b=1`, "caf\xe9", "", `""`, `"\\`, " a", "a\x00", "\x7f",
		strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat(`\\`, 255) + `"`, `"` + strings.Repeat("k", 256) + `"`,
	} {
		f.Add(seed, "abc")
		f.Add("abc", seed)
	}
	const name, alias = "Idempotency-Key", "X-Idempotency-Key"
	f.Fuzz(func(t *testing.T, line, other string) {
		want, valid := keyByForm(line)
		id, err := idempotency.FindKey(http.Header{name: {line}}, name, alias)
		require.Equal(t, valid, err == nil, "%q", line)
		require.Equal(t, want, id, "%q", line)
		if err != nil {
			require.ErrorIs(t, err, idempotency.ErrKeyInvalid)
		}
		_, err = idempotency.FindKey(http.Header{name: {line, other}}, name)
		require.ErrorIs(t, err, idempotency.ErrKeyInvalid, "%q and %q", line, other)
		same, alsoValid := keyByForm(other)
		_, err = idempotency.FindKey(http.Header{name: {line}, alias: {other}}, name, alias)
		require.Equal(t, valid && alsoValid && want == same, err == nil, "%q beside %q", line, other)
		if !valid {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(id) + `"`
		again, err := idempotency.FindKey(http.Header{name: {quoted}}, name)
		require.NoError(t, err, "%q", quoted)
		require.Equal(t, id, again)
	})
}

// carve cuts text into three parts.
func carve(text string, first, second uint16) [3]string {
	i, j := int(first)%(len(text)+1), int(second)%(len(text)+1)
	return [3]string{text[:min(i, j)], text[min(i, j):max(i, j)], text[max(i, j):]}
}

// FuzzDigest looks for two keys with one digest. Keys that are nearly the same are the likeliest: those whose parts are
// cut out of one text at other places, and those of which one byte differs. Likewise for the parts that stores are given
// of a key, which have a limited length, and for the names that Redis has.
func FuzzDigest(f *testing.F) {
	long := strings.Repeat("-", 250) + strings.Repeat("é", 20)
	for _, text := range []string{"", "alice POST /payments key", "aaaa", "\x00\x00\x00\x00\x00\x00\x00\x01a", long, long + long} {
		f.Add(text, uint16(5), uint16(20), uint16(5), uint16(21), uint16(3), byte(0))
		f.Add(text, uint16(0), uint16(257), uint16(0), uint16(257), uint16(256), byte(1))
		f.Add(text, uint16(0), uint16(2), uint16(0), uint16(2), uint16(0), byte(32))
	}
	f.Fuzz(func(t *testing.T, text string, i, j, k, l, at uint16, flip byte) {
		other := []byte(text)
		if len(other) > 0 {
			other[int(at)%len(other)] ^= flip
		}
		a, b := carve(text, i, j), carve(string(other), k, l)
		x, y := idempotency.Key{User: a[0], Endpoint: a[1], ID: a[2]}, idempotency.Key{User: b[0], Endpoint: b[1], ID: b[2]}
		require.Equal(t, a == b, x.Digest() == y.Digest(), "%q, %q", a, b)
		require.Equal(t, a == b, x.Bounded() == y.Bounded(), "%q, %q", a, b)
		require.Equal(t, a == b, x.Bounded().Digest() == y.Bounded().Digest(), "%q, %q", a, b)
		bounded := x.Bounded()
		for i, part := range []string{bounded.User, bounded.Endpoint, bounded.ID} {
			if len(a[i]) <= 255 {
				require.Equal(t, a[i], part)
				continue
			}
			require.Len(t, part, 257)
			require.True(t, utf8.ValidString(part) || !utf8.ValidString(a[i]), "%q: %q", a[i], part)
		}
	})
}
