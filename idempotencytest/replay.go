package idempotencytest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// receipt returns a plain response.
func receipt(text string) idempotency.Response {
	return idempotency.Response{
		Status: http.StatusCreated,
		Header: idempotency.NewFields(http.Header{"Content-Type": {"text/plain"}}),
		Body:   []byte("receipt " + text),
	}
}

// replayCases has a case for each property that a response may lose in a store.
func replayCases() []testCase {
	var cases []testCase
	for _, r := range []struct {
		name string
		resp idempotency.Response
	}{
		{"status", idempotency.Response{Status: http.StatusUnprocessableEntity, Header: idempotency.NewFields(http.Header{"Etag": {`"1"`}})}},
		{"binary body", idempotency.Response{Status: 200, Body: everyByte()}},
		{"body like a header", idempotency.Response{Status: 200, Body: []byte("\r\n\r\nA: b\n\n\x00\n{\"a\":1}\n")}},
		{"large body", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"A": {"b"}}), Body: noise(1<<20 + 4321)}},
		{"no body", idempotency.Response{Status: http.StatusNoContent}},
		{"empty body", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{}), Trailer: idempotency.NewFields(http.Header{}), Body: []byte{}}},
		{"order of values", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{
			"Set-Cookie": {"b=2; Expires=Thu, 01 Jan 2032 00:00:00 GMT", "a=1", "b=2", "c=3, d=4"},
			"Link":       {"</2>; rel=next", "</1>; rel=prev"},
		})}},
		{"field without a value", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"X-Deleted": nil, "X-Kept": {"1"}})}},
		{"empty values", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"X-Empty": {""}, "X-Some": {"", "a", ""}})}},
		{"bytes of a value", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{
			"X-Bytes":  {string(everyByte()[0x80:]), "\t" + string(everyByte()[0x20:0x7f])},
			"X-Spaces": {" before", "after ", "  ", "a: b", `back\slash`, `\n`},
		})}},
		{"spelling of names", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{
			"x-lower": {"1"}, "X-Lower": {"2"}, "ETag": {"3"}, "x_y!#$%&'*+.^`|~": {"4"},
		})}},
		{"trailer", idempotency.Response{
			Status:  200,
			Header:  idempotency.NewFields(http.Header{"Trailer": {"X-Sum"}, "X-Sum": {"in the header"}}),
			Trailer: idempotency.NewFields(http.Header{"X-Sum": {"b", "a"}, http.TrailerPrefix + "X-Late": {"c"}, "X-Unset": nil}),
			Body:    []byte("body"),
		}},
		{"note", noted("charge ch_1: settled")},
		{"longest note", noted(strings.Repeat("~", 255))},
	} {
		cases = append(cases, testCase{
			name: "response/" + r.name,
			rule: "A response is replayed as it was completed, byte for byte and value for value.",
			check: func(t *trial) {
				own := t.claim(request)
				t.complete(own, r.resp.Clone())
				t.replays(own, r.resp)
			},
		})
	}
	return append(cases, testCase{
		name: "concurrent replays",
		rule: "Of any number of concurrent callers of a completed key, each gets its response.",
		check: func(t *trial) {
			own, elsewhere := t.claim(request), t.at(freshKey())
			t.complete(own, sample())
			other := elsewhere.claim(request)
			elsewhere.complete(other, receipt("of another key"))
			for range 8 {
				for i, seen := range t.crowd(request, t.key, elsewhere.key) {
					if i%2 == 0 {
						t.isResponse(seen, own, sample())
					} else {
						t.isResponse(seen, other, receipt("of another key"))
					}
				}
			}
		},
	}, testCase{
		name: "response/omitted",
		rule: "A response whose body was not kept is known as such, with its status.",
		check: func(t *trial) {
			own := t.claim(request)
			t.complete(own, idempotency.Response{Status: http.StatusAccepted, Omitted: true})
			t.replays(own, idempotency.Response{Status: http.StatusAccepted, Omitted: true})
		},
	}, testCase{
		name: "response/memory of the caller",
		rule: "Complete does not modify its response, nor retain its body.",
		check: func(t *trial) {
			own := t.claim(request)
			lent, want := sample(), sample()
			t.complete(own, lent)
			if diff := difference(lent, want); diff != "" {
				t.failf("Complete has modified the response: %s", diff)
			}
			scribble(lent.Body)
			t.replays(own, want)
		},
	}, testCase{
		name: "response/memory of the store",
		rule: "A response that was returned is never modified, and every reader gets the same.",
		check: func(t *trial) {
			own := t.claim(request)
			t.complete(own, sample())
			first := t.refused(request)
			for range 4 {
				t := t.at(freshKey())
				other := sample()
				scribble(other.Body)
				t.complete(t.claim(request), other)
				t.refused(request)
			}
			t.isResponse(first, own, sample())
			t.replays(own, sample())
		},
	})
}

func everyByte() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func noise(n int) []byte {
	all := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(all) // never fails
	return all
}

// sample returns a new response, equal to all others that it returns.
func sample() idempotency.Response {
	return idempotency.Response{
		Status:  200,
		Header:  idempotency.NewFields(http.Header{"X-Values": {"1", "2"}, "X-Gone": nil}),
		Trailer: idempotency.NewFields(http.Header{"X-Sum": {"3"}}),
		Body:    noise(4096),
	}
}

// scribble changes every byte.
func scribble(b []byte) {
	for i := range b {
		b[i] ^= 0xff
	}
}

// difference says how two responses differ. What has no bytes or values is equal, be it nil or not.
func difference(got, want idempotency.Response) string {
	switch {
	case got.Status != want.Status:
		return fmt.Sprintf("status %d, not %d", got.Status, want.Status)
	case got.Omitted != want.Omitted:
		return fmt.Sprintf("omitted is %t, not %t", got.Omitted, want.Omitted)
	case len(got.Body) != len(want.Body):
		return fmt.Sprintf("a body of %d bytes, not %d", len(got.Body), len(want.Body))
	case !bytes.Equal(got.Body, want.Body):
		return "another body of the same length"
	}
	if got.Header != want.Header {
		return fmt.Sprintf("header %q, not %q", got.Header, want.Header)
	}
	if got.Note != want.Note {
		return fmt.Sprintf("note %q, not %q", got.Note, want.Note)
	}
	if got.Trailer != want.Trailer {
		return fmt.Sprintf("trailer %q, not %q", got.Trailer, want.Trailer)
	}
	return ""
}
