package keyfrom

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// Content is for clients that send no key. For the length of window, requests of one user to one endpoint with the same
// content are one operation, so a button that is pressed twice, or a form that is sent twice, takes effect once.
//
// Content cannot tell a repetition from a second order of the same thing. A user who really wants to pay the same amount
// twice within window gets the first answer again, with the field Idempotent-Replayed. Let clients that may want that send
// a key: a request with a key of its own is an operation of its own, whatever its content.
//
// The function same returns the content that counts, for example:
//
//	keyfrom.Content(2*time.Minute, fingerprint.Must(fingerprint.JSONOnly("/cart", "/amount", "/card")))
//
// Select everything that the handler acts on, because requests that differ in other values get the first answer. Leave out
// what changes when a user presses again, such as a time or a token of the form. The fields of Options.FingerprintHeaders
// and the content coding count as well. An error of same refuses the request with body-invalid.
//
// The window begins when the first request ends, and repetitions do not prolong it. While the first request runs, however
// long, a repetition waits (Options.Wait) or is refused with in-progress. So set Wait, because a client without keys seldom
// knows what to do with a refusal. The window has no fixed boundaries in time: two requests are one operation if the second
// arrives within window. But a third one that arrives after the window is a new operation, even directly after the second.
//
// Each operation has a random key of its own, so the next order of the same thing has another [idempotency.Operation].ID
// and DownstreamKey. The store keeps the random key for the window in a record of its own, as the result of a step (see
// package step). That costs three calls of the store more for the first request, and one for a repetition.
//
// The handler finds the random key in the header. Options apply as to requests with a key, except that Storable defaults to
// answers of [idempotency.DefaultStorable] with a status below 400, because a corrected request with the same content must
// be able to run after a refusal. Fingerprint and ValidateKey do not apply. The number of repetitions of a user that wait at
// a time is unlimited, so limit requests in outer middleware if users are strangers.
//
// New reports these faults: a window shorter than Options.Lease, a window longer than Options.TTL, and a safe method in
// Options.Methods, such as GET, because a repeated question wants a new answer.
func Content(window time.Duration, same idempotency.FingerprintFunc) Source {
	return Source{places: places{content: &contentRule{window, same}}}
}

type contentRule struct {
	window         time.Duration
	compareContent idempotency.FingerprintFunc
}

// contentGuard guards requests without a key.
type contentGuard struct {
	*contentRule
	opts       idempotency.Options
	middleware *idempotency.Middleware // guards the operation, by its random key
	keyRunner  *idempotency.Runner     // keeps the random key of the operation, by the content
}

// newContentGuard returns the guard for rule, which has no faults. The parameter opts is valid for [idempotency.New].
func newContentGuard(
	store idempotency.Store, user idempotency.UserFunc, opts idempotency.Options, rule *contentRule,
) (*contentGuard, error) {
	withDefaults := withDefaults(opts)
	if opts.Storable == nil {
		opts.Storable = func(answer *idempotency.Response) bool {
			return answer.Status < 400 && idempotency.DefaultStorable(answer)
		}
	}
	opts.Required, opts.ValidateKey, opts.Fingerprint = true, nil, rule.compareContent
	middleware, err := idempotency.New(store, user, opts)
	if err != nil {
		return nil, err
	}
	keyRunner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		TTL: rule.window, Lease: opts.Lease, Wait: opts.Wait, StoreTimeout: opts.StoreTimeout, FailOpen: opts.FailOpen,
		Observer: observeRefusals(opts.Observer), Logger: opts.Logger,
	})
	if err != nil {
		return nil, err
	}
	return &contentGuard{rule, withDefaults, middleware, keyRunner}, nil
}

// findFaults returns all faults of the rule together with opts, which have the defaults of withDefaults.
func (rule *contentRule) findFaults(opts idempotency.Options) (faults error) {
	if rule.compareContent == nil {
		faults = errors.New("keyfrom: Content has no function: use idempotency.FingerprintRaw to compare all of the content")
	}
	if rule.window < opts.Lease {
		fault := fmt.Errorf("keyfrom: the window of Content, %v, is shorter than Lease %v", rule.window, opts.Lease)
		faults = errors.Join(faults, fault)
	}
	if rule.window > opts.TTL {
		faults = errors.Join(faults, fmt.Errorf("keyfrom: the window of Content, %v, is longer than TTL %v", rule.window, opts.TTL))
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY"} {
		if slices.Contains(opts.Methods, method) {
			faults = errors.Join(faults, fmt.Errorf("keyfrom: Content with %s in Methods would answer questions from memory", method))
		}
	}
	return faults
}

// observeRefusals returns an observer that passes only refusals on, because the other outcomes of the keyRunner concern
// the random key. The outcome of the operation itself comes from the middleware.
func observeRefusals(observer idempotency.Observer) idempotency.Observer {
	if observer == nil {
		return nil
	}
	return func(ctx context.Context, e idempotency.Event) {
		switch e.Outcome {
		case idempotency.OutcomeInProgress, idempotency.OutcomeClientLeft, idempotency.OutcomeQuotaExceeded,
			idempotency.OutcomeUnavailable:
			observer(ctx, e)
		}
	}
}

// shutDown ends the background work of the guard.
func (g *contentGuard) shutDown(ctx context.Context) error {
	return errors.Join(g.middleware.Shutdown(ctx), g.keyRunner.Shutdown(ctx))
}

// serve answers a request without a key. The keyRunner holds the content while the handler runs, so that a repetition
// waits. The random key is the result of a step: after a crash, a repetition gets the same key.
func (g *contentGuard) serve(w http.ResponseWriter, s *search, handler http.Handler) {
	key, err := g.keyOf(s)
	if err != nil {
		s.rejectRequest(w, s.request, err)
		return
	}
	isServed := false
	runOperation := func(ctx context.Context) (idempotency.Response, error) {
		id, err := step.Do(ctx, "key", newRandomKey)
		if err != nil {
			return idempotency.Response{}, err
		}
		isServed = true
		s.serve(handler, w, withKey(s.request.WithContext(ctx), g.opts.Headers[0], id))
		return idempotency.Response{Status: http.StatusOK, Body: []byte(id)}, nil
	}
	response, _, err := g.keyRunner.Do(s.request.Context(), key, []byte(key.ID), runOperation)
	switch {
	case isServed: // also if the claim of the content was lost meanwhile: the operation has a claim of its own
	case err != nil:
		s.refuseRequest(w, s.request, refuseContent(key, err))
	default:
		s.serve(handler, w, withKey(s.request, g.opts.Headers[0], string(response.Body)))
	}
}

func newRandomKey(context.Context) (string, error) { return uuid.NewString(), nil }

// selectorHeaders are the fields that [idempotency.Options] always adds to fingerprints.
var selectorHeaders = []string{"Content-Encoding", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}

// keyOf returns the key of the content: user, endpoint, and a digest of everything that counts. No other user has the key.
func (g *contentGuard) keyOf(s *search) (idempotency.Key, error) {
	content, err := g.compareContent(s.request, s.body.Bytes())
	if err != nil {
		return idempotency.Key{}, fmt.Errorf("%w: %w", idempotency.ErrBodyInvalid, err)
	}
	b := append([]byte("idempotency/content/1"), content[:]...)
	for _, name := range slices.Concat(selectorHeaders, g.opts.FingerprintHeaders) {
		values := s.request.Header.Values(name)
		b = binary.BigEndian.AppendUint64(b, uint64(len(values)))
		for _, value := range values {
			b = binary.BigEndian.AppendUint64(b, uint64(len(value)))
			b = append(b, value...)
		}
	}
	digest := sha256.Sum256(b)
	endpoint := g.opts.Endpoint
	if endpoint == nil {
		endpoint = idempotency.DefaultEndpoint
	}
	key := idempotency.Key{User: s.user, Endpoint: endpoint(s.request), ID: "content-" + hex.EncodeToString(digest[:])}
	return key.Bounded(), nil
}
