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

// referenceBugs names the faults in the code of the reference store, by a case that must fail for them.
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
		"another request claims what was released", "another request takes over", "held record has the fingerprint of who asks",
	},
	"completed operation": {
		"completed record has the fingerprint of who asks", "completed record is taken over", "completed record is claimed by another request", "lease outlives completion",
	},
	"takeover":       {"takeover keeps the attempt number", "takeover needs no lapse", "lapse is not noticed"},
	"lapsed lease":   {"takeover needs no leave"},
	"extended lease": {"Extend does nothing", "Extend adds to the lease", "takeover heeds the first lease only"},
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

// alterations are faults in front of a store that is correct without them, each with a case that must fail for it.
var alterations = []struct {
	name     string
	caughtBy string
	alteration
}{
	{"keys joined by a delimiter", "distinct keys", keys(func(k idempotency.Key) string {
		return k.User + ":" + k.Endpoint + ":" + k.ID
	})},
	{"keys joined by NUL", "distinct keys", keys(func(k idempotency.Key) string {
		return k.User + "\x00" + k.Endpoint + "\x00" + k.ID
	})},
	{"keys without user", "distinct keys", keys(func(k idempotency.Key) string { return k.Endpoint + "\n\n" + k.ID })},
	{"keys without endpoint", "distinct keys", keys(func(k idempotency.Key) string { return k.User + "\n\n" + k.ID })},
	{"keys in one case", "distinct keys", parts(strings.ToLower)},
	{"keys of valid UTF-8", "distinct keys", parts(func(s string) string { return strings.ToValidUTF8(s, "\ufffd") })},
	{"keys trimmed", "distinct keys", parts(strings.TrimSpace)},
	{"keys cut at NUL", "distinct keys", parts(func(s string) string { return strings.Split(s, "\x00")[0] })},
	{"keys cut at 255 bytes", "distinct keys", parts(func(s string) string { return s[:min(255, len(s))] })},
	{"keys by hash tag", "distinct keys", parts(hashTag)},

	{"fingerprint is ignored", "other request", alteration{attempt: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Fingerprint = idempotency.Fingerprint{}
		return a
	}}},
	{"lease of at least a second", "lapsed lease", alteration{attempt: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Lease = max(a.Lease, time.Second)
		return a
	}}},
	{"lease is half as long", "running attempt", alteration{attempt: func(a idempotency.ClaimRequest) idempotency.ClaimRequest {
		a.Lease /= 2
		return a
	}}},
	{"completed record has no fingerprint", "completed operation", records(func(r *idempotency.Record) {
		if r.Response != nil {
			r.Fingerprint = idempotency.Fingerprint{}
		}
	})},
	{"attempts count from 0", "fresh key", records(func(r *idempotency.Record) { r.Attempt-- })},
	{"attempts count from 2", "fresh key", records(func(r *idempotency.Record) { r.Attempt++ })},
	{"creation in another unit", "fresh key", records(func(r *idempotency.Record) {
		r.Created = time.Unix(r.Created.UnixMilli(), 0)
	})},
	{"record has the time of reading", "lapsed lease", records(func(r *idempotency.Record) { r.Created = time.Now() })},
	{"lease left is negative", "lapsed lease", records(func(r *idempotency.Record) { r.LeaseLeft -= time.Nanosecond })},

	{"status is lost", "response/status", responses(func(r *idempotency.Response) { r.Status = 200 })},
	{"body is text", "response/binary body", bodies(func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("?")) })},
	{"body ends at an empty line", "response/body like a header", bodies(func(b []byte) []byte {
		before, _, _ := bytes.Cut(b, []byte("\r\n\r\n"))
		return before
	})},
	{"body is cut", "response/large body", bodies(func(b []byte) []byte { return b[:min(1<<20, len(b))] })},
	{"no body is null", "response/no body", responses(func(r *idempotency.Response) {
		if r.Body == nil {
			r.Body = []byte("null")
		}
	})},
	{"empty body is omitted", "response/empty body", responses(func(r *idempotency.Response) {
		r.Omitted = r.Omitted || len(r.Body) == 0
	})},
	{"values are sorted", "response/order of values", values(func(v []string) []string {
		return slices.Sorted(slices.Values(v))
	})},
	{"values are joined", "response/order of values", values(func(v []string) []string {
		return []string{strings.Join(v, ", ")}
	})},
	{"last value wins", "response/order of values", values(func(v []string) []string { return v[len(v)-1:] })},
	{"empty values are lost", "response/empty values", values(func(v []string) []string {
		return slices.DeleteFunc(v, func(s string) bool { return s == "" })
	})},
	{"values are text", "response/bytes of a value", eachValue(func(s string) string {
		return strings.ToValidUTF8(s, "?")
	})},
	{"values are trimmed", "response/bytes of a value", eachValue(strings.TrimSpace)},
	{"fields without a value are lost", "response/field without a value", fields(func(h http.Header) http.Header {
		for name, values := range h {
			if values == nil {
				delete(h, name)
			}
		}
		return h
	})},
	{"names are spelled anew", "response/spelling of names", fields(func(h http.Header) http.Header {
		spelled := make(http.Header)
		for name, values := range h {
			spelled[http.CanonicalHeaderKey(name)] = values
		}
		return spelled
	})},
	{"trailer is lost", "response/trailer", responses(func(r *idempotency.Response) { r.Trailer = "" })},
	{"note is not stored", "response/note", responses(func(r *idempotency.Response) { r.Note = "" })},
	{"note is cut at 200 bytes", "response/longest note", responses(func(r *idempotency.Response) { r.Note = r.Note[:min(200, len(r.Note))] })},
	{"trailer joins the header", "response/trailer", responses(func(r *idempotency.Response) {
		h := r.Header.Header()
		for name, values := range r.Trailer.Header() {
			h[name] = append(h[name], values...)
		}
		r.Header, r.Trailer = idempotency.NewFields(h), ""
	})},
	{"omission is lost", "response/omitted", responses(func(r *idempotency.Response) { r.Omitted = false })},
	{"returned memory is reused", "response/memory of the store", alteration{reuse: true}},
}

// alteration is a fault between a store and its callers.
type alteration struct {
	key      func(idempotency.Key) idempotency.Key
	attempt  func(idempotency.ClaimRequest) idempotency.ClaimRequest
	record   func(*idempotency.Record)
	response func(*idempotency.Response) // of a copy, before it is stored
	reuse    bool                        // of the memory of the response that was returned before
}

func keys(join func(idempotency.Key) string) alteration {
	return alteration{key: func(k idempotency.Key) idempotency.Key { return idempotency.Key{ID: join(k)} }}
}

func parts(change func(string) string) alteration {
	return alteration{key: func(k idempotency.Key) idempotency.Key {
		return idempotency.Key{User: change(k.User), Endpoint: change(k.Endpoint), ID: change(k.ID)}
	}}
}

// hashTag returns what a Redis cluster hashes of a key.
func hashTag(s string) string {
	_, after, opened := strings.Cut(s, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !opened || !closed || tag == "" {
		return s
	}
	return tag
}

func records(change func(*idempotency.Record)) alteration { return alteration{record: change} }

func responses(change func(*idempotency.Response)) alteration { return alteration{response: change} }

func bodies(change func([]byte) []byte) alteration {
	return responses(func(r *idempotency.Response) { r.Body = change(r.Body) })
}

func fields(change func(http.Header) http.Header) alteration {
	return responses(func(r *idempotency.Response) {
		if h := r.Header.Header(); h != nil {
			r.Header = idempotency.NewFields(change(h))
		}
	})
}

func values(change func([]string) []string) alteration {
	return fields(func(h http.Header) http.Header {
		for name, values := range h {
			if len(values) > 0 {
				h[name] = change(values)
			}
		}
		return h
	})
}

func eachValue(change func(string) string) alteration {
	return values(func(v []string) []string {
		for i := range v {
			v[i] = change(v[i])
		}
		return v
	})
}

// altered is a store with an alteration in front.
type altered struct {
	store idempotency.Store
	alteration
	last *idempotency.Response
}

func (s *altered) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.key != nil {
		key = s.key(key)
	}
	if s.attempt != nil {
		a = s.attempt(a)
	}
	record, claim, err := s.store.Begin(ctx, key, a)
	if err == nil && s.record != nil {
		s.record(&record)
	}
	if s.reuse && record.Response != nil {
		if s.last != nil {
			copy(s.last.Body, record.Response.Body)
		}
		s.last = record.Response
	}
	if claim != nil {
		claim = alteredClaim{claim, s}
	}
	return record, claim, err
}

type alteredClaim struct {
	idempotency.Claim
	store *altered
}

func (c alteredClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if c.store.response != nil {
		resp = resp.Clone()
		c.store.response(&resp)
	}
	return c.Claim.Complete(ctx, resp, ttl)
}
