package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Service describes the service under test. URLs and Request are required. Each other field makes further checks possible.
//
// The functions that return requests must return equal requests for equal keys. A request needs the path of the route; the
// probe sets scheme and host from URLs. If a request lacks the header of the key, the probe adds the header with the bare
// key. A function that sets the header chooses the form, for example "key" in quotes. A function may also put the key in the
// body or the path; then the checks that leave out or change the header alone are not made.
type Service struct {
	// URLs are the base URLs of the instances of one service, without a password. The paths of requests are added to them.
	// With at least two URLs, the probe sends requests with one key to different instances.
	URLs []string

	// Request returns a valid request of the route under test. The service executes the request and answers with a
	// status below 400.
	Request func(key string) *http.Request

	// Other returns a valid request of the same route with another content, for example another amount.
	Other func(key string) *http.Request

	// OtherRoute returns a valid request with another path or another method.
	OtherRoute func(key string) *http.Request

	// Invalid returns a request that the service refuses with a 4xx, for example because a field is missing.
	Invalid func(key string) *http.Request

	// Failing returns a request that the service answers with a 5xx or 429.
	Failing func(key string) *http.Request

	// Slow returns a valid request that takes long, for example longer than the lease of the service. The checks that send
	// a request while the first one runs use Slow. Nil means Request.
	Slow func(key string) *http.Request

	// Stream returns a valid request with a long or streamed answer.
	Stream func(key string) *http.Request

	// As authenticates r as user, which is Owner or Stranger.
	As func(r *http.Request, user string)

	// Effects returns the total of effects, for example of rows or charges. Each operation must add exactly 1 to the total,
	// best before the answer: the checks wait for later effects, so they take longer. Only the probe may use the service
	// meanwhile. An error of Effects is tried once more, and then interrupts the check.
	Effects func(ctx context.Context) (int, error)

	// Kill ends the process of the service without a warning (SIGKILL), and may return before the process is gone. Start
	// starts the process again, and may return before the service accepts connections. The service runs when the probe
	// begins. Both or none must be set.
	Kill, Start func(ctx context.Context) error

	// Deaths is how often the process is killed. 0 means 20.
	Deaths int

	// Bound is the longest time for which a key may be blocked after a broken connection or the death of the process. Bound
	// must be longer than the lease of the service. 0 means one minute.
	Bound time.Duration

	// IsUnknown reports whether an answer says that the service does not know if the operation was executed. Nil means: the
	// answer is a problem (RFC 9457) whose type ends in outcome-unknown.
	IsUnknown func(status int, header http.Header, body []byte) bool

	// Header is the name of the header of the key. Empty means Idempotency-Key.
	Header string

	// Varies has names of header fields of answers that may differ in a replay. Fields of one message, such as Date,
	// Set-Cookie, X-Request-Id and rate limits, may always differ, and are also different in requests that are sent again.
	Varies []string

	// Decided has the decisions of the service by name, for example "other-content": "422". A check fails if it sees another
	// decision. The report names all decisions, with the values as seen: the status of a refusal, or a word.
	//
	//   - marker: the header field that only replays have, or none
	//   - while-running: waits, or the status that a duplicate gets while the first request runs
	//   - incomplete-request: ignored, or executed, if the service acts before it has read the body
	//   - other-content, other-route, other-user: executed, or a status
	//   - key-missing, key-empty: executed, or a status
	//   - key-too-long, key-twice, key-not-ascii: accepted, if retries get the answer, or a status
	//   - key-quoted: same, if "key" and key are one key, another, accepted, if only "key" is a key, or the status that "key" gets
	//   - invalid-request, failed-request: free, if the key can be used again, or kept; failed, if each try failed and replays
	//     have no marker, so that the probe cannot tell
	//   - large-body, chunked-body, compressed-body: executed, or a status
	//   - after-death: answered, or unknown
	Decided map[string]string

	// Only has the names of the checks to make. Empty means all.
	Only []string

	// Skip has a reason for each check that is not to be made, by the name of the check. The report prints the reason.
	Skip map[string]string

	// Timeout limits the time for each request. 0 means 30 seconds.
	Timeout time.Duration

	// MaxRequests limits the number of requests in total. The remaining checks are not made. 0 means 10,000.
	MaxRequests int

	// TLS configures https connections, for example with the certificate of a test server.
	TLS *tls.Config
}

// ErrInvalidService reports that fields of a Service are missing or contradictory. The text names all of them.
var ErrInvalidService = errors.New("idempotency: the probe cannot begin")

// ErrNotExecuted reports that the service does not execute a valid request with a new key. The text has the exchange.
var ErrNotExecuted = errors.New("idempotency: the service must execute a valid request with a new key")

// The users that Service.As authenticates.
const (
	// Owner sends all requests but those of Stranger.
	Owner = "alice"

	// Stranger sends requests with the keys of Owner.
	Stranger = "mallory"
)

// withDefaults returns a copy of s with the defaults, or all faults of s.
func (s Service) withDefaults() (Service, error) {
	var faults []error
	addFault := func(isFault bool, format string, args ...any) {
		if isFault {
			faults = append(faults, fmt.Errorf("Service."+format, args...))
		}
	}
	addFault(len(s.URLs) == 0, "URLs is empty")
	for _, text := range s.URLs {
		base, err := url.Parse(text)
		addFault(err != nil, "URLs: %w", err)
		isHTTP := err == nil && (base.Scheme == "http" || base.Scheme == "https") && base.Host != ""
		addFault(err == nil && !isHTTP, "URLs: %q is no http or https URL", text)
		addFault(err == nil && base.User != nil, "URLs: the URL of %s has a password: set the header Authorization instead", base.Host)
	}
	addFault(s.Request == nil, "Request is nil")
	addFault((s.Kill == nil) != (s.Start == nil), "Kill and Start must be set together")
	addFault(s.Deaths < 0 || s.Bound < 0 || s.Timeout < 0 || s.MaxRequests < 0,
		"Deaths, Bound, Timeout and MaxRequests must not be negative")
	for _, name := range slices.Concat(s.Only, slices.Sorted(maps.Keys(s.Skip))) {
		addFault(findCheck(name) == nil, "Only and Skip: there is no check %q", name)
	}
	for name := range s.Decided {
		addFault(!slices.Contains(decisionNames, name), "Decided: there is no decision %q", name)
	}
	s.Deaths = cmp.Or(s.Deaths, 20)
	s.Bound = cmp.Or(s.Bound, time.Minute)
	s.Timeout = cmp.Or(s.Timeout, 30*time.Second)
	s.MaxRequests = cmp.Or(s.MaxRequests, 10_000)
	s.Header = http.CanonicalHeaderKey(cmp.Or(s.Header, "Idempotency-Key"))
	if s.Slow == nil {
		s.Slow = s.Request
	}
	if s.IsUnknown == nil {
		s.IsUnknown = isUnknownProblem
	}
	if len(faults) > 0 {
		return s, fmt.Errorf("%w: %w", ErrInvalidService, errors.Join(faults...))
	}
	return s, nil
}
