package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// request is a request that can be sent several times, to every instance.
type request struct {
	method string
	target *url.URL // path and query
	header http.Header
	body   []byte
	host   string // the Host field, if the request of the service sets one

	isChunked    bool   // the length of the body is not announced
	paddingBytes int    // the body begins with this many spaces
	keyHeader    string // the name of the header of the key
}

// newRequest makes a request for key from what build returns.
func (s *Service) newRequest(build func(string) *http.Request, key string) (*request, error) {
	return s.newRequestAs(build, key, Owner)
}

// newRequestAs is newRequest for another user.
func (s *Service) newRequestAs(build func(string) *http.Request, key, user string) (*request, error) {
	built := build(key)
	if built == nil || built.URL == nil {
		return nil, errors.New("the service's function returns no request")
	}
	if built.Header == nil {
		built.Header = make(http.Header)
	}
	if s.As != nil {
		s.As(built, user)
	}
	r := &request{method: built.Method, target: built.URL, header: built.Header.Clone(), host: built.Host, keyHeader: s.Header}
	if r.host == built.URL.Host {
		r.host = "" // the host of an absolute URL, which is replaced
	}
	if built.Body != nil {
		defer func() { _ = built.Body.Close() }()
		body, err := io.ReadAll(built.Body)
		if err != nil {
			return nil, fmt.Errorf("the body of the request cannot be read: %w", err)
		}
		r.body = body
	}
	if len(r.header.Values(s.Header)) == 0 {
		r.header.Set(s.Header, key)
	}
	return r, nil
}

// hasKeyElsewhere reports whether key is also outside of the header of the key, so that a request without that header still
// has a key.
func (r *request) hasKeyElsewhere(key string) bool {
	for name, values := range r.header {
		if name != r.keyHeader && strings.Contains(strings.Join(values, ","), key) {
			return true
		}
	}
	return bytes.Contains(r.body, []byte(key)) || strings.Contains(r.target.String(), key)
}

// isSameOperation reports whether a service cannot tell the operations of r and other apart.
func (r *request) isSameOperation(other *request) bool {
	return r.method == other.method && r.target.String() == other.target.String() && bytes.Equal(r.body, other.body)
}

// clone returns a copy of r whose header can be changed.
func (r *request) clone() *request {
	copied := *r
	copied.header = r.header.Clone()
	return &copied
}

// withKeys returns a copy of r with one header field for each of keys.
func (r *request) withKeys(keys ...string) *request {
	copied := r.clone()
	copied.header[r.keyHeader] = keys
	if len(keys) == 0 {
		copied.header.Del(r.keyHeader)
	}
	return copied
}

// build returns r for the instance at base.
func (r *request) build(base string) (*http.Request, error) {
	address, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	address = address.JoinPath(r.target.EscapedPath())
	address.RawQuery = r.target.RawQuery
	built, err := http.NewRequest(r.method, address.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	built.Header = r.header.Clone()
	if built.Header.Get("User-Agent") == "" {
		built.Header.Set("User-Agent", "idempotency-probe") // otherwise HTTP/1.1 and HTTP/2 have different values
	}
	built.GetBody = nil // because http.Transport would itself send a request with an Idempotency-Key again
	// http.Transport sends a request without a body again, but on reused connections only. A server that does not know chunked
	// bodies takes the chunks for a second request, and answers it on the same connection.
	built.Close = len(r.body) == 0 || r.isChunked
	if r.host != "" {
		built.Host = r.host
	}
	if r.isChunked {
		built.ContentLength = -1
	}
	return built, nil
}

// encode returns the bytes of r as HTTP/1.1.
func (r *request) encode(base string) ([]byte, error) {
	built, err := r.build(base)
	if err != nil {
		return nil, err
	}
	var encoded bytes.Buffer
	err = built.Write(&encoded)
	return encoded.Bytes(), err
}

// answer is a complete answer of the service.
type answer struct {
	status   int
	header   http.Header
	body     []byte
	protocol string
	duration time.Duration
}

// isSuccess reports whether the service executed the request, or replayed such an answer.
func (a *answer) isSuccess() bool { return a.status < 400 }

// asksToComeAgain reports whether the answer says that a later retry can succeed.
func (a *answer) asksToComeAgain() bool {
	switch a.status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return a.status >= 400 && a.header.Get("Retry-After") != ""
}

// isUnknownProblem is the default of Service.IsUnknown.
func isUnknownProblem(_ int, header http.Header, body []byte) bool {
	problem, ok := parseProblem(header, body)
	return ok && strings.HasSuffix(problem.Type, "outcome-unknown")
}

// exchange is a request with the answer of the service, or with the error of the client.
type exchange struct {
	*request
	baseURL     string // the instance
	answer      *answer
	err         error
	probeAction string // what the probe did apart from sending the request, for example "closed the connection after the request"
}

func (e *exchange) describe() string {
	switch {
	case e.answer == nil && e.err != nil:
		return fmt.Sprintf("no answer (%v)", e.err)
	case e.answer == nil:
		return "no answer"
	}
	return fmt.Sprintf("%d %s", e.answer.status, http.StatusText(e.answer.status))
}
