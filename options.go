package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Abandoned decides about an operation whose owner has disappeared: the lease has lapsed without a stored answer, and
// the progress of the handler is unknown. Neither choice gives exactly once for effects outside of the store.
type Abandoned int

const (
	// ReExecute lets the next request with the key take over. The handler runs again, with the next attempt number.
	// Effects happen at least once.
	ReExecute Abandoned = iota

	// Refuse refuses all further requests with the key, with outcome-unknown, until the record expires, or until
	// Reconcile or an operator resolves the operation (see [Resolver]). Effects happen at most once.
	Refuse
)

// Options are the settings of a [Middleware]. The zero value of each field is the default.
type Options struct {
	// Headers are the names of the request fields that may carry the key. A request with several of the fields must
	// have the same key in all of them, and is refused with key-invalid otherwise. Nil means Idempotency-Key.
	Headers []string

	// Methods are the guarded methods. Requests with other methods pass untouched, with or without a key. If outer
	// middleware overrides the method of a request, the new method counts. Mount such middleware outside, because a GET
	// that becomes a POST inside passes unguarded. Nil means POST and PATCH. Safe methods, such as GET and QUERY (RFC 10008,
	// section 2), need no key.
	Methods []string

	// Required refuses requests of a guarded method without a key, with key-missing. By default such requests pass
	// untouched and unprotected.
	Required bool

	// ValidateKey checks a key further after the check of the syntax, as [ValidateUUID] does. If ValidateKey returns an
	// error, the request is refused with key-invalid. The client sees the text of the error, so the text must be free
	// of secrets. Nil accepts every key.
	ValidateKey func(id string) error

	// Endpoint returns the scope of a key. Nil means [DefaultEndpoint]: the method and the path, without the host.
	Endpoint func(*http.Request) string

	// Fingerprint detects a key reused for another request. Nil means [FingerprintRaw]. Package fingerprint has
	// alternatives for JSON and forms.
	Fingerprint FingerprintFunc

	// FingerprintHeaders are request fields that change the meaning of the request, such as Stripe-Account. The fields
	// become a part of the fingerprint, even with a custom Fingerprint function. A retry with a different value, or
	// without the field, is refused with key-reused. Values are compared as sent, line by line. Content-Encoding,
	// X-HTTP-Method, X-HTTP-Method-Override and X-Method-Override are always included.
	//
	// Leave out fields that change from one attempt to the next, such as fields of tracing. Leave out Authorization
	// too, because tokens are renewed: the [UserFunc] tells the callers apart.
	FingerprintHeaders []string

	// MaxBody is the largest body of a guarded request, in bytes. A larger body is refused with body-too-large. The
	// body stays in memory until the handler has returned, or a replay begins. Zero means 1 MiB.
	MaxBody int64

	// MaxBodies limits the memory for the bodies of all guarded requests together, in bytes. At the limit, a request is
	// refused with overloaded. A request counts with the size of its buffer: first the announced length, but at least
	// 512 bytes and at most 32 KiB, and later up to twice the body. Zero means no limit.
	MaxBodies int64

	// MaxUserBodies limits the memory for the bodies of one user in the same way. Zero means half of MaxBodies, or the
	// buffer for a body of MaxBody bytes if larger. Set MaxBodies to several times MaxBody, because otherwise one user
	// can take all of the memory. With [SingleUser], set MaxUserBodies to MaxBodies, because the one user may take all
	// of the memory.
	MaxUserBodies int64

	// MaxResponse is the largest response body that is stored, in bytes. The client gets a larger answer whole, but
	// only its status is stored: a retry is refused with not-replayable, and the handler does not run again. The same
	// happens to an answer if header and trailer together have more than 64 KiB, or if the Content-Length is invalid:
	// two values that differ, or a sign. Zero means 1 MiB.
	MaxResponse int64

	// Storable reports whether an answer completes the operation, so that the answer is stored. If Storable returns
	// false, the client gets the answer as usual, and may try again with the same key. Storable gets the complete
	// response, but without the body if the body cannot be stored. Storable must neither modify nor retain the
	// response. A verdict of the handler overrides Storable, see [Decide]. Nil means [DefaultStorable].
	Storable func(*Response) bool

	// Replay is called before an answer is replayed, with the new request and the answer. Use Replay to check rights
	// that may have been withdrawn. If Replay returns an error, the request is refused with replay-refused. If the
	// error is or wraps an [*Error], the client gets that Error. The handler never runs in either case. Nil allows
	// every replay.
	//
	// Until Replay returns, Replay can read the body of the request from the start. Replay must neither modify nor
	// retain the response. Replay is only called for an answer that can be sent, so a request refused with
	// not-replayable does not reach Replay.
	Replay func(*http.Request, *Response) error

	// OmitHeaders are response fields to leave out of the stored answer, such as Set-Cookie. The first client gets the
	// fields, but replays do not.
	OmitHeaders []string

	// ReuseStatus is the status code of key-reused. Zero means 409; draft-ietf-httpapi-idempotency-key-header-07 asks
	// for 422.
	ReuseStatus int

	// ProblemBase is the base address of problem types: the type of a refusal is ProblemBase followed by a code, such
	// as key-missing. ProblemBase must end in / or #. Choose ProblemBase before clients rely on the types. Empty means
	// https://idempotency-go.github.io/idempotency/problems#.
	ProblemBase string

	// Stream sends the answer as the handler writes and flushes, and stores the answer afterwards. If the process
	// crashes in between, a client may have seen a part of an answer, or a whole answer, that is not stored. By default
	// the answer is stored before its first byte is sent.
	Stream bool

	// CancelWithClient ends the context of the handler together with the context of the request, as net/http does when
	// the client leaves. By default the handler goes on and the answer is stored for a retry. The context then ends at
	// the inherited deadline, when the claim is lost, and when the handler has returned. Stream implies
	// CancelWithClient.
	CancelWithClient bool

	// ErrorHandler answers refused requests. Nil means [WriteProblem].
	ErrorHandler func(http.ResponseWriter, *http.Request, *Error)

	// KeyInfo is what answers and refusals tell a client about its key.
	KeyInfo KeyInfo

	// TTL and all fields below are the same as in [RunnerOptions].
	TTL          time.Duration
	Lease        time.Duration
	Wait         time.Duration
	Abandoned    Abandoned
	Reconcile    func(context.Context, Operation) (*Response, error)
	StoreTimeout time.Duration
	FailOpen     bool
	Observer     Observer
	Logger       *slog.Logger
}

// KeyInfo is what answers and refusals of a [Middleware] tell a client about its key. By default they tell nothing.
type KeyInfo struct {
	// StatusURL is the address at which the service has mounted [Middleware.Status]: an absolute URL, or a reference that
	// clients resolve against the URL of their request, such as /payments/status. The refusals outcome-unknown and
	// not-replayable then have the member statusUrl: StatusURL with a query that asks about the refused request. If
	// StatusURL is set, the store must be an [Inspector].
	StatusURL string

	// BeganField is the name of a response field with the time at which the first attempt at the operation began, as an
	// HTTP date (RFC 9110, section 5.6.7). An answer has the field if the answer is stored before it is sent, and each
	// replay has the same value. The field itself is never stored, even if the handler has set a field with this name.
	BeganField string

	// KeptUntilField is the name of a response field with the time until which the key is kept, as an HTTP date by the
	// clock of this process: until then, a retry gets the same answer. The same answers as for BeganField have the
	// field, except replays from a store that does not know the time. With a [RedisStore], each replay takes one more
	// round trip.
	KeptUntilField string
}

// fieldNames returns the names of the response fields that are set.
func (i KeyInfo) fieldNames() []string {
	return slices.DeleteFunc([]string{i.BeganField, i.KeptUntilField}, func(name string) bool { return name == "" })
}

// RunnerOptions are the settings of a [Runner]. The zero value of each field is the default.
type RunnerOptions struct {
	// TTL is how long an answer is kept, counted from the completion of the operation. A later request with the key
	// runs the handler again. Zero means 24 hours. TTL must be at least Lease and at most 100 years.
	//
	// The record of a failed operation is kept for TTL too, so that a changed request is refused. If no attempt has had
	// an effect, no record is kept: see [Free].
	TTL time.Duration

	// Lease is how long a key stays blocked after the process of its owner dies. The owner renews the lease for as long
	// as the handler runs. Zero means 30 seconds.
	Lease time.Duration

	// Wait is how long a request waits for a running attempt with the same key. If the attempt completes in time, the
	// request gets the answer, and otherwise the request is refused with in-progress. A [Middleware] also refuses a
	// request at once if 128 requests of the user are waiting already. Zero means no waiting.
	Wait time.Duration

	// Abandoned decides about an operation whose owner has disappeared. The default is [ReExecute].
	Abandoned Abandoned

	// Reconcile finds out whether an abandoned operation has happened. An operation is abandoned, with [Refuse], if its
	// owner disappeared, panicked, or decided Unknown. Reconcile asks the system with the effects, such as a payment
	// provider for the charge of [Operation.DownstreamKey]. The next request with the same key and content calls
	// Reconcile, and the store resolves the operation by the answer, as for an operator (see [Resolver]):
	//
	//   - A response: the operation has happened. The response is stored, with its Note, and replayed. If the
	//     response is Omitted, requests are refused with not-replayable.
	//   - Nil: the operation has not happened. The request runs the handler, unless a concurrent request is faster.
	//   - An error: the outcome stays unknown. The operation is unchanged, and the request is refused with
	//     outcome-unknown. An invalid response counts as an error, see [Resolution.Validate].
	//
	// Calling Reconcile is no attempt: the request holds no claim, and an operator can resolve the operation meanwhile.
	// The Operation has the number of the abandoned attempt. Within a process, one request at a time calls Reconcile
	// for an operation. Concurrent requests wait for the end of the call, as Wait permits, or are refused with
	// outcome-unknown. Each request calls Reconcile once at most. Several processes may call Reconcile at the same
	// time, and the first answer counts.
	//
	// The context of Reconcile ends after half a lease, and outlives the client. A later answer counts as an error. A
	// panic goes on to the server, and the operation is unchanged. The store, or a store behind the store (see [As]),
	// must be a [Resolver]. Nil means no reconciliation.
	Reconcile func(context.Context, Operation) (*Response, error)

	// StoreTimeout bounds each call of the store, retries included. Zero means 5 seconds, or a third of Lease if less.
	// StoreTimeout must be at most Lease. A renewal of a lease takes at most a third of Lease.
	//
	// An answer that the store does not take in time is sent all the same, and stored in the background.
	StoreTimeout time.Duration

	// FailOpen runs the handler without protection while the store is down. By default, requests are then refused with
	// store-unavailable. The unprotected handler has its [Operation], so a provider that is given
	// [Operation.DownstreamKey] acts once. Steps in transactions are refused, see step.ErrNoClaim. Some requests are
	// refused in any case:
	//
	//   - if the store has no room, or no free connection;
	//   - if the record is unreadable;
	//   - if the user has used up a share of the store;
	//   - if the request has waited for another attempt, because that attempt may still be running;
	//   - if the store cannot be used on its server, and says so by [errors.ErrUnsupported].
	FailOpen bool

	// Observer gets an [Event] for every outcome. Nil means no observer.
	Observer Observer

	// Logger gets the events that should not happen, such as a failing store, a lost claim, or an attempt that ended
	// without an answer after a possible effect. A line has the endpoint and the ID of the operation, but neither the
	// user nor the client's key. The context of a line is the context of the Observer. Nil means [slog.Default] at the
	// time of the event.
	Logger *slog.Logger
}

const (
	defaultHeader = "Idempotency-Key"
	defaultLimit  = 1 << 20
)

// withDefaults returns a copy of o with all defaults. The copy shares no slices with o.
func (o Options) withDefaults() Options {
	if o.Headers == nil {
		o.Headers = []string{defaultHeader}
	}
	o.Headers = slices.Clone(o.Headers)
	for i, name := range o.Headers {
		o.Headers[i] = http.CanonicalHeaderKey(name)
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Methods = slices.Clone(o.Methods)
	o.FingerprintHeaders = mergeSelectors(o.FingerprintHeaders)
	o.OmitHeaders = slices.Clone(o.OmitHeaders)
	if o.Fingerprint == nil {
		o.Fingerprint = FingerprintRaw
	}
	o.MaxBody = cmp.Or(o.MaxBody, defaultLimit)
	if o.MaxBodies != 0 {
		o.MaxUserBodies = cmp.Or(o.MaxUserBodies, max(o.MaxBodies/2, bounds.Room(o.MaxBody)))
	}
	o.MaxResponse = cmp.Or(o.MaxResponse, defaultLimit)
	if o.Storable == nil {
		o.Storable = DefaultStorable
	}
	o.ReuseStatus = cmp.Or(o.ReuseStatus, http.StatusConflict)
	o.ProblemBase = cmp.Or(o.ProblemBase, problemBase)
	if o.ErrorHandler == nil {
		o.ErrorHandler = WriteProblem
	}
	o.KeyInfo.BeganField = http.CanonicalHeaderKey(o.KeyInfo.BeganField)
	o.KeyInfo.KeptUntilField = http.CanonicalHeaderKey(o.KeyInfo.KeptUntilField)
	return o
}

// validate returns all faults of options with defaults.
func (o Options) validate() error {
	var faults faults
	faults.check(len(o.Headers) > 0, "Headers is empty: no request would have a key")
	for _, name := range o.Headers {
		faults.check(isToken(name), "Headers: %q is not a field name", name)
		faults.check(!hasOtherMeaning(name), "Headers: %q has a meaning of its own", name)
	}
	faults.check(len(o.Methods) > 0, "Methods is empty: nothing would be guarded")
	for _, method := range o.Methods {
		faults.check(isToken(method), "Methods: %q is not a method", method)
		faults.check(method == strings.ToUpper(method), "Methods: %q is not in capitals, as methods are", method)
	}
	for _, name := range o.FingerprintHeaders {
		faults.check(isToken(name), "FingerprintHeaders: %q is not a field name", name)
		faults.check(!slices.Contains(o.Headers, name), "FingerprintHeaders: %q has the key", name)
		faults.check(!isOutsideHeader(name), "FingerprintHeaders: %q is not in the header that net/http shows", name)
	}
	for _, name := range o.OmitHeaders {
		faults.check(isToken(name), "OmitHeaders: %q is not a field name", name)
	}
	faults.check(o.MaxBody > 0, "MaxBody %d is negative", o.MaxBody)
	faults.check(o.MaxBodies == 0 || o.MaxBodies >= bounds.Room(o.MaxBody),
		"MaxBodies %d is less than %d, the buffer of a body of MaxBody %d", o.MaxBodies, bounds.Room(o.MaxBody), o.MaxBody)
	faults.check(o.MaxUserBodies == 0 || o.MaxUserBodies >= bounds.Room(o.MaxBody),
		"MaxUserBodies %d is less than %d, the buffer of a body of MaxBody %d", o.MaxUserBodies, bounds.Room(o.MaxBody), o.MaxBody)
	faults.check(o.MaxResponse > 0, "MaxResponse %d is negative", o.MaxResponse)
	_, err := url.Parse(o.ProblemBase)
	isBase := err == nil && (strings.HasSuffix(o.ProblemBase, "/") || strings.HasSuffix(o.ProblemBase, "#"))
	faults.check(isBase, "ProblemBase %q is no URL that ends in / or #", o.ProblemBase)
	faults.check(o.ReuseStatus >= 400 && o.ReuseStatus <= 499, "ReuseStatus %d is no 4xx status", o.ReuseStatus)
	return errors.Join(append(faults, o.KeyInfo.validate())...)
}

// validate returns all faults of a KeyInfo whose names are in canonical form.
func (i KeyInfo) validate() error {
	var faults faults
	address, err := url.Parse(i.StatusURL)
	isAddress := err == nil && !strings.Contains(i.StatusURL, "#") && slices.Contains([]string{"", "http", "https"}, address.Scheme)
	faults.check(isAddress, "KeyInfo.StatusURL %q is no address of HTTP without a fragment", i.StatusURL)
	for _, name := range i.fieldNames() {
		faults.check(isToken(name), "KeyInfo: %q is not a field name", name)
		faults.check(!isResponseField(name) && !hasOtherMeaning(name), "KeyInfo: %q has a meaning of its own", name)
	}
	faults.check(i.BeganField == "" || i.BeganField != i.KeptUntilField, "KeyInfo: two fields have the name %q", i.BeganField)
	return errors.Join(faults...)
}

// isResponseField reports whether HTTP or this package gives the field a meaning in responses. The parameter name is in
// canonical form.
func isResponseField(name string) bool {
	switch name {
	case "Age", "Allow", "Cache-Control", "Etag", "Expires", "Last-Modified", "Link", "Location", "Retry-After", "Server",
		"Set-Cookie", "Strict-Transport-Security", "Vary", "Www-Authenticate", replayMarker:
		return true
	}
	return isConnectionField(name, name)
}

// hasOtherMeaning reports whether HTTP gives the field a meaning that rules out a key as the value. The parameter name
// is in canonical form.
func hasOtherMeaning(name string) bool {
	switch name {
	case "Authorization", "Connection", "Cookie", "Host", "Proxy-Authorization", "Trailer", "Transfer-Encoding":
		return true
	}
	return strings.HasPrefix(name, "Content-")
}

// isOutsideHeader reports whether net/http keeps the request field outside of Request.Header. The parameter name is in
// canonical form.
func isOutsideHeader(name string) bool {
	switch name {
	case "Host", "Trailer", "Transfer-Encoding":
		return true
	}
	return false
}

// runnerOptions returns the options that Options and RunnerOptions have in common.
func (o Options) runnerOptions() RunnerOptions {
	return RunnerOptions{
		TTL: o.TTL, Lease: o.Lease, Wait: o.Wait, Abandoned: o.Abandoned, Reconcile: o.Reconcile,
		StoreTimeout: o.StoreTimeout, FailOpen: o.FailOpen, Observer: o.Observer, Logger: o.Logger,
	}
}

// withDefaults returns a copy of o with all defaults.
func (o RunnerOptions) withDefaults() RunnerOptions {
	o.TTL = cmp.Or(o.TTL, 24*time.Hour)
	o.Lease = cmp.Or(o.Lease, 30*time.Second)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, min(5*time.Second, o.Lease/3))
	return o
}

// validate returns all faults of options with defaults.
func (o RunnerOptions) validate() error {
	var faults faults
	faults.check(o.Lease >= time.Millisecond, "Lease %v is shorter than a millisecond", o.Lease)
	faults.check(o.TTL >= o.Lease, "TTL %v is shorter than Lease %v", o.TTL, o.Lease)
	faults.check(o.TTL <= longestTTL, "TTL %v is longer than %v", o.TTL, longestTTL)
	faults.check(o.Wait >= 0, "Wait %v is negative", o.Wait)
	faults.check(o.StoreTimeout > 0, "StoreTimeout %v is negative", o.StoreTimeout)
	faults.check(o.StoreTimeout <= o.Lease, "StoreTimeout %v is longer than Lease %v", o.StoreTimeout, o.Lease)
	faults.check(o.Abandoned == ReExecute || o.Abandoned == Refuse, "Abandoned %d is unknown", o.Abandoned)
	faults.check(o.Reconcile == nil || o.Abandoned == Refuse, "Reconcile without Abandoned: Refuse: nothing would ask it")
	return errors.Join(faults...)
}

// validateStore returns the faults that store, and each store behind store, reports about its own options and about
// opts.
func validateStore(store Store, opts RunnerOptions) error {
	if store == nil {
		return errors.New("idempotency: Store is nil")
	}
	var faults faults
	faults.check(isComparable(store), "a Store of type %T cannot be compared: use a pointer to it", store)
	for store != nil {
		if validator, ok := store.(Validator); ok {
			faults = append(faults, validator.Validate(opts))
		}
		wrapper, ok := store.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		store = wrapper.Unwrap()
	}
	return errors.Join(faults...)
}

// isComparable reports whether store can be compared by ==. isWithinOperation compares stores to recognise a request
// that is guarded twice. A pointer can be compared, but a struct with a slice cannot.
func isComparable(store Store) (ok bool) {
	defer func() { ok = recover() == nil }()
	_ = map[Store]bool{store: true} // a map panics if its key cannot be compared
	return true
}

// longestTTL keeps expiry times within the range of all clocks.
const longestTTL = 100 * 365 * 24 * time.Hour

// faults collects the faults of a configuration, because the constructor reports all faults at once.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf("idempotency: "+format, args...))
	}
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2. Field names and methods are tokens.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		isAlphanumeric := '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !isAlphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
