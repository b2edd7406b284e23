package dynamodbstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// fails answers with an error of the service, which has had no effect.
func fails(status int, code string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"%s"}`, code, code)
	}
}

// loseReply lets the service work, and loses what it says.
func loseReply(_ http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// loseRequest breaks the connection before the service has got the request.
func loseRequest(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// failLate lets the service work, and says that it has failed.
func failLate(w http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	fails(http.StatusInternalServerError, "InternalServerError")(w, r, service)
}

// cutReply lets the service work, and breaks the connection in the middle of what it says.
func cutReply(w http.ResponseWriter, r *http.Request, service http.Handler) {
	said := httptest.NewRecorder()
	service.ServeHTTP(said, r)
	w.Header().Set("Content-Length", strconv.Itoa(said.Body.Len()))
	w.WriteHeader(said.Code)
	_, _ = w.Write(said.Body.Bytes()[:said.Body.Len()/2])
	panic(http.ErrAbortHandler)
}

// reset lets the service work, and resets the connection.
func reset(w http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// slow lets the service work late.
func slow(w http.ResponseWriter, r *http.Request, service http.Handler) {
	time.Sleep(50 * time.Millisecond)
	service.ServeHTTP(w, r)
}

// Whatever becomes of a request, the step is done once, and its caller learns that.
func TestRequestsFail(t *testing.T) {
	t.Parallel()
	for name, struck := range map[string]fault{
		"the request is lost":       loseRequest,
		"the reply is lost":         loseReply,
		"the reply is cut":          cutReply,
		"the connection is reset":   reset,
		"the service is slow":       slow,
		"the service fails":         fails(500, "InternalServerError"),
		"the service fails late":    failLate,
		"the service is away":       fails(503, "ServiceUnavailable"),
		"a transaction is there":    fails(400, "TransactionConflictException"),
		"the table lacks capacity":  fails(400, "ProvisionedThroughputExceededException"),
		"the account is throttled":  fails(400, "ThrottlingException"),
		"another Region has it now": fails(400, "ReplicatedWriteConflictException"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.listen(t), local)
			completed(t, store, "warm")

			s.inject("UpdateItem", struck)
			record, claim := begun(t, store, "key")
			require.Equal(t, 1, record.Attempt)
			s.inject("UpdateItem", struck)
			require.NoError(t, claim.Extend(t.Context(), time.Hour))
			steps := claim.(idempotency.Checkpointer)
			s.inject("UpdateItem", struck)
			stored, err := steps.Checkpoint(t.Context(), "charge", []byte("1"))
			require.NoError(t, err)
			require.Equal(t, "1", string(stored))
			s.inject("GetItem", struck)
			all, err := steps.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
			s.inject("UpdateItem", struck)
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			s.inject("UpdateItem", struck)
			requireReplay(t, store, "key", answer)

			_, claim = begun(t, store, "released")
			s.inject("UpdateItem", struck)
			require.NoError(t, claim.Release(t.Context(), time.Hour))
			s.inject("UpdateItem", struck, struck)
			record, _ = begun(t, store, "released")
			require.Equal(t, 2, record.Attempt)

			over := request
			over.TakeOver = true
			late := lapsed(t, store, "crashed")
			s.inject("UpdateItem", struck, struck)
			record, claim, err = store.Begin(t.Context(), keyOf("crashed"), over)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.Equal(t, 2, record.Attempt)
			s.inject("UpdateItem", struck)
			require.ErrorIs(t, late.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
		})
	}
}

// Operators, too, do once what they ask for.
func TestRequestsOfOperatorsFail(t *testing.T) {
	t.Parallel()
	for name, struck := range map[string]fault{
		"the reply is lost": loseReply, "the service fails late": failLate, "the request is lost": loseRequest,
		"the reply is cut": cutReply, "the connection is reset": reset, "the service is slow": slow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.listen(t), local)
			lapsed(t, store, "key")
			entry, err := store.Inspect(t.Context(), keyOf("key"))
			require.NoError(t, err)
			s.inject("UpdateItem", struck)
			require.NoError(t, store.Resolve(t.Context(), entry, idempotency.Resolution{Response: &answer, TTL: time.Hour}))
			s.inject("GetItem", struck)
			entry, err = store.Inspect(t.Context(), keyOf("key"))
			require.NoError(t, err)
			require.Equal(t, idempotency.StateCompleted, entry.State)
			s.inject("Scan", struck)
			listing, err := store.List(t.Context(), idempotency.ListRequest{})
			require.NoError(t, err)
			require.Len(t, listing.Entries, 1)
			s.inject("DeleteItem", struck)
			require.NoError(t, store.Forget(t.Context(), entry))
			require.Nil(t, s.item("key"))
		})
	}
}

// A claim whose fate is not known comes with the error, and can be released. Nothing else comes with a claim.
func TestClaimInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		struck fault
		claim  bool
		is     error
	}{
		"the reply is lost":     {loseReply, true, nil},
		"the request is lost":   {loseRequest, true, nil},
		"the service fails":     {fails(500, "InternalServerError"), true, nil},
		"no capacity":           {fails(400, "ProvisionedThroughputExceededException"), false, idempotency.ErrStoreBusy},
		"a conflict":            {fails(400, "TransactionConflictException"), false, idempotency.ErrStoreBusy},
		"credentials expired":   {fails(400, "ExpiredTokenException"), false, nil},
		"credentials are wrong": {fails(400, "UnrecognizedClientException"), false, nil},
		"permission is missing": {fails(400, "AccessDeniedException"), false, nil},
		"there is no table":     {fails(400, "ResourceNotFoundException"), false, nil},
		"the item is too large": {fails(400, "ValidationException"), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.listen(t), local)
			completed(t, store, "warm")
			many := make([]fault, 1000)
			for i := range many {
				many[i] = tt.struck
			}
			s.inject("UpdateItem", many...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, claim, err := store.Begin(ctx, keyOf("key"), request)
			require.ErrorContains(t, err, "dynamodbstore: claim: ")
			require.Equal(t, tt.is != nil, errors.Is(err, idempotency.ErrStoreBusy), "%v", err)
			require.Nil(t, claim)
			claim = testservice.InDoubt(err)
			if tt.is == nil { // otherwise the deadline may have come during a request
				require.Equal(t, tt.claim, claim != nil)
			}
			s.mu.Lock()
			s.faults = nil
			s.mu.Unlock()
			if claim != nil {
				if err := claim.Release(t.Context(), time.Hour); !errors.Is(err, idempotency.ErrClaimLost) {
					require.NoError(t, err)
				}
			}
			begun(t, store, "key")
		})
	}
}

// A deadline holds while the service is silent, and what the service has done nevertheless is known by its token.
func TestServiceIsSilent(t *testing.T) {
	t.Parallel()
	s := newService(t)
	store := dynamodbstore.New(s.listen(t), local)
	completed(t, store, "warm")
	hang := make(chan struct{})
	silent := func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r)
		<-hang
	}
	defer close(hang)
	_, claim := begun(t, store, "key")
	s.inject("UpdateItem", silent)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, claim.Complete(ctx, answer, time.Hour), context.DeadlineExceeded)
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "key", answer)
}

// A renewal that arrives late shortens no lease.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	s := newService(t)
	store := dynamodbstore.New(s.client, local)
	_, claim := begun(t, store, "key")
	var late *http.Request
	s.inject("UpdateItem", func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		body, _ := io.ReadAll(r.Body)
		late = r.Clone(context.Background())
		late.Body = io.NopCloser(bytes.NewReader(body))
		fails(500, "InternalServerError")(w, r, service)
	})
	require.NoError(t, claim.Extend(t.Context(), 2*time.Minute))
	require.NoError(t, claim.Extend(t.Context(), 10*time.Minute))
	before := s.item("key")
	s.work(httptest.NewRecorder(), late)
	require.Equal(t, before, s.item("key"))
}

// FailOpen runs what it guards while the service is out of reach, and not while it lacks capacity or the clock is wrong.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		struck fault
		ahead  time.Duration
		runs   bool
		is     error
	}{
		"the service fails":  {fails(500, "InternalServerError"), 0, true, nil},
		"no capacity":        {fails(400, "ProvisionedThroughputExceededException"), 0, false, idempotency.ErrStoreBusy},
		"the clock is wrong": {pass, time.Hour, false, dynamodbstore.ErrClock},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			many := make([]fault, 1000)
			for i := range many {
				many[i] = tt.struck
			}
			s.inject("UpdateItem", many...)
			s.ahead(tt.ahead)
			runner, err := idempotency.NewRunner(dynamodbstore.New(s.client, local), idempotency.RunnerOptions{
				FailOpen: true, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			ran := false
			_, _, err = runner.Do(t.Context(), keyOf("key"), nil, func(context.Context) (idempotency.Response, error) {
				ran = true
				return answer, nil
			})
			require.Equal(t, tt.runs, ran, "%v", err)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			s.mu.Lock()
			s.faults = nil
			s.mu.Unlock()
			require.NoError(t, runner.Shutdown(t.Context()))
		})
	}
}
