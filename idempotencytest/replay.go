package idempotencytest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// newReceipt returns a plain response whose body contains text.
func newReceipt(text string) idempotency.Response {
	return idempotency.Response{
		Status: http.StatusCreated,
		Header: idempotency.NewFields(http.Header{"Content-Type": {"text/plain"}}),
		Body:   []byte("receipt " + text),
	}
}

// replayCases returns a case for each property of a response that a store may lose.
func replayCases() []testCase {
	var cases []testCase
	for _, r := range []struct {
		name string
		resp idempotency.Response
	}{
		{"status", idempotency.Response{Status: http.StatusUnprocessableEntity, Header: idempotency.NewFields(http.Header{"Etag": {`"1"`}})}},
		{"binary body", idempotency.Response{Status: 200, Body: allBytes()}},
		{"body like a header", idempotency.Response{Status: 200, Body: []byte("\r\n\r\nA: b\n\n\x00\n{\"a\":1}\n")}},
		{"large body", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"A": {"b"}}), Body: newNoise(1<<20 + 4321)}},
		{"no body", idempotency.Response{Status: http.StatusNoContent}},
		{"empty body", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{}), Trailer: idempotency.NewFields(http.Header{}), Body: []byte{}}},
		{"order of values", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{
			"Set-Cookie": {"b=2; Expires=Thu, 01 Jan 2032 00:00:00 GMT", "a=1", "b=2", "c=3, d=4"},
			"Link":       {"</2>; rel=next", "</1>; rel=prev"},
		})}},
		{"field without a value", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"X-Deleted": nil, "X-Kept": {"1"}})}},
		{"empty values", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{"X-Empty": {""}, "X-Some": {"", "a", ""}})}},
		{"bytes of a value", idempotency.Response{Status: 200, Header: idempotency.NewFields(http.Header{
			"X-Bytes":  {string(allBytes()[0x80:]), "\t" + string(allBytes()[0x20:0x7f])},
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
		{"note", newSampleWithNote("charge ch_1: settled")},
		{"longest note", newSampleWithNote(strings.Repeat("~", 255))},
	} {
		cases = append(cases, testCase{
			name: "response/" + r.name,
			rule: "A replayed response equals the completed response in every byte and every value.",
			checkRule: func(t *trial) {
				own := t.claimKey(request)
				t.completeClaim(own, r.resp.Clone())
				t.checkReplay(own, r.resp)
			},
		})
	}
	return append(cases, testCase{
		name: "concurrent replays",
		rule: "If many callers call Begin for a completed key at the same time, each gets the response of this key.",
		checkRule: func(t *trial) {
			own, elsewhere := t.claimKey(request), t.withKey(newKey())
			t.completeClaim(own, newSample())
			other := elsewhere.claimKey(request)
			elsewhere.completeClaim(other, newReceipt("of another key"))
			for range 8 {
				for i, seen := range t.beginConcurrently(request, t.key, elsewhere.key) {
					if i%2 == 0 {
						t.checkResponse(seen, own, newSample())
					} else {
						t.checkResponse(seen, other, newReceipt("of another key"))
					}
				}
			}
		},
	}, testCase{
		name: "response/omitted",
		rule: "A response whose body was not kept is returned with Omitted set, and with its status.",
		checkRule: func(t *trial) {
			own := t.claimKey(request)
			t.completeClaim(own, idempotency.Response{Status: http.StatusAccepted, Omitted: true})
			t.checkReplay(own, idempotency.Response{Status: http.StatusAccepted, Omitted: true})
		},
	}, testCase{
		name: "response/memory of the caller",
		rule: "Complete neither modifies the given response nor keeps a reference to its body.",
		checkRule: func(t *trial) {
			own := t.claimKey(request)
			given, want := newSample(), newSample()
			t.completeClaim(own, given)
			if diff := describeDifference(given, want); diff != "" {
				t.failf("Complete has modified the response: %s", diff)
			}
			invertBytes(given.Body)
			t.checkReplay(own, want)
		},
	}, testCase{
		name: "response/memory of the store",
		rule: "The store never modifies a response that was returned, and every caller gets the same response.",
		checkRule: func(t *trial) {
			own := t.claimKey(request)
			t.completeClaim(own, newSample())
			first := t.readHeldRecord(request)
			for range 4 {
				t := t.withKey(newKey())
				other := newSample()
				invertBytes(other.Body)
				t.completeClaim(t.claimKey(request), other)
				t.readHeldRecord(request)
			}
			t.checkResponse(first, own, newSample())
			t.checkReplay(own, newSample())
		},
	})
}

// allBytes returns a slice with each value of a byte.
func allBytes() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

// newNoise returns n pseudo-random bytes, the same in every call.
func newNoise(n int) []byte {
	all := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(all) // never fails
	return all
}

// newSample returns a response. All responses of newSample are equal, but share no memory.
func newSample() idempotency.Response {
	return idempotency.Response{
		Status:  200,
		Header:  idempotency.NewFields(http.Header{"X-Values": {"1", "2"}, "X-Gone": nil}),
		Trailer: idempotency.NewFields(http.Header{"X-Sum": {"3"}}),
		Body:    newNoise(4096),
	}
}

// invertBytes changes every byte.
func invertBytes(b []byte) {
	for i := range b {
		b[i] ^= 0xff
	}
}

// describeDifference describes the first difference between two responses, or returns an empty string. A nil body
// equals an empty body.
func describeDifference(got, want idempotency.Response) string {
	switch {
	case got.Status != want.Status:
		return fmt.Sprintf("status %d, want %d", got.Status, want.Status)
	case got.Omitted != want.Omitted:
		return fmt.Sprintf("Omitted is %t, want %t", got.Omitted, want.Omitted)
	case len(got.Body) != len(want.Body):
		return fmt.Sprintf("a body of %d bytes, want %d", len(got.Body), len(want.Body))
	case !bytes.Equal(got.Body, want.Body):
		return "another body of the same length"
	}
	if got.Header != want.Header {
		return fmt.Sprintf("header %q, want %q", got.Header, want.Header)
	}
	if got.Note != want.Note {
		return fmt.Sprintf("note %q, want %q", got.Note, want.Note)
	}
	if got.Trailer != want.Trailer {
		return fmt.Sprintf("trailer %q, want %q", got.Trailer, want.Trailer)
	}
	return ""
}
