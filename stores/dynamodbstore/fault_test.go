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

// failWith replies with an error of the service. The request has no effect.
func failWith(status int, code string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"%s"}`, code, code)
	}
}

// loseReply executes the request, and loses the reply.
func loseReply(_ http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// loseRequest breaks the connection before the service gets the request.
func loseRequest(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// applyThenFail executes the request, and replies with an internal error.
func applyThenFail(w http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	failWith(http.StatusInternalServerError, "InternalServerError")(w, r, service)
}

// cutReply executes the request, and breaks the connection in the middle of the reply.
func cutReply(w http.ResponseWriter, r *http.Request, service http.Handler) {
	reply := httptest.NewRecorder()
	service.ServeHTTP(reply, r)
	w.Header().Set("Content-Length", strconv.Itoa(reply.Body.Len()))
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body.Bytes()[:reply.Body.Len()/2])
	panic(http.ErrAbortHandler)
}

// resetConnection executes the request, and resets the connection.
func resetConnection(w http.ResponseWriter, r *http.Request, service http.Handler) {
	service.ServeHTTP(httptest.NewRecorder(), r)
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
}

// serveLate executes the request after a pause.
func serveLate(w http.ResponseWriter, r *http.Request, service http.Handler) {
	time.Sleep(50 * time.Millisecond)
	service.ServeHTTP(w, r)
}

// After any fault of a request, the step is done once, and the caller gets the result.
func TestRequestsFail(t *testing.T) {
	t.Parallel()
	for name, injected := range map[string]fault{
		"the request is lost":       loseRequest,
		"the reply is lost":         loseReply,
		"the reply is cut":          cutReply,
		"the connection is reset":   resetConnection,
		"the service is slow":       serveLate,
		"the service fails":         failWith(500, "InternalServerError"),
		"the service fails late":    applyThenFail,
		"the service is away":       failWith(503, "ServiceUnavailable"),
		"a transaction is there":    failWith(400, "TransactionConflictException"),
		"the table lacks capacity":  failWith(400, "ProvisionedThroughputExceededException"),
		"the account is throttled":  failWith(400, "ThrottlingException"),
		"another Region has it now": failWith(400, "ReplicatedWriteConflictException"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.newHTTPClient(t), testOptions)
			completeKey(t, store, "warm")

			s.injectFaults("UpdateItem", injected)
			record, claim := claimKey(t, store, "key")
			require.Equal(t, 1, record.Attempt)
			s.injectFaults("UpdateItem", injected)
			require.NoError(t, claim.Extend(t.Context(), time.Hour))
			steps := claim.(idempotency.Checkpointer)
			s.injectFaults("UpdateItem", injected)
			stored, err := steps.Checkpoint(t.Context(), "charge", []byte("1"))
			require.NoError(t, err)
			require.Equal(t, "1", string(stored))
			s.injectFaults("GetItem", injected)
			all, err := steps.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Len(t, all, 1)
			s.injectFaults("UpdateItem", injected)
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			s.injectFaults("UpdateItem", injected)
			requireReplay(t, store, "key", answer)

			_, claim = claimKey(t, store, "released")
			s.injectFaults("UpdateItem", injected)
			require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			s.injectFaults("UpdateItem", injected, injected)
			record, _ = claimKey(t, store, "released")
			require.Equal(t, 2, record.Attempt)

			takeover := request
			takeover.TakeOver = true
			late := claimAndLapse(t, store, "crashed")
			s.injectFaults("UpdateItem", injected, injected)
			record, claim, err = store.Begin(t.Context(), keyOf("crashed"), takeover)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.Equal(t, 2, record.Attempt)
			s.injectFaults("UpdateItem", injected)
			require.ErrorIs(t, late.Complete(t.Context(), answer, time.Hour), idempotency.ErrClaimLost)
		})
	}
}

// After any fault of a request, a change by an operator is made once.
func TestRequestsOfOperatorsFail(t *testing.T) {
	t.Parallel()
	for name, injected := range map[string]fault{
		"the reply is lost": loseReply, "the service fails late": applyThenFail, "the request is lost": loseRequest,
		"the reply is cut": cutReply, "the connection is reset": resetConnection, "the service is slow": serveLate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.newHTTPClient(t), testOptions)
			claimAndLapse(t, store, "key")
			entry, err := store.Inspect(t.Context(), keyOf("key"))
			require.NoError(t, err)
			s.injectFaults("UpdateItem", injected)
			require.NoError(t, store.Resolve(t.Context(), entry, idempotency.Resolution{Response: &answer, TTL: time.Hour}))
			s.injectFaults("GetItem", injected)
			entry, err = store.Inspect(t.Context(), keyOf("key"))
			require.NoError(t, err)
			require.Equal(t, idempotency.StateCompleted, entry.State)
			s.injectFaults("Scan", injected)
			listing, err := store.List(t.Context(), idempotency.ListRequest{})
			require.NoError(t, err)
			require.Len(t, listing.Entries, 1)
			s.injectFaults("DeleteItem", injected)
			require.NoError(t, store.Forget(t.Context(), entry))
			require.Nil(t, s.readItem("key"))
		})
	}
}

// An error of Begin contains a claim if the key may be claimed. The claim can be released. Other errors contain no claim.
func TestClaimInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		injected  fault
		wantClaim bool
		wantErr   error
	}{
		"the reply is lost":     {loseReply, true, nil},
		"the request is lost":   {loseRequest, true, nil},
		"the service fails":     {failWith(500, "InternalServerError"), true, nil},
		"no capacity":           {failWith(400, "ProvisionedThroughputExceededException"), false, idempotency.ErrStoreBusy},
		"a conflict":            {failWith(400, "TransactionConflictException"), false, idempotency.ErrStoreBusy},
		"credentials expired":   {failWith(400, "ExpiredTokenException"), false, nil},
		"credentials are wrong": {failWith(400, "UnrecognizedClientException"), false, nil},
		"permission is missing": {failWith(400, "AccessDeniedException"), false, nil},
		"there is no table":     {failWith(400, "ResourceNotFoundException"), false, nil},
		"the item is too large": {failWith(400, "ValidationException"), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			store := dynamodbstore.New(s.newHTTPClient(t), testOptions)
			completeKey(t, store, "warm")
			many := make([]fault, 1000)
			for i := range many {
				many[i] = tt.injected
			}
			s.injectFaults("UpdateItem", many...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, claim, err := store.Begin(ctx, keyOf("key"), request)
			require.ErrorContains(t, err, "dynamodbstore: claim: ")
			require.Equal(t, tt.wantErr != nil, errors.Is(err, idempotency.ErrStoreBusy), "%v", err)
			require.Nil(t, claim)
			claim = testservice.InDoubt(err)
			if tt.wantErr == nil { // otherwise the deadline may have ended a request, and the key may be claimed
				require.Equal(t, tt.wantClaim, claim != nil)
			}
			s.mu.Lock()
			s.faults = nil
			s.mu.Unlock()
			if claim != nil {
				if err := claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}); !errors.Is(err, idempotency.ErrClaimLost) {
					require.NoError(t, err)
				}
			}
			claimKey(t, store, "key")
		})
	}
}

// The deadline holds while the service does not reply. The next call recognises the earlier completion by the token.
func TestServiceDoesNotReply(t *testing.T) {
	t.Parallel()
	s := newService(t)
	store := dynamodbstore.New(s.newHTTPClient(t), testOptions)
	completeKey(t, store, "warm")
	hang := make(chan struct{})
	silent := func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r)
		<-hang
	}
	defer close(hang)
	_, claim := claimKey(t, store, "key")
	s.injectFaults("UpdateItem", silent)
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
	store := dynamodbstore.New(s.client, testOptions)
	_, claim := claimKey(t, store, "key")
	var late *http.Request
	s.injectFaults("UpdateItem", func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		body, _ := io.ReadAll(r.Body)
		late = r.Clone(context.Background())
		late.Body = io.NopCloser(bytes.NewReader(body))
		failWith(500, "InternalServerError")(w, r, service)
	})
	require.NoError(t, claim.Extend(t.Context(), 2*time.Minute))
	require.NoError(t, claim.Extend(t.Context(), 10*time.Minute))
	before := s.readItem("key")
	s.handleRequest(httptest.NewRecorder(), late)
	require.Equal(t, before, s.readItem("key"))
}

// FailOpen runs the handler while the service is unreachable. FailOpen does not run the handler while the service lacks
// capacity or the clock is wrong.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		injected fault
		ahead    time.Duration
		wantRun  bool
		wantErr  error
	}{
		"the service fails":  {failWith(500, "InternalServerError"), 0, true, nil},
		"no capacity":        {failWith(400, "ProvisionedThroughputExceededException"), 0, false, idempotency.ErrStoreBusy},
		"the clock is wrong": {passThrough, time.Hour, false, dynamodbstore.ErrClock},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			many := make([]fault, 1000)
			for i := range many {
				many[i] = tt.injected
			}
			s.injectFaults("UpdateItem", many...)
			s.setDateAhead(tt.ahead)
			runner, err := idempotency.NewRunner(dynamodbstore.New(s.client, testOptions), idempotency.RunnerOptions{
				FailOpen: true, StoreTimeout: time.Second, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(t, err)
			ran := false
			_, _, err = runner.Do(t.Context(), keyOf("key"), nil, func(context.Context) (idempotency.Response, error) {
				ran = true
				return answer, nil
			})
			require.Equal(t, tt.wantRun, ran, "%v", err)
			if tt.wantErr != nil {
				require.ErrorIs(t, err, tt.wantErr)
			}
			s.mu.Lock()
			s.faults = nil
			s.mu.Unlock()
			require.NoError(t, runner.Shutdown(t.Context()))
		})
	}
}
