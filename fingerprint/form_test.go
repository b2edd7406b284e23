package fingerprint_test

import (
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

const urlEncoded = "application/x-www-form-urlencoded"

func TestSelectionsOfForms(t *testing.T) {
	t.Parallel()
	only, less := fingerprint.Must(fingerprint.FormOnly("a", "b")), fingerprint.Must(fingerprint.FormWithout("t"))
	for _, row := range []struct {
		name string
		f    idempotency.FingerprintFunc
		a, b string
		same bool
	}{
		{"elsewhere", only, "a=1&c=2", "c=3&a=1", true},
		{"selected", only, "a=1", "a=2", false},
		{"encoded otherwise", only, "a=x+y", "%61=%78%20y", true},
		{"missing and empty", only, "b=1", "a=&b=1", false},
		{"no equals sign", only, "a&b=1", "a=&b=1", true},
		{"twice", only, "a=1", "a=1&a=1", false},
		{"order", only, "a=1&a=2", "a=2&a=1", false},
		{"order of names", only, "a=1&b=2", "b=2&a=1", true},
		{"moved to another name", only, "a=1", "b=1", false},
		{"moved from value to value", only, "a=1&a=23", "a=12&a=3", false},

		{"left out", less, "a=1&t=1", "t=2&t=3&a=1", true},
		{"left out and missing", less, "a=1&t=1", "a=1", true},
		{"kept", less, "a=1&t=1", "a=2&t=1", false},
		{"added", less, "a=1", "a=1&b=", false},
	} {
		a, err := content{"", urlEncoded, row.a}.fingerprint(row.f)
		require.NoError(t, err, row.name)
		b, err := content{"", urlEncoded + "; charset=utf-8", row.b}.fingerprint(row.f)
		require.NoError(t, err, row.name)
		require.Equal(t, row.same, a == b, row.name)
	}
}

// FuzzSelectionsOfForms compares two forms, cut out of one text at other places.
func FuzzSelectionsOfForms(f *testing.F) {
	f.Add("a=1&b=2&a=3", uint16(3), uint16(8), uint16(4), uint16(8))
	f.Add("a=%00%00%00%00%00%00%00%01a&&b=&c", uint16(0), uint16(30), uint16(2), uint16(31))
	f.Fuzz(func(t *testing.T, text string, i, j, k, l uint16) {
		x, y := carve(text, i, j), carve(text, k, l)
		a, b := x[0]+"&a="+x[1]+"&b="+x[2], y[0]+"&a="+y[1]+"&b="+y[2]
		p, err := url.ParseQuery(a)
		q, fault := url.ParseQuery(b)
		if err != nil || fault != nil {
			return
		}
		if otherSpelling(p, "a", "b") || otherSpelling(q, "a", "b") {
			return
		}
		pick := func(form url.Values) [2][]string { return [2][]string{form["a"], form["b"]} }
		only, less := fingerprint.Must(fingerprint.FormOnly("a", "b")), fingerprint.Must(fingerprint.FormWithout("a"))
		require.Equal(t, reflect.DeepEqual(pick(p), pick(q)), sameForm(t, only, a, b), "only: %q, %q", a, b)
		p.Del("a")
		q.Del("a")
		require.Equal(t, reflect.DeepEqual(p, q), sameForm(t, less, a, b), "without: %q, %q", a, b)
	})
}

// otherSpelling reports whether a form has one of the names with other letters, upper or lower case.
func otherSpelling(form url.Values, names ...string) bool {
	for name := range form {
		isOther := func(selected string) bool { return name != selected && strings.EqualFold(name, selected) }
		if slices.ContainsFunc(names, isOther) {
			return true
		}
	}
	return false
}

func sameForm(t *testing.T, f idempotency.FingerprintFunc, a, b string) bool {
	t.Helper()
	x, err := content{"", urlEncoded, a}.fingerprint(f)
	require.NoError(t, err, a)
	y, err := content{"", urlEncoded, b}.fingerprint(f)
	require.NoError(t, err, b)
	return x == y
}
