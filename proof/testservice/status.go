package testservice

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// KeyStatus is the answer of [idempotency.Middleware.Status].
type KeyStatus struct {
	State                       string
	Instance                    string
	Status                      int
	Began, Completed, KeptUntil time.Time
	Answer                      *ShownAnswer
}

// ShownAnswer is a stored answer in a KeyStatus.
type ShownAnswer struct {
	Status          int
	Header, Trailer http.Header
	Body            string
	BodyBase64      []byte
}

// StatusPath is where ServeStatus mounts the handler of Status.
const StatusPath = "/payments/status"

// question is the address to ask about a POST to /payments.
const question = StatusPath + "?method=POST&path=%2Fpayments"

// ServeStatus serves handler at /payments behind a middleware, and Status at StatusPath, on a real server. The header
// X-User of a request names its user.
func (s Setup) ServeStatus(t testing.TB, handler http.HandlerFunc) *Service {
	t.Helper()
	if s.User == nil {
		s.User = func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	}
	svc := s.Guard(t, handler)
	mux := http.NewServeMux()
	mux.Handle("/", svc.Handler)
	mux.Handle(StatusPath, svc.Middleware.Status())
	svc.Server = Listen(t, mux, false)
	return svc
}

// Pay sends a request of user to /payments with a key.
func (s *Service) Pay(user, key, body string) Answer {
	s.t.Helper()
	return s.Post(key, body, WithHeader("X-User", user))
}

// Ask asks about a request of user to /payments with a key. The edits change the question.
func (s *Service) Ask(user, key string, edits ...Edit) Answer {
	return s.Send(question, key, "", append([]Edit{WithMethod(http.MethodGet), WithHeader("X-User", user)}, edits...)...)
}

// WithQuery sets parameters of the query of a request.
func WithQuery(pairs ...string) Edit {
	return func(r *http.Request) {
		query := r.URL.Query()
		for i := 0; i < len(pairs); i += 2 {
			query.Set(pairs[i], pairs[i+1])
		}
		r.URL.RawQuery = query.Encode()
	}
}

// RequireStatus checks the common parts of a, an answer of Status with the given state, and decodes a.
func RequireStatus(t testing.TB, a Answer, state string) (status KeyStatus) {
	t.Helper()
	require.NoError(t, a.Err)
	require.Equal(t, http.StatusOK, a.Status, "body: %s", a.Body)
	require.Equal(t, "application/json", a.Header.Get("Content-Type"))
	require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
	require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
	require.False(t, a.Replayed())
	require.NoError(t, json.Unmarshal([]byte(a.Body), &status))
	require.Equal(t, state, status.State)
	id, err := uuid.Parse(status.Instance)
	require.NoError(t, err)
	require.Equal(t, id.URN(), status.Instance)
	require.Equal(t, state == "running", a.Header.Get("Retry-After") != "")
	require.Equal(t, state == "never-seen", status.Began.IsZero())
	require.Equal(t, state == "never-seen" || state == "running", status.KeptUntil.IsZero())
	return status
}

// CheckStatus asks about keys of store in every state. The user of a key must learn the state, and another user nothing.
// The record must stay unchanged, and the next request with the key must get what the state says. The users of
// CheckStatus are new, so that store may have other records.
func CheckStatus(t *testing.T, store idempotency.Store) {
	t.Helper()
	c := &statusCheck{t: t, store: store, user: uuid.NewString(), release: make(chan struct{})}
	setup := Setup{Store: store, Opts: idempotency.Options{
		Abandoned: idempotency.Refuse, TTL: time.Hour, KeyInfo: idempotency.KeyInfo{StatusURL: StatusPath},
	}}
	c.refusing = setup.ServeStatus(t, c.pay)
	setup.Opts.Abandoned = idempotency.ReExecute
	c.repeating = setup.ServeStatus(t, c.pay)

	first := c.askUnchanged(c.refusing, "order", "never-seen")
	require.Equal(t, http.StatusCreated, c.refusing.Pay(c.user, "order", "charge").Status)
	done := c.askUnchanged(c.refusing, "order", "done")
	require.Equal(t, first.Instance, done.Instance)
	require.Equal(t, http.StatusCreated, done.Status)
	require.Nil(t, done.Answer)
	require.WithinDuration(t, time.Now(), done.Began, time.Minute)
	require.WithinDuration(t, time.Now().Add(time.Hour), done.KeptUntil, time.Minute)
	shown := RequireStatus(t, c.refusing.Ask(c.user, "order", WithQuery("answer", "true")), "done").Answer
	header := http.Header{"X-Receipt": {"7"}, "Content-Type": {"text/plain; charset=utf-8"}}
	require.Equal(t, ShownAnswer{Status: http.StatusCreated, Header: header, Body: "charge"}, *shown)
	require.True(t, c.refusing.Pay(c.user, "order", "charge").Replayed())

	c.checkRunning()
	c.checkUnfinished()
	c.checkCompletedWithoutAnswer()
	c.checkAbandoned()
	c.checkExpired()
}

// statusCheck is a run of CheckStatus.
type statusCheck struct {
	t                   *testing.T
	store               idempotency.Store
	user                string
	refusing, repeating *Service      // with Refuse and with ReExecute, on the same store
	release             chan struct{} // lets the handler of a request with the body "wait" go on
}

// pay is the handler, which the body of a request commands.
func (c *statusCheck) pay(w http.ResponseWriter, r *http.Request) {
	command, _ := io.ReadAll(r.Body)
	switch string(command) {
	case "wait":
		<-c.release
	case "fail":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case "free":
		idempotency.Decide(r.Context(), idempotency.Free)
	case "secret":
		idempotency.Decide(r.Context(), idempotency.Tombstone)
	}
	w.Header().Set("X-Receipt", "7")
	w.Header().Set("Set-Cookie", "session=7; HttpOnly") // which Status must not show
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(command)
}

// askUnchanged asks svc about key, which must have the state, and must be never-seen for another user. The record stays
// unchanged.
func (c *statusCheck) askUnchanged(svc *Service, key, state string) KeyStatus {
	c.t.Helper()
	before := c.inspect(key)
	runs := c.refusing.Runs.Load() + c.repeating.Runs.Load()
	status := RequireStatus(c.t, svc.Ask(c.user, key), state)
	other := RequireStatus(c.t, svc.Ask(c.user+"'", key), "never-seen")
	require.NotEqual(c.t, status.Instance, other.Instance)
	other.Instance = ""
	require.Equal(c.t, KeyStatus{State: "never-seen"}, other)
	require.Equal(c.t, before, c.inspect(key))
	require.Equal(c.t, runs, c.refusing.Runs.Load()+c.repeating.Runs.Load())
	return status
}

// inspect returns the entry of a key without durations, or a zero entry.
func (c *statusCheck) inspect(key string) idempotency.Entry {
	c.t.Helper()
	inspector, ok := idempotency.As[idempotency.Inspector](c.store)
	require.True(c.t, ok)
	entry, err := inspector.Inspect(c.t.Context(), c.keyOf(key))
	if !errors.Is(err, idempotency.ErrNoRecord) {
		require.NoError(c.t, err)
	}
	entry.LeaseLeft, entry.Remaining = 0, 0
	return entry
}

func (c *statusCheck) keyOf(id string) idempotency.Key {
	return idempotency.Key{User: c.user, Endpoint: "POST /payments", ID: id}
}

func (c *statusCheck) checkRunning() {
	answered := make(chan Answer, 1)
	go func() { answered <- c.refusing.Pay(c.user, "slow", "wait") }()
	Until(c.t, func() bool { return c.inspect("slow").State == idempotency.StateRunning })
	c.askUnchanged(c.refusing, "slow", "running")
	require.Equal(c.t, "1", c.refusing.Ask(c.user, "slow").Header.Get("Retry-After"))
	problem := RequireProblem(c.t, c.refusing.Pay(c.user, "slow", "wait"), http.StatusConflict, "in-progress")
	require.Empty(c.t, problem.StatusURL)
	close(c.release)
	require.Equal(c.t, http.StatusCreated, (<-answered).Status)
	c.askUnchanged(c.refusing, "slow", "done")
}

func (c *statusCheck) checkUnfinished() {
	require.Equal(c.t, http.StatusServiceUnavailable, c.refusing.Pay(c.user, "failed", "fail").Status)
	require.Zero(c.t, c.askUnchanged(c.refusing, "failed", "unfinished").Status)
	runs := c.refusing.Runs.Load()
	require.Equal(c.t, http.StatusServiceUnavailable, c.refusing.Pay(c.user, "failed", "fail").Status)
	require.Equal(c.t, runs+1, c.refusing.Runs.Load())

	require.Equal(c.t, http.StatusCreated, c.refusing.Pay(c.user, "freed", "free").Status)
	c.askUnchanged(c.refusing, "freed", "never-seen")
}

func (c *statusCheck) checkCompletedWithoutAnswer() {
	require.Equal(c.t, http.StatusCreated, c.refusing.Pay(c.user, "hidden", "secret").Status)
	c.askUnchanged(c.refusing, "hidden", "not-kept")
	status := RequireStatus(c.t, c.refusing.Ask(c.user, "hidden", WithQuery("answer", "true")), "not-kept")
	require.Nil(c.t, status.Answer)
	problem := RequireProblem(c.t, c.refusing.Pay(c.user, "hidden", "secret"), http.StatusConflict, "not-replayable")
	require.Equal(c.t, question, problem.StatusURL)
}

// checkAbandoned asks about an operation whose owner has disappeared.
func (c *statusCheck) checkAbandoned() {
	request := AttemptFor(time.Hour)
	fp, err := idempotency.FingerprintRaw(httptest.NewRequest(http.MethodPost, "/payments", nil), []byte("charge"))
	require.NoError(c.t, err)
	request.Fingerprint, request.Lease = fp, time.Millisecond
	MustClaim(c.t, c.store, c.keyOf("abandoned"), request)
	Until(c.t, func() bool { return c.inspect("abandoned").State == idempotency.StateAbandoned })
	c.askUnchanged(c.refusing, "abandoned", "outcome-unknown")
	c.askUnchanged(c.repeating, "abandoned", "unfinished")
	problem := RequireProblem(c.t, c.refusing.Pay(c.user, "abandoned", "charge"), http.StatusConflict, "outcome-unknown")
	require.Equal(c.t, question, problem.StatusURL)
	runs := c.repeating.Runs.Load()
	require.Equal(c.t, http.StatusCreated, c.repeating.Pay(c.user, "abandoned", "charge").Status)
	require.Equal(c.t, runs+1, c.repeating.Runs.Load())
}

func (c *statusCheck) checkExpired() {
	claim := MustClaim(c.t, c.store, c.keyOf("old"), AttemptFor(time.Hour))
	require.NoError(c.t, claim.Complete(c.t.Context(), BodyOf(1), 10*time.Millisecond))
	Until(c.t, func() bool { return c.inspect("old").State == "" })
	c.askUnchanged(c.refusing, "old", "never-seen")
}
