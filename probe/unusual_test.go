package probe_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// unusual is a correct service in memory. Its fields are what a correct service may do in an unusual way.
type unusual struct {
	takes           time.Duration // of the handler
	effectDelay     time.Duration // between the answer and the effect
	failureLease    time.Duration // how long a failed request blocks its key
	duplicateStatus int           // 0: duplicates wait
	missingStatus   int           // of a request without a key
	reuseStatus     int           // of another content
	isBodyIgnored   bool          // the service acts before it reads the body
	readKey         func(r *http.Request, body []byte) (key string, ok bool)
	refuse          func(w http.ResponseWriter, r *http.Request) bool      // reports whether the request is answered
	writeAnswer     func(w http.ResponseWriter, id int)                    // of an operation
	wrap            func(handler http.Handler) http.Handler                // middleware outside of the service
	change          func(t *testing.T, u *unusual, service *probe.Service) // of the description

	mutex   sync.Mutex
	records map[string]*unusualRecord
	lastID  int
	effects atomic.Int64
}

type unusualRecord struct {
	content   string
	executed  chan struct{}
	answer    *httptest.ResponseRecorder
	isBlocked bool // after a failure
}

func (u *unusual) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if u.refuse != nil && u.refuse(w, r) {
		return
	}
	var body []byte
	if !u.isBodyIgnored {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return
		}
	}
	readKey := u.readKey
	if readKey == nil {
		readKey = readHeader
	}
	key, ok := readKey(r, body)
	if !ok {
		w.WriteHeader(cmp.Or(u.missingStatus, http.StatusBadRequest))
		return
	}
	stored, refusal := u.claim(r.Header.Get("Authorization")+" "+key, r.Method+r.URL.Path+string(body))
	if refusal != 0 {
		w.WriteHeader(refusal)
		return
	}
	<-stored.executed
	maps.Copy(w.Header(), stored.answer.Header())
	w.WriteHeader(stored.answer.Code)
	_, _ = w.Write(stored.answer.Body.Bytes())
}

// claim returns the record of a key, and executes the operation if the record is new.
func (u *unusual) claim(name, content string) (stored *unusualRecord, refusal int) {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	stored = u.records[name]
	switch {
	case stored == nil:
		stored = &unusualRecord{content: content, executed: make(chan struct{})}
		u.records[name] = stored
		u.lastID++
		id := u.lastID
		go u.execute(name, stored, id)
	case stored.content != content:
		return nil, cmp.Or(u.reuseStatus, http.StatusConflict)
	case stored.isBlocked, stored.answer == nil && u.duplicateStatus != 0:
		return nil, cmp.Or(u.duplicateStatus, http.StatusConflict)
	}
	return stored, 0
}

// execute runs the handler to its end, even if the client leaves.
func (u *unusual) execute(name string, stored *unusualRecord, id int) {
	if strings.Contains(stored.content, "slow") {
		time.Sleep(300 * time.Millisecond)
	}
	time.Sleep(u.takes)
	answer := httptest.NewRecorder()
	fails := strings.Contains(stored.content, "fails")
	switch {
	case fails:
		answer.WriteHeader(http.StatusServiceUnavailable)
		time.AfterFunc(u.failureLease, func() {
			u.mutex.Lock()
			defer u.mutex.Unlock()
			delete(u.records, name)
		})
	case u.writeAnswer != nil:
		u.writeAnswer(answer, id)
	default:
		answer.Header().Set("Content-Type", "application/json")
		answer.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(answer, `{"id": %d}`, id)
	}
	if !fails && u.effectDelay == 0 {
		u.effects.Add(1)
	} else if !fails {
		time.AfterFunc(u.effectDelay, func() { u.effects.Add(1) })
	}
	u.mutex.Lock()
	defer u.mutex.Unlock()
	stored.answer, stored.isBlocked = answer, fails
	close(stored.executed)
}

func readHeader(r *http.Request, _ []byte) (key string, ok bool) {
	keys := r.Header.Values("Idempotency-Key")
	return strings.Join(keys, ", "), len(keys) > 0 && keys[0] != ""
}

// readKeyLike returns a function that accepts keys of a pattern only.
func readKeyLike(pattern string) func(*http.Request, []byte) (string, bool) {
	form := regexp.MustCompile("^" + pattern + "$")
	return func(r *http.Request, _ []byte) (string, bool) {
		key := r.Header.Get("Idempotency-Key")
		return key, form.MatchString(key)
	}
}

// readUUID takes a key in upper case for the same UUID.
func readUUID(r *http.Request, _ []byte) (key string, ok bool) {
	id, err := uuid.Parse(r.Header.Get("Idempotency-Key"))
	return id.String(), err == nil
}

func readKeyOfBody(_ *http.Request, body []byte) (key string, ok bool) {
	var content struct{ Key string }
	err := json.Unmarshal(body, &content)
	return content.Key, err == nil && content.Key != ""
}

// describe describes the service without its instances.
func (u *unusual) describe() probe.Service {
	return probe.Service{
		Request:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 10}`),
		Other:      testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": 20}`),
		OtherRoute: testservice.BuildJSON(http.MethodPut, "/payments", `{"amount": 10}`),
		Failing:    testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": "fails"}`),
		As:         func(r *http.Request, user string) { r.Header.Set("Authorization", user) },
		Effects:    func(context.Context) (int, error) { return int(u.effects.Load()), nil },
		Bound:      3 * time.Second,
		Deaths:     6,
	}
}

// withKey returns a function whose requests have the key where the format has %s.
func withKey(change func(r *http.Request, key string), bodyFormat string) func(key string) *http.Request {
	return func(key string) *http.Request {
		body := bodyFormat
		if strings.Contains(body, "%") {
			body = fmt.Sprintf(bodyFormat, key)
		}
		r := testservice.BuildJSON(http.MethodPost, "/payments", body)(key)
		if change != nil {
			change(r, key)
		}
		return r
	}
}

// quoteKeys lets all requests have keys in quotes.
func quoteKeys(_ *testing.T, _ *unusual, service *probe.Service) {
	quote := func(r *http.Request, key string) { r.Header.Set("Idempotency-Key", `"`+key+`"`) }
	service.Request, service.Other = withKey(quote, `{"amount": 10}`), withKey(quote, `{"amount": 20}`)
	service.OtherRoute, service.Failing = nil, nil
}

// answerPlain returns a function that writes the same answer for every operation.
func answerPlain(status int, body string) func(http.ResponseWriter, int) {
	return func(w http.ResponseWriter, _ int) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// compressAnswers is middleware that compresses answers. If isForced is set, it compresses them for everybody.
func compressAnswers(isForced bool) func(http.Handler) http.Handler {
	return func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, r)
			maps.Copy(w.Header(), answer.Header())
			w.Header().Set("Vary", "Accept-Encoding")
			if !isForced && !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
				w.WriteHeader(answer.Code)
				_, _ = w.Write(answer.Body.Bytes())
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(answer.Code)
			writer := gzip.NewWriter(w)
			_, _ = writer.Write(answer.Body.Bytes())
			_ = writer.Close()
		})
	}
}

// limitRate is middleware that answers 429 to every count-th request.
func limitRate(count int64) func(http.Handler) http.Handler {
	var received atomic.Int64
	return func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if received.Add(1)%count == 0 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			handler.ServeHTTP(w, r)
		})
	}
}

// limitConcurrency is middleware that answers 429 to more than count requests at once.
func limitConcurrency(count int64) func(http.Handler) http.Handler {
	var running atomic.Int64
	return func(handler http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer running.Add(-1)
			if running.Add(1) >= count {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			handler.ServeHTTP(w, r)
		})
	}
}

// refuseLargeEarly answers before it reads the body.
func refuseLargeEarly(w http.ResponseWriter, r *http.Request) bool {
	switch {
	case r.ContentLength > 1000:
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case r.Header.Get("Content-Encoding") != "":
		w.WriteHeader(http.StatusUnsupportedMediaType)
	case r.ContentLength < 0:
		w.WriteHeader(http.StatusLengthRequired)
	default:
		return false
	}
	return true
}

// restartable is a server that can be killed and started on the same address. The killed server finishes its requests, as a
// service does that resumes its operations after a restart.
type restartable struct {
	handler               http.Handler
	killDelay, startDelay time.Duration
	address               string

	mutex   sync.Mutex
	group   sync.WaitGroup
	current chan struct{} // closed when the server ends that was started last
}

// start starts a server, which listens late, and not before the previous server has ended.
func (s *restartable) start(context.Context) error {
	killed, delay := make(chan struct{}), s.startDelay
	s.mutex.Lock()
	s.current = killed
	s.mutex.Unlock()
	s.group.Go(func() {
		var listener net.Listener
		for ; listener == nil; delay = 5 * time.Millisecond {
			select {
			case <-killed:
				return
			case <-time.After(delay):
				listener, _ = net.Listen("tcp", s.address)
			}
		}
		server := newServer(s.handler)
		s.group.Go(func() {
			<-killed
			_ = server.Close()
		})
		_ = server.Serve(listener)
	})
	return nil
}

func (s *restartable) kill(context.Context) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	killed, delay := s.current, s.killDelay
	s.group.Go(func() {
		time.Sleep(delay)
		close(killed)
	})
	return nil
}

// restartLate starts the service on a server that ends late after Kill, and listens late after Start.
func restartLate(t *testing.T, u *unusual, service *probe.Service) {
	server := &restartable{handler: u, address: servertest.PickAddress(t)}
	require.NoError(t, server.start(t.Context()))
	require.Eventually(t, func() bool {
		connection, err := net.Dial("tcp", server.address)
		return err == nil && connection.Close() == nil
	}, 5*time.Second, time.Millisecond)
	server.killDelay, server.startDelay = 50*time.Millisecond, 60*time.Millisecond
	service.URLs = []string{"http://" + server.address}
	service.Kill, service.Start = server.kill, server.start
	service.Slow = testservice.BuildJSON(http.MethodPost, "/payments", `{"amount": "slow"}`)
	t.Cleanup(func() {
		assert.NoError(t, server.kill(context.Background()))
		server.group.Wait()
	})
}

// restartBehindProxy is restartLate with a proxy that accepts connections while the service is down.
func restartBehindProxy(t *testing.T, u *unusual, service *probe.Service) {
	restartLate(t, u, service)
	target, err := url.Parse(service.URLs[0])
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	service.URLs = []string{startServer(t, proxy)}
}

func TestProbeFindsNothingInUnusualServices(t *testing.T) {
	tests := map[string]struct {
		*unusual
		expected map[string]probe.Status // the checks that are not passed, apart from those that need another field
	}{
		"waits":         {unusual: &unusual{takes: 50 * time.Millisecond}},
		"takes long":    {unusual: &unusual{takes: 50 * time.Millisecond, duplicateStatus: http.StatusConflict}},
		"asks to wait":  {unusual: &unusual{takes: 20 * time.Millisecond, duplicateStatus: 425, reuseStatus: 412, missingStatus: 428}},
		"accepted":      {unusual: &unusual{writeAnswer: answerLocated(http.StatusAccepted, "")}},
		"redirects":     {unusual: &unusual{writeAnswer: answerLocated(http.StatusSeeOther, "")}},
		"no content":    {unusual: &unusual{writeAnswer: answerPlain(http.StatusNoContent, "")}},
		"equal answers": {unusual: &unusual{writeAnswer: answerPlain(http.StatusOK, "ok")}},
		"equal answers, uncounted": {unusual: &unusual{writeAnswer: answerPlain(http.StatusOK, "ok"),
			change: func(_ *testing.T, _ *unusual, service *probe.Service) { service.Effects = nil }}},
		"acts late":      {unusual: &unusual{effectDelay: 50 * time.Millisecond}},
		"message fields": {unusual: &unusual{wrap: addMessageFields}},
		"compresses":     {unusual: &unusual{wrap: compressAnswers(false)}},
		"compresses for everybody": {unusual: &unusual{wrap: compressAnswers(true)},
			expected: map[string]probe.Status{"compressed-answer": probe.NotMade}},
		"limits the concurrency": {unusual: &unusual{wrap: limitConcurrency(50), takes: 20 * time.Millisecond}},
		"limits the rate":        {unusual: &unusual{wrap: limitRate(7)}},
		"takes UUIDs": {unusual: &unusual{readKey: readUUID},
			expected: map[string]probe.Status{"key-case": probe.NotMade}},
		"takes short keys": {unusual: &unusual{readKey: func(r *http.Request, _ []byte) (string, bool) {
			key := r.Header.Get("Idempotency-Key")
			return key, key != "" && len(key) <= 36
		}}},
		"takes quoted keys": {unusual: &unusual{readKey: readKeyLike(`"[ -~]{1,60}"`), change: quoteKeys}},
		"key in the body": {unusual: &unusual{readKey: readKeyOfBody, change: func(_ *testing.T, _ *unusual, service *probe.Service) {
			service.Request, service.Other = withKey(nil, `{"key": %q, "amount": 10}`), withKey(nil, `{"key": %q, "amount": 20}`)
			service.OtherRoute, service.Failing = nil, nil
		}}, expected: map[string]probe.Status{"key-missing": probe.NotMade, "key-empty": probe.NotMade, "key-twice": probe.NotMade,
			"key-quoted": probe.NotMade}},
		"ignores the body": {unusual: &unusual{isBodyIgnored: true, change: func(_ *testing.T, _ *unusual, service *probe.Service) {
			service.Other, service.Failing = nil, nil
		}}},
		"refuses bodies early":  {unusual: &unusual{refuse: refuseLargeEarly}},
		"blocks after failures": {unusual: &unusual{failureLease: 400 * time.Millisecond}},
		"base path": {unusual: &unusual{wrap: func(handler http.Handler) http.Handler { return http.StripPrefix("/base/v1", handler) },
			change: func(_ *testing.T, _ *unusual, service *probe.Service) { service.URLs[0] += "/base/v1/" }}},
		"HTTP/2 with TLS": {unusual: &unusual{change: func(t *testing.T, u *unusual, service *probe.Service) {
			server := httptest.NewUnstartedServer(u)
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			service.URLs, service.TLS = []string{server.URL}, &tls.Config{InsecureSkipVerify: true}
		}}},
		"effects fail once": {unusual: &unusual{change: func(_ *testing.T, u *unusual, service *probe.Service) {
			var calls atomic.Int64
			service.Effects = func(context.Context) (int, error) {
				if calls.Add(1) == 9 {
					return 0, errors.New("connection refused")
				}
				return int(u.effects.Load()), nil
			}
		}}},
		"restarts behind a proxy": {unusual: &unusual{change: restartBehindProxy}},
		"restarts late":           {unusual: &unusual{change: restartLate}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := test.unusual
			u.records = make(map[string]*unusualRecord)
			service := u.describe()
			var handler http.Handler = u
			if u.wrap != nil {
				handler = u.wrap(u)
			}
			service.URLs = []string{startServer(t, handler)}
			if u.change != nil {
				u.change(t, u, &service)
			}
			service.Skip = map[string]string{"replay-later": "the services differ in other ways, and the check takes a second"}
			report, err := probe.MakeChecks(t.Context(), service, nil)
			require.NoError(t, err)
			for _, result := range report.Results {
				expected, isExpected := test.expected[result.Name]
				if isExpected {
					assert.Equal(t, expected, result.Status, result.Explain())
				} else {
					assert.NotEqual(t, probe.Failed, result.Status, result.Explain())
				}
				if result.Status != probe.Passed {
					t.Log(result.Name, result.Status, result.Detail)
				}
			}
			for _, decision := range report.Decisions() {
				t.Log(decision.Name, "=", decision.Value)
			}
		})
	}
}

// answerLocated returns a function that writes an answer without a body, and with a Location of its own.
func answerLocated(status int, body string) func(http.ResponseWriter, int) {
	return func(w http.ResponseWriter, id int) {
		w.Header().Set("Location", fmt.Sprintf("/payments/%d", id))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// addMessageFields is middleware that adds fields with another value in each message.
func addMessageFields(handler http.Handler) http.Handler {
	var count atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value := fmt.Sprint(count.Add(1))
		for _, name := range []string{"X-Request-Id", "Set-Cookie", "Server-Timing", "X-Envoy-Upstream-Service-Time", "X-Process-Time",
			"X-Amz-Cf-Id", "X-Kong-Upstream-Latency", "X-Cloud-Trace-Context", "Expires", "X-Served-By", "X-Timer"} {
			w.Header().Set(name, value)
		}
		handler.ServeHTTP(w, r)
	})
}
