package idempotency_test

import (
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

func TestFieldsAreText(t *testing.T) {
	t.Parallel()
	for want, h := range map[idempotency.Fields]http.Header{
		"":                                {},
		"A: 1\n":                          {"A": {"1"}},
		"A: \n":                           {"A": {""}},
		"A\n":                             {"A": nil},
		"A: 2\nA: 1\nA-B: 3\nB\n":         {"B": {}, "A-B": {"3"}, "A": {"2", "1"}},
		"A:  a: b \n":                     {"A": {" a: b "}},
		"a\\x3ab: \\x5c\\x0d\\x0a\\x00\n": {"a:b": {"\\\r\n\x00"}},
		"\\x5cx41: caf\\xe9\\x7f\n":       {"\\x41": {"caf\xe9\x7f"}},
	} {
		got := idempotency.NewFields(h)
		require.Equal(t, want, got)
		parsed, err := idempotency.ParseFields(string(got))
		require.NoError(t, err)
		for name, values := range h {
			require.ElementsMatch(t, values, parsed.Header()[name], "%q of %q", name, got)
			require.Contains(t, parsed.Header(), name)
		}
		require.Len(t, parsed.Header(), len(h))
	}
	require.Empty(t, idempotency.NewFields(http.Header{"": {"no header has it"}}))
}

func TestParseFieldsRefusesInvalidText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"A", "A: 1", "\n", "\nA\n", "A\n\n", "A\n\nB\n", "A: \x00\n", "A: é\n", "A\r\n", "A: \x7f\n"} {
		_, err := idempotency.ParseFields(text)
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "%q", text)
	}
}

func TestHeaderSurvivesAsFields(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	randomText := func() string {
		b := make([]byte, rnd.IntN(6))
		for i := range b {
			b[i] = "aZ09-: \\\\xX\r\n\x00\x7f\xff\t;,"[rnd.IntN(19)]
		}
		return string(b)
	}
	for range 20000 {
		want := http.Header{}
		for range rnd.IntN(6) {
			name := "n" + randomText()
			want[name] = nil
			for range rnd.IntN(3) {
				want[name] = append(want[name], randomText())
			}
		}
		f, err := idempotency.ParseFields(string(idempotency.NewFields(want)))
		require.NoError(t, err)
		if got := f.Header(); len(want) > 0 {
			require.Equal(t, want, got, "%q", f)
		}
	}
}

// The caller of Header may change the header, because the header shares no memory with the fields.
func TestHeaderOfFieldsSharesNoMemory(t *testing.T) {
	t.Parallel()
	const f = idempotency.Fields("A: 1\nA: 2\nB: 3\n")
	h := f.Header()
	h.Add("A", "x")
	h["A"][0] = "y"
	require.Equal(t, http.Header{"A": {"y", "2", "x"}, "B": {"3"}}, h)
	require.Equal(t, http.Header{"A": {"1", "2"}, "B": {"3"}}, f.Header())
}
