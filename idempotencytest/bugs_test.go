package idempotencytest

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// referenceBugs maps the name of a case to the bugs of referenceStore that the case must find.
var referenceBugs = map[string][]string{
	"concurrent replays":                {"key runs while its record is read"},
	"running attempt":                   {"held key is an error", "held record is always of another request"},
	"concurrent claims":                 {"get, then set"},
	"concurrent claims after a release": {"get a released record, then set"},
	"concurrent takeovers":              {"get a lapsed record, then set"},
	"cancelled Begin": {
		"cancelled Begin claims for ever", "cancelled Begin says nothing", "unanswered claim cannot be released", "claim in doubt is nil",
	},
	"released operation": {"release forgets the operation"},
	"released key":       {"released record needs a takeover", "Release does nothing"},
	"other request": {
		"another request claims what was released", "another request takes over", "held record has the fingerprint of the caller",
	},
	"completed operation": {
		"completed record has the fingerprint of the caller", "completed record is taken over", "completed record is claimed by another request", "lease outlives completion",
	},
	"takeover":       {"takeover keeps the attempt number", "takeover of a running lease", "lapsed lease counts as running"},
	"lapsed lease":   {"takeover without TakeOver"},
	"extended lease": {"Extend does nothing", "Extend adds to the lease", "takeover ignores Extend"},
	"late owner": {
		"Extend refuses a lapsed lease", "Complete refuses a lapsed lease", "Release refuses a lapsed lease",
	},
	"overtaken owner": {
		"Extend is not fenced", "Complete is not fenced", "Release is not fenced",
		"Extend acts, then checks", "Complete acts, then checks", "Release acts, then checks",
	},
	"takeover at the last moment":     {"Complete checks, then writes"},
	"released owner":                  {"fenced by time of creation"},
	"forgotten owner":                 {"fenced by attempt number"},
	"overtaken owner after a release": {"not fenced after a release"},
	"repeated Complete":               {"repeated Complete is refused"},
	"second response":                 {"last response wins"},
	"repeated Release":                {"repeated Release is refused"},
	"freed key":                       {"freed key is released", "repeated Release of a freed key is refused"},
	"abandoned by Release":            {"abandoned record is released", "abandoned record keeps its lease"},
	"Release after Complete":          {"Release undoes completion", "Release after Complete succeeds"},
	"Complete after Release":          {"released claim is completed"},
	"Extend after Complete":           {"Extend cuts the retention", "Extend of a completed record succeeds"},
	"Extend after Release":            {"Extend brings a released record back"},
	"Extend during Complete":          {"Extend checks, then writes"},
	"Extend during Release":           {"Extend checks, then writes"},
	"completed record expires": {
		"completed records stay", "completed records expire early", "reading prolongs the record",
		"creation is that of the expired record",
	},
	"retention of a response":   {"retention counts from the claim"},
	"unfinished record expires": {"unfinished records stay", "unfinished records expire early"},
	"released record expires": {
		"released records stay", "released records expire early", "Release leaves the TTL",
	},
	"retention of a released record":              {"Release leaves the TTL"},
	"remaining time":                              {"remaining time is that of the attempt"},
	"remaining time of a completed record":        {"remaining time does not pass"},
	"TTL shorter than the lease":                  {"TTL shorter than the lease"},
	"TTL of the next attempt":                     {"TTL counts from the first attempt"},
	"Extend prolongs the record":                  {"Extend leaves the TTL"},
	"Extend keeps the TTL":                        {"Extend cuts the TTL"},
	"Complete restores":                           {"Complete does not restore", "restoring is not reported"},
	"Extend restores":                             {"Extend does not restore", "lease is not restored"},
	"Release of a forgotten record":               {"Release restores"},
	"Extend after the end of a forgotten record":  {"Extend restores what was settled"},
	"Extend during the end of a forgotten record": {"Extend restores what was settled"},
	"response/memory of the caller":               {"response is modified", "body memory is retained"},
	"identity":                                    {"Release does nothing"},
	"identity of a key that is used again":        {"unfinished records stay"},
}

// alterations are bugs of an alteredStore, each with the case that must find the bug.
var alterations = []struct {
	name     string
	caughtBy string
	alteration
}{
	{"keys joined by a delimiter", "distinct keys", alterKey(func(k idempotency.Key) string {
		return k.User + ":" + k.Endpoint + ":" + k.ID
	})},
	{"keys joined by NUL", "distinct keys", alterKey(func(k idempotency.Key) string {
		return k.User + "\x00" + k.Endpoint + "\x00" + k.ID
	})},
	{"keys without user", "distinct keys", alterKey(func(k idempotency.Key) string { return k.Endpoint + "\n\n" + k.ID })},
	{"keys without endpoint", "distinct keys", alterKey(func(k idempotency.Key) string { return k.User + "\n\n" + k.ID })},
	{"keys in one case", "distinct keys", alterKeyParts(strings.ToLower)},
	{"keys of valid UTF-8", "distinct keys", alterKeyParts(func(s string) string { return strings.ToValidUTF8(s, "\ufffd") })},
	{"keys trimmed", "distinct keys", alterKeyParts(strings.TrimSpace)},
	{"keys cut at NUL", "distinct keys", alterKeyParts(func(s string) string { return strings.Split(s, "\x00")[0] })},
	{"keys cut at 255 bytes", "distinct keys", alterKeyParts(func(s string) string { return s[:min(255, len(s))] })},
	{"keys by hash tag", "distinct keys", alterKeyParts(findHashTag)},

	{"fingerprint is ignored", "other request", alteration{changeRequest: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Fingerprint = idempotency.Fingerprint{}
		return a
	}}},
	{"lease of at least a second", "lapsed lease", alteration{changeRequest: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Lease = max(a.Lease, time.Second)
		return a
	}}},
	{"lease is half as long", "running attempt", alteration{changeRequest: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Lease /= 2
		return a
	}}},
	{"completed record has no fingerprint", "completed operation", alterRecord(func(r *idempotency.Record) {
		if r.Response != nil {
			r.Fingerprint = idempotency.Fingerprint{}
		}
	})},
	{"attempts count from 0", "fresh key", alterRecord(func(r *idempotency.Record) { r.Attempt-- })},
	{"attempts count from 2", "fresh key", alterRecord(func(r *idempotency.Record) { r.Attempt++ })},
	{"creation in another unit", "fresh key", alterRecord(func(r *idempotency.Record) {
		r.Created = time.Unix(r.Created.UnixMilli(), 0)
	})},
	{"record has the time of reading", "lapsed lease", alterRecord(func(r *idempotency.Record) { r.Created = time.Now() })},
	{"lease left is negative", "lapsed lease", alterRecord(func(r *idempotency.Record) { r.LeaseLeft -= time.Nanosecond })},

	{"status is lost", "response/status", alterResponse(func(r *idempotency.Response) { r.Status = 200 })},
	{"body is text", "response/binary body", alterBody(func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("?")) })},
	{"body ends at an empty line", "response/body like a header", alterBody(func(b []byte) []byte {
		before, _, _ := bytes.Cut(b, []byte("\r\n\r\n"))
		return before
	})},
	{"body is cut", "response/large body", alterBody(func(b []byte) []byte { return b[:min(1<<20, len(b))] })},
	{"no body is null", "response/no body", alterResponse(func(r *idempotency.Response) {
		if r.Body == nil {
			r.Body = []byte("null")
		}
	})},
	{"empty body is omitted", "response/empty body", alterResponse(func(r *idempotency.Response) {
		r.Omitted = r.Omitted || len(r.Body) == 0
	})},
	{"values are sorted", "response/order of values", alterValues(func(v []string) []string {
		return slices.Sorted(slices.Values(v))
	})},
	{"values are joined", "response/order of values", alterValues(func(v []string) []string {
		return []string{strings.Join(v, ", ")}
	})},
	{"last value wins", "response/order of values", alterValues(func(v []string) []string { return v[len(v)-1:] })},
	{"empty values are lost", "response/empty values", alterValues(func(v []string) []string {
		return slices.DeleteFunc(v, func(s string) bool { return s == "" })
	})},
	{"values are text", "response/bytes of a value", alterEachValue(func(s string) string {
		return strings.ToValidUTF8(s, "?")
	})},
	{"values are trimmed", "response/bytes of a value", alterEachValue(strings.TrimSpace)},
	{"fields without a value are lost", "response/field without a value", alterHeader(func(h http.Header) http.Header {
		for name, values := range h {
			if values == nil {
				delete(h, name)
			}
		}
		return h
	})},
	{"names are canonicalized", "response/spelling of names", alterHeader(func(h http.Header) http.Header {
		spelled := make(http.Header)
		for name, values := range h {
			spelled[http.CanonicalHeaderKey(name)] = values
		}
		return spelled
	})},
	{"trailer is lost", "response/trailer", alterResponse(func(r *idempotency.Response) { r.Trailer = "" })},
	{"note is not stored", "response/note", alterResponse(func(r *idempotency.Response) { r.Note = "" })},
	{"note is cut at 200 bytes", "response/longest note", alterResponse(func(r *idempotency.Response) { r.Note = r.Note[:min(200, len(r.Note))] })},
	{"trailer joins the header", "response/trailer", alterResponse(func(r *idempotency.Response) {
		h := r.Header.Header()
		for name, values := range r.Trailer.Header() {
			h[name] = append(h[name], values...)
		}
		r.Header, r.Trailer = idempotency.NewFields(h), ""
	})},
	{"omission is lost", "response/omitted", alterResponse(func(r *idempotency.Response) { r.Omitted = false })},
	{"returned memory is reused", "response/memory of the store", alteration{reusesMemory: true}},
}

// alteration is a bug between a correct store and its callers. Functions may be nil.
type alteration struct {
	changeKey      func(idempotency.Key) idempotency.Key
	changeRequest  func(idempotency.ClaimRequest) idempotency.ClaimRequest
	changeRecord   func(*idempotency.Record)
	changeResponse func(*idempotency.Response) // changes the copy that is stored
	reusesMemory   bool                        // each returned response overwrites the body of the response before
}

// alterKey makes the store use a key that consists of a single part.
func alterKey(join func(idempotency.Key) string) alteration {
	return alteration{changeKey: func(k idempotency.Key) idempotency.Key { return idempotency.Key{ID: join(k)} }}
}

// alterKeyParts changes each part of the key.
func alterKeyParts(change func(string) string) alteration {
	return alteration{changeKey: func(k idempotency.Key) idempotency.Key {
		return idempotency.Key{User: change(k.User), Endpoint: change(k.Endpoint), ID: change(k.ID)}
	}}
}

// findHashTag returns the part of a key that determines the slot of the key in a Redis cluster.
func findHashTag(s string) string {
	_, after, opened := strings.Cut(s, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !opened || !closed || tag == "" {
		return s
	}
	return tag
}

func alterRecord(change func(*idempotency.Record)) alteration {
	return alteration{changeRecord: change}
}

func alterResponse(change func(*idempotency.Response)) alteration {
	return alteration{changeResponse: change}
}

func alterBody(change func([]byte) []byte) alteration {
	return alterResponse(func(r *idempotency.Response) { r.Body = change(r.Body) })
}

func alterHeader(change func(http.Header) http.Header) alteration {
	return alterResponse(func(r *idempotency.Response) {
		if h := r.Header.Header(); h != nil {
			r.Header = idempotency.NewFields(change(h))
		}
	})
}

func alterValues(change func([]string) []string) alteration {
	return alterHeader(func(h http.Header) http.Header {
		for name, values := range h {
			if len(values) > 0 {
				h[name] = change(values)
			}
		}
		return h
	})
}

func alterEachValue(change func(string) string) alteration {
	return alterValues(func(v []string) []string {
		for i := range v {
			v[i] = change(v[i])
		}
		return v
	})
}

// alteredStore is a store with an alteration.
type alteredStore struct {
	store idempotency.Store
	alteration
	lastResponse *idempotency.Response
}

func (s *alteredStore) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.changeKey != nil {
		key = s.changeKey(key)
	}
	if s.changeRequest != nil {
		a = s.changeRequest(a)
	}
	record, claim, err := s.store.Begin(ctx, key, a)
	if err == nil && s.changeRecord != nil {
		s.changeRecord(&record)
	}
	if s.reusesMemory && record.Response != nil {
		if s.lastResponse != nil {
			copy(s.lastResponse.Body, record.Response.Body)
		}
		s.lastResponse = record.Response
	}
	if claim != nil {
		claim = alteredClaim{claim, s}
	}
	return record, claim, err
}

type alteredClaim struct {
	idempotency.Claim
	store *alteredStore
}

func (c alteredClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.store.changeResponse != nil {
		resp = resp.Clone()
		c.store.changeResponse(&resp)
	}
	return c.Claim.Complete(ctx, resp, ttl)
}
