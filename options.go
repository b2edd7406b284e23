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

// Abandoned says what happens to an operation after its owner has disappeared: the lease has lapsed, and no answer is
// stored. Nobody knows how far the handler came. Neither choice gives exactly once for effects outside of the store.
type Abandoned int

const (
	// ReExecute lets the next request with the key take over. It runs the handler again, with the next attempt number.
	// Effects happen at least once.
	ReExecute Abandoned = iota

	// Refuse refuses every further request with the key, with outcome-unknown, until the record expires, or until Reconcile
	// or an operator says what has happened (see [Resolver]). Effects happen at most once.
	Refuse
)

// Options are the settings of a [Middleware]. The zero value of each field is its default.
type Options struct {
	// Headers are the names of the request header that carries the key. A request may send several of them if all carry
	// the same key. If they differ, it is refused with key-invalid. Nil means Idempotency-Key.
	Headers []string

	// Methods are the guarded methods. Requests with other methods pass untouched, with or without a key. If outer
	// middleware overrides the method of a request, the new method counts. Such middleware belongs outside, because a GET
	// that becomes a POST inside passes unguarded. Nil means POST and PATCH.
	Methods []string

	// Required refuses requests of a guarded method that have no key, with key-missing. By default they pass untouched and
	// unprotected.
	Required bool

	// ValidateKey checks a key further, as [ValidateUUID] does. The syntax has been checked before. If it returns an error,
	// the request is refused with key-invalid. The client sees the text of the error, so the text must not hold secrets.
	// Nil accepts every key.
	ValidateKey func(id string) error

	// Endpoint returns the scope of a key. Nil means [DefaultEndpoint]: the method and the path, but not the host.
	Endpoint func(*http.Request) string

	// Fingerprint detects a key reused for a different request. Nil means [FingerprintRaw]. Package fingerprint has
	// alternatives for JSON and forms.
	Fingerprint FingerprintFunc

	// FingerprintHeaders are header fields of the request that change its meaning, such as Stripe-Account. They become a
	// part of the fingerprint, also if Fingerprint is a function of your own. If a retry has another value, or does not
	// have the field, it is refused with key-reused. Values are compared as they are sent, line by line. Content-Encoding,
	// X-HTTP-Method, X-HTTP-Method-Override and X-Method-Override are always included.
	//
	// Leave out fields that change from one attempt to the next, such as those of tracing. Leave out Authorization too,
	// because tokens are renewed: the [UserFunc] tells the callers apart.
	FingerprintHeaders []string

	// MaxBody is the largest body of a guarded request, in bytes. A larger one is refused with body-too-large. The body is
	// held in memory until the handler has returned, or a replay begins. Zero means 1 MiB.
	MaxBody int64

	// MaxBodies limits the memory that the bodies of all guarded requests take together, in bytes. At the limit, a request
	// is refused with overloaded. A request counts with the size of its buffer: first what it announces, but at least 512
	// bytes and at most 32 KiB; then up to twice its body. Zero means no limit.
	MaxBodies int64

	// MaxUserBodies limits the memory that the bodies of one user take, in the same way. Zero means half of MaxBodies, or
	// the buffer of a body of MaxBody if that is more. So set MaxBodies to several times MaxBody, because otherwise one
	// user can take all of it. With [SingleUser], set MaxUserBodies to MaxBodies: then the one user may take all of it.
	MaxUserBodies int64

	// MaxResponse is the largest response body that is stored, in bytes. The client gets a larger answer whole. A retry
	// then gets not-replayable, and the handler does not run again. The same holds for an answer whose header and trailer
	// together have more than 64 KiB, and for one with an invalid Content-Length: two values that differ, or a sign. Zero
	// means 1 MiB.
	MaxResponse int64

	// Storable reports whether an answer completes the operation, and so is stored. If it returns false, the client gets
	// the answer as it is, and may try again with the same key. Storable gets the complete response. The body is left out
	// if it cannot be stored. Storable must not modify or retain the response. A verdict of the handler overrides Storable,
	// see [Decide]. Nil means [DefaultStorable].
	Storable func(*Response) bool

	// Replay is called before an answer is replayed. It gets the request that is to get the answer, and the answer. Use it
	// to check rights that may have been withdrawn. If it returns an error, the request is refused with replay-refused. If
	// the error is or wraps an [*Error], that is the answer. The handler does not run in any case. Nil allows every replay.
	//
	// Until it returns, Replay can read the body of the request from its start. Replay must not modify or retain the
	// response. It is not called if there is no answer to send, as for not-replayable.
	Replay func(*http.Request, *Response) error

	// OmitHeaders are response fields that must not be stored, such as Set-Cookie. The first client gets them, but a
	// replay does not.
	OmitHeaders []string

	// ReuseStatus is the status code of key-reused. Zero means 409;
	// draft-ietf-httpapi-idempotency-key-header-07 asks for 422.
	ReuseStatus int

	// ProblemBase is the address of the types of problems: the type of a refusal is ProblemBase followed by a code, such as
	// key-missing. It must end in / or #. Empty means https://github.com/idempotency-go/idempotency#. Choose it before clients
	// rely on the types.
	ProblemBase string

	// Stream sends the answer as the handler writes it, with Flush, and stores it afterwards. If the process crashes in
	// between, a client may have seen an answer, or a part of it, that is not stored. By default the answer is stored
	// before its first byte is sent.
	Stream bool

	// CancelWithClient ends the context of the handler together with that of the request, as net/http does when the client
	// leaves. By default the handler goes on and its answer is stored, so that a retry gets it. The context then ends at
	// the deadline that it inherited, when the claim is lost, and when the handler has returned. Stream implies
	// CancelWithClient.
	CancelWithClient bool

	// ErrorHandler answers refused requests. Nil means [WriteProblem].
	ErrorHandler func(http.ResponseWriter, *http.Request, *Error)

	// TTL and all fields below are as in [RunnerOptions], which says what each does.
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

// RunnerOptions are the settings of a [Runner]. The zero value of each field is its default.
type RunnerOptions struct {
	// TTL is how long an answer is kept, counted from its completion. A request with the key after that runs
	// the handler again. Zero means 24 hours. TTL must not be shorter than Lease, nor longer than 100 years.
	//
	// The record of an operation that failed is kept for TTL too, so that a changed request is refused. If no attempt has done
	// anything, no record is kept: see [Free].
	TTL time.Duration

	// Lease is how long a key stays blocked after its process dies. The owner renews the lease for as long as the handler
	// runs. Zero means 30 seconds.
	Lease time.Duration

	// Wait is how long a request waits for a running attempt with its key. If that attempt completes, the request gets its
	// answer. If the attempt is still running after Wait, the request is refused with in-progress. Zero means that it is
	// refused at once. A [Middleware] also refuses a request at once if 128 requests of its user are waiting already.
	Wait time.Duration

	// Abandoned says what happens to an operation whose owner disappeared. The default is [ReExecute].
	Abandoned Abandoned

	// Reconcile finds out what became of an abandoned operation, with [Refuse]: its owner disappeared, panicked, or decided
	// Unknown. Reconcile asks the system that has the effects, such as a payment provider for the charge of
	// [Operation.DownstreamKey]. The next request with the same key and content calls Reconcile, and the store ends the
	// operation as if an operator had resolved it (see [Resolver]):
	//
	//   - A response: the operation has happened. The response is stored, with its Note, and replayed. If it is Omitted,
	//     requests get not-replayable.
	//   - Nil: the operation has not happened. The request runs the handler, unless another one has been faster.
	//   - An error: nobody knows. The operation stays as it was, and the request is refused with outcome-unknown. The same
	//     holds if the response is invalid, see [Resolution.Validate].
	//
	// A question is no attempt: it holds no claim, and an operator can resolve the operation meanwhile. The Operation has the
	// attempt that was abandoned. One request of the process asks about an operation at a time. Others wait for the end of
	// the question, as Wait permits, or are refused with outcome-unknown. Each request asks once at most. Several processes
	// may ask at the same time; the first answer counts.
	//
	// The context of Reconcile ends after half a lease, and not with the client. An answer that comes later counts as an
	// error. A panic goes on to the server, and the operation stays as it was. Nil asks nobody. The store, or one behind it
	// (see [As]), must be a [Resolver].
	Reconcile func(context.Context, Operation) (*Response, error)

	// StoreTimeout bounds each step of the store, retries included. Zero means 5 seconds, or a third of Lease if that is
	// less. StoreTimeout must not be longer than Lease. A renewal of a lease never takes longer than a third of Lease.
	//
	// An answer that the store does not take in this time is sent, and then stored in the background.
	StoreTimeout time.Duration

	// FailOpen runs the handler without protection while the store is down. By default, requests are then refused with
	// store-unavailable. The handler still has its [Operation], so a provider that is given [Operation.DownstreamKey] acts
	// once. Steps in transactions are refused, see step.ErrNoClaim. Some requests are refused in any case:
	//
	//   - those for which the store has no room, or no free connection;
	//   - those whose record cannot be read;
	//   - those of a user who has used up a share of the store;
	//   - those that have waited for another attempt, because that attempt may still be running;
	//   - all, if the store cannot be used on its server, and says so by [errors.ErrUnsupported].
	FailOpen bool

	// Observer is told of every outcome. Nil means no observer.
	Observer Observer

	// Logger is told of what should not happen, such as a store that fails, a claim that was lost, or an attempt that ended
	// without an answer after it may have done something. Nil means [slog.Default] at the time of the event. A line has the
	// endpoint and the ID of the operation, and neither the user nor the client's key. Its context is that of the Observer.
	Logger *slog.Logger
}

const (
	defaultHeader = "Idempotency-Key"
	defaultLimit  = 1 << 20
)

// withDefaults returns the options with every default in place, sharing no memory with o.
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
	o.FingerprintHeaders = selectors(o.FingerprintHeaders)
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
	return o
}

// validate returns every fault of options that have their defaults.
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
		faults.check(!outsideOfHeader(name), "FingerprintHeaders: %q is not in the header that net/http shows", name)
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
	return errors.Join(faults...)
}

// hasOtherMeaning reports whether requests carry the field for another purpose, so that its value is no key. Name is
// in canonical form.
func hasOtherMeaning(name string) bool {
	switch name {
	case "Authorization", "Connection", "Cookie", "Host", "Proxy-Authorization", "Trailer", "Transfer-Encoding":
		return true
	}
	return strings.HasPrefix(name, "Content-")
}

// outsideOfHeader reports whether net/http keeps the field of a request elsewhere. Name is in canonical form.
func outsideOfHeader(name string) bool {
	switch name {
	case "Host", "Trailer", "Transfer-Encoding":
		return true
	}
	return false
}

// runner returns the options that Options has in common with RunnerOptions.
func (o Options) runner() RunnerOptions {
	return RunnerOptions{
		TTL: o.TTL, Lease: o.Lease, Wait: o.Wait, Abandoned: o.Abandoned, Reconcile: o.Reconcile,
		StoreTimeout: o.StoreTimeout, FailOpen: o.FailOpen, Observer: o.Observer, Logger: o.Logger,
	}
}

func (o RunnerOptions) withDefaults() RunnerOptions {
	o.TTL = cmp.Or(o.TTL, 24*time.Hour)
	o.Lease = cmp.Or(o.Lease, 30*time.Second)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, min(5*time.Second, o.Lease/3))
	return o
}

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

// validateStore returns the faults that store and the stores behind it report, of their options and of opts.
func validateStore(store Store, opts RunnerOptions) error {
	if store == nil {
		return errors.New("idempotency: Store is nil")
	}
	var faults faults
	faults.check(isComparable(store), "a Store of type %T cannot be compared: use a pointer to it", store)
	for store != nil {
		if s, ok := store.(Validator); ok {
			faults = append(faults, s.Validate(opts))
		}
		wrapper, ok := store.(interface{ Unwrap() Store })
		if !ok {
			break
		}
		store = wrapper.Unwrap()
	}
	return errors.Join(faults...)
}

// isComparable reports whether store can be compared by ==, by which carriesOut sees that a request is guarded twice. A pointer can
// be compared, but a struct with a slice cannot.
func isComparable(store Store) (ok bool) {
	defer func() { ok = recover() == nil }()
	_ = map[Store]bool{store: true} // panics if not
	return true
}

// longestTTL leaves every clock room to count up to.
const longestTTL = 100 * 365 * 24 * time.Hour

// faults collects what is wrong with a configuration, to report it all at once.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf("idempotency: "+format, args...))
	}
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2, as field names and methods are.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		alphanumeric := '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !alphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
