package fingerprint_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

const (
	theQuery = "the query"
	theMedia = "the media type"
	theRest  = "the rest of the body"
)

func mustParts(t testing.TB, whole idempotency.FingerprintFunc, names ...string) *fingerprint.Parts {
	t.Helper()
	p, err := fingerprint.NewParts(whole, names...)
	require.NoError(t, err)
	return p
}

// differences compares two requests. It returns "same" if they are one.
func differences(t testing.TB, p *fingerprint.Parts, a, b content) []string {
	t.Helper()
	x, err := a.fingerprint(p.Fingerprint)
	require.NoError(t, err, a)
	y, err := b.fingerprint(p.Fingerprint)
	require.NoError(t, err, b)
	if x == y {
		return []string{"same"}
	}
	return p.Differences(reused(x, y))
}

func reused(first, sent idempotency.Fingerprint) idempotency.Event {
	return idempotency.Event{Outcome: idempotency.OutcomeKeyReused, Fingerprints: &[2]idempotency.Fingerprint{first, sent}}
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	json := mustParts(t, fingerprint.JSON, "/amount", "/items/*/sku", "/to/name", "amount")
	less := mustParts(t, fingerprint.Must(fingerprint.JSONWithout("/sentAt")), "/amount")
	fields := mustParts(t, fingerprint.Must(fingerprint.FormWithout("csrf")), "amount", "/amount")
	raw := mustParts(t, idempotency.FingerprintRaw, "/amount", "amount")
	parts := mustParts(t, fingerprint.Multipart, "/amount")
	none := mustParts(t, fingerprint.JSON)
	const whole = `{"amount":1,"items":[{"sku":"a"}],"to":{"name":"x"}}`
	of := func(body string) content { return content{"", js, body} }
	enc := func(body string) content { return content{"", urlEncoded, body} }
	for _, row := range []struct {
		name string
		p    *fingerprint.Parts
		a, b content
		want string
	}{
		{"written otherwise", json, of(whole), content{"", js + ";charset=utf-8", strings.ReplaceAll(whole, ":", ": ")}, "same"},
		{"a member", json, of(whole), of(`{"amount":2,"items":[{"sku":"a"}],"to":{"name":"x"}}`), "/amount"},
		{"of elements", json, of(whole), of(`{"amount":1,"items":[{"sku":"b"}],"to":{"name":"x"}}`), "/items/*/sku"},
		{"the number of elements", json, of(whole), of(`{"amount":1,"items":[{"sku":"a"},{}],"to":{"name":"x"}}`), theRest + ",/items/*/sku"},
		{"beside elements", json, of(whole), of(`{"amount":1,"items":[{"sku":"a","n":2}],"to":{"name":"x"}}`), theRest},
		{"within and beside", json, of(whole), of(`{"amount":1,"items":[{"sku":"a"}],"to":{"name":"y","zip":1}}`), theRest + ",/to/name"},
		{"missing", json, of(whole), of(`{"items":[{"sku":"a"}],"to":{"name":"x"}}`), "/amount"},
		{"all of it", json, content{"q", js, whole}, of(`{"amount":2,"tip":1}`), theQuery + "," + theRest + ",/amount,/items/*/sku,/to/name"},
		{"query", json, content{"a=1", js, whole}, content{"a=2", js, whole}, theQuery},
		{"media type", json, of(whole), content{"q", "a+json", `{"amount":2}`}, theQuery + "," + theMedia},
		{"no body", json, of(`{}`), of(""), theRest},
		{"other body", json, content{"", "text/plain", "a"}, content{"", "text/plain", "b"}, theRest},
		{"a form that f compares whole", json, enc("amount=1&a=2"), enc("amount=2&a=2"), "amount"},

		{"left out", less, of(`{"amount":1,"sentAt":1}`), of(`{"amount":1,"sentAt":2}`), "same"},
		{"left out, and a member", less, of(`{"amount":1,"sentAt":1}`), of(`{"amount":2,"sentAt":2}`), "/amount"},
		{"left out, and the rest", less, of(`{"amount":1,"sentAt":1}`), of(`{"amount":1,"sentAt":2,"a":1}`), theRest},

		{"a field", fields, enc("amount=1&csrf=1"), enc("csrf=2&amount=2"), "amount"},
		{"twice", fields, enc("amount=1"), enc("amount=1&amount=1"), "amount"},
		{"another field", fields, enc("amount=1"), enc("amount=1&tip=1"), theRest},
		{"a field and another one", fields, enc("amount=1"), enc("tip=1"), theRest + ",amount"},
		{"no such field", fields, enc("csrf=1"), enc(""), "same"},

		{"raw, a member", raw, of(`{"amount":1}`), of(`{"amount":2}`), "/amount"},
		{"raw, written otherwise", raw, of(`{"amount":1}`), of(`{"amount": 1}`), ""},
		{"raw, no JSON", raw, of(`{`), of(`[`), theRest},
		{"raw, no form", raw, enc(`%`), enc(`%%`), theRest},

		{"another boundary", parts, form("x", "1"), form("y", "1"), "same"},
		{"a part", parts, form("x", "1"), form("y", "2"), theRest},

		{"no names", none, of(`{"a":1}`), content{"q", js, `{"a":2}`}, theQuery + "," + theRest},
	} {
		require.Equal(t, row.want, strings.Join(differences(t, row.p, row.a, row.b), ","), row.name)
	}
}

// What has no tags of these names is not told.
func TestDifferencesThatAreNotKnown(t *testing.T) {
	t.Parallel()
	p := mustParts(t, fingerprint.JSON, "/a", "b")
	own, err := content{"", js, `{"a":1}`}.fingerprint(p.Fingerprint)
	require.NoError(t, err)
	for name, f := range map[string]idempotency.FingerprintFunc{
		"the whole":   fingerprint.JSON,
		"other names": mustParts(t, fingerprint.JSON, "/a").Fingerprint,
		"none":        fingerprint.None,
	} {
		other, err := content{"", js, `{"a":2}`}.fingerprint(f)
		require.NoError(t, err)
		require.Nil(t, p.Differences(reused(own, other)), name)
		require.Nil(t, p.Differences(reused(other, own)), name)
	}
	require.Nil(t, p.Differences(idempotency.Event{Outcome: idempotency.OutcomeExecuted}))

	other, err := content{"", js, `{"a":2}`}.fingerprint(mustParts(t, fingerprint.JSON, "b", "/a").Fingerprint)
	require.NoError(t, err)
	require.Equal(t, []string{"/a"}, p.Differences(reused(own, other)), "in another order")
}

func TestFaultsOfParts(t *testing.T) {
	t.Parallel()
	for fault, names := range map[string][]string{
		"10 names are too many":   {"a", "b", "c", "d", "e", "f", "/a", "/b", "/c", "/d"},
		`"a" is named twice`:      {"a", "/a", "a"},
		`"/a" lies within "/a"`:   {"a", "/a", "/a"},
		`"/a/b" lies within "/a"`: {"/a", "/a/b"},
		`"/a~" has a tilde`:       {"/a~", "b"},
	} {
		p, err := fingerprint.NewParts(fingerprint.JSON, names...)
		require.ErrorContains(t, err, fault)
		require.Nil(t, p)
	}
	_, err := fingerprint.NewParts(nil, "/~", "a", "a")
	for _, fault := range []string{"whole is nil", "tilde", "twice"} {
		require.ErrorContains(t, err, fault, "all at once")
	}
	_, err = fingerprint.NewParts(fingerprint.JSON, "a", "b", "c", "d", "e", "/a", "/b", "/c", "/d")
	require.NoError(t, err)

	p := mustParts(t, fingerprint.JSON, "/a")
	_, err = content{"", js, `{`}.fingerprint(p.Fingerprint)
	require.ErrorContains(t, err, "body as JSON")
	broken := errors.New("broken")
	p = mustParts(t, func(r *http.Request, _ []byte) (fp idempotency.Fingerprint, err error) {
		if r.URL.RawQuery == "" {
			err = broken
		}
		return fp, err
	})
	_, err = content{"q", js, ""}.fingerprint(p.Fingerprint)
	require.ErrorIs(t, err, broken)
}

// FuzzDifferences compares JSON with a slow model: the whole decides whether two requests are one, and whatever is told
// does differ.
func FuzzDifferences(f *testing.F) {
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 400 {
		b := make([]byte, 18+rnd.IntN(60))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b[:8], b[8:16], b[16:], uint16(rnd.Uint32()), byte(rnd.Uint32()))
	}
	f.Fuzz(func(t *testing.T, named, left, first []byte, at uint16, to byte) {
		second := slices.Clone(first)
		if len(second) > 0 {
			second[int(at)%len(second)] = to
		}
		c, d, x, y := choices(named), choices(left), choices(first), choices(second)
		names, without := c.pointers(), d.pointers()
		a, b := x.value(4), y.value(4)
		p, err := fingerprint.NewParts(fingerprint.JSON, names...)
		less, fault := fingerprint.JSONWithout(without...)
		if err != nil || fault != nil {
			return
		}
		for _, body := range []string{a, b} {
			if modelOtherSpelling(model(t, body), names) || modelOtherSpelling(model(t, body), without) || ordered(model(t, body)) {
				return
			}
		}
		differ := func(name string, left []string) bool {
			if name == theRest {
				left = append(slices.Clone(names), left...)
				return !reflect.DeepEqual(modelWithout(t, a, left), modelWithout(t, b, left))
			}
			return !reflect.DeepEqual(modelOnly(t, a, []string{name}), modelOnly(t, b, []string{name}))
		}
		for _, row := range []struct {
			p    *fingerprint.Parts
			left []string
		}{{p, nil}, {mustParts(t, less, names...), without}} {
			told := differences(t, row.p, content{"", js, a}, content{"", js, b})
			same := reflect.DeepEqual(modelWithout(t, a, row.left), modelWithout(t, b, row.left)) &&
				reflect.DeepEqual(modelOnly(t, a, names), modelOnly(t, b, names))
			require.Equal(t, same, slices.Equal(told, []string{"same"}), "%q without %q: %s, %s", names, row.left, a, b)
			for _, name := range told {
				require.True(t, same || differ(name, row.left), "%q of %q without %q: %s, %s", name, names, row.left, a, b)
			}
		}
	})
}

// FuzzDifferencesOfForms is FuzzDifferences for forms.
func FuzzDifferencesOfForms(f *testing.F) {
	f.Add("a=1&b=2&a=3", uint16(3), uint16(8), uint16(4), uint16(8))
	f.Add("a=%00%00%00%00%00%00%00%01a&&b=&c", uint16(0), uint16(30), uint16(2), uint16(31))
	f.Add("1", uint16(0), uint16(1), uint16(0), uint16(0))
	p := mustParts(f, fingerprint.Must(fingerprint.FormWithout("b")), "a")
	f.Fuzz(func(t *testing.T, text string, i, j, k, l uint16) {
		x, y := carve(text, i, j), carve(text, k, l)
		a, b := x[0]+"&a="+x[1]+"&b="+x[2], y[0]+"&a="+y[1]+"&b="+y[2]
		v, err := url.ParseQuery(a)
		w, fault := url.ParseQuery(b)
		if err != nil || fault != nil {
			return
		}
		if otherSpelling(v, "a", "b") || otherSpelling(w, "a", "b") {
			return
		}
		named := !slices.Equal(v["a"], w["a"])
		for _, form := range []url.Values{v, w} {
			form.Del("a")
			form.Del("b")
		}
		rest := !reflect.DeepEqual(v, w)
		differs := map[string]bool{"a": named, theRest: rest, "same": !named && !rest}
		for _, name := range differences(t, p, content{"", urlEncoded, a}, content{"", urlEncoded, b}) {
			require.True(t, differs[name], "%s: %q, %q", name, a, b)
		}
	})
}

// The owner of a service is told what differs, whatever the store. No value is told.
func TestDifferencesOfRefusals(t *testing.T) {
	t.Parallel()
	p := mustParts(t, fingerprint.JSON, "/amount", "/currency")
	_, redis := testservice.NewMiniredis(t)
	for name, row := range map[string]struct {
		store   idempotency.Store
		running []string // what is told while the first request is at work
	}{
		"memory": {idempotency.NewMemoryStore(idempotency.MemoryOptions{}), []string{"/amount"}},
		"Redis":  {idempotency.NewRedisStore(redis, idempotency.RedisOptions{}), []string{"/amount"}},
		"sealed": {testservice.MustSeal(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{}), testservice.Sealing("key")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := idempotency.Options{Fingerprint: p.Fingerprint, FingerprintHeaders: []string{"X-Shop"}}
			var svc *testservice.Service
			refused := func(body string, edits ...testservice.Edit) []string {
				edits = append(edits, testservice.WithHeader("Content-Type", js))
				testservice.RequireProblem(t, svc.Call("k", body, edits...), http.StatusConflict, "key-reused")
				e := svc.Journal.Last(t)
				require.NotNil(t, e.Fingerprints)
				return p.Differences(e)
			}
			svc = testservice.Setup{Store: row.store, Opts: opts}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
				require.Equal(t, row.running, refused(`{"amount":2,"currency":"EUR"}`))
				w.WriteHeader(http.StatusCreated)
			})
			own := testservice.WithHeader("Content-Type", js)
			require.Equal(t, http.StatusCreated, svc.Call("k", `{"amount":1,"currency":"EUR"}`, own).Status)
			require.True(t, svc.Call("k", `{"currency":"EUR", "amount":1.0}`, own).Replayed())
			require.Nil(t, svc.Journal.Last(t).Fingerprints)
			require.Equal(t, []string{"/amount"}, refused(`{"amount":2,"currency":"EUR"}`))
			require.Equal(t, []string{theRest, "/currency"}, refused(`{"amount":1,"currency":"USD","tip":1}`))
			require.Nil(t, refused(`{"amount":2,"currency":"EUR"}`, testservice.WithHeader("X-Shop", "a")))
			require.Nil(t, refused(`{"amount":2,"currency":"EUR"}`, testservice.WithHeader("Content-Encoding", "identity")))
		})
	}
}

// Nearly every difference is seen, and nothing else is told.
func TestDifferencesAreSeen(t *testing.T) {
	t.Parallel()
	p := mustParts(t, fingerprint.JSON, "/a", "/b")
	seen := 0
	for i := range 512 {
		told := differences(t, p, content{"", js, `{"a":0,"b":0}`}, content{"", js, fmt.Sprintf(`{"a":%d,"b":0}`, i+1)})
		require.Subset(t, []string{"/a"}, told)
		seen += len(told)
	}
	require.Greater(t, seen, 500, "255 of 256")
}
