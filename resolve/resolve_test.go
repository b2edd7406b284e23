package resolve_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
	"github.com/idempotency-go/idempotency/resolve"
)

func TestMain(m *testing.M) { testservice.Main(m) }

var (
	alice = resolve.By{Operator: "alice", Reason: "charge ch_17 is in the provider's list"}
	key   = idempotency.Key{User: "single", Endpoint: "POST /payments", ID: "k"}
)

// scene is a service with an operation whose owner has died, and an operator.
type scene struct {
	*testservice.Service
	resolver *resolve.Resolver
	events   testservice.Journal
	log      strings.Builder
}

// abandoned plays in a bubble, after the lease has lapsed.
func abandoned(t *testing.T, play func(*testing.T, *scene)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{Service: testservice.Setup{Opts: idempotency.Options{Abandoned: idempotency.Refuse}}.Guard(t, testservice.AttemptNumber)}
		testservice.Crash(t, s.Service, "k", "b", time.Minute)
		time.Sleep(time.Minute)
		testservice.RequireProblem(t, s.Call("k", "b"), http.StatusConflict, "outcome-unknown")
		var err error
		s.resolver, err = resolve.New(s.Store.Store.(idempotency.Inspector), resolve.Options{
			TTL: time.Hour, MaxResponse: 100, Observer: s.events.Observe, Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
		})
		require.NoError(t, err)
		play(t, s)
	})
}

func (s *scene) entry(t *testing.T) idempotency.Entry {
	return testservice.MustInspect(t, s.Store.Store, key)
}

func TestRetriesGetTheAnswerOfTheOperator(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		header := idempotency.NewFields(http.Header{"Content-Type": {"text/plain"}})
		resp := idempotency.Response{Status: 201, Header: header, Body: []byte("charged"), Note: "not this one"}
		require.NoError(t, s.resolver.Happened(t.Context(), s.entry(t), resp, alice))
		for range 2 {
			got := s.Call("k", "b")
			require.Equal(t, 201, got.Status)
			require.Equal(t, "charged", got.Body)
			require.True(t, got.Replayed())
			require.NotContains(t, got.Header, "Note")
		}
		testservice.RequireProblem(t, s.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Zero(t, s.Runs.Load())

		const note = "alice: charge ch_17 is in the provider's list"
		entry := s.entry(t)
		require.Equal(t, note, entry.Note)
		require.Equal(t, time.Hour, entry.Remaining)
		event := s.events.Last(t)
		require.Equal(t, idempotency.OutcomeHappened, event.Outcome)
		require.Equal(t, note, event.Note)
		require.Equal(t, 201, event.Status)
		require.Equal(t, key.OperationID(), event.Operation)
		require.Equal(t, len(header)+len("charged"), event.Stored)
		require.Contains(t, s.log.String(), `msg="idempotency: happened" operation=`+key.OperationID().String()+" attempt=1 status=201 note=")
	})
}

func TestWhatHasNotHappenedRuns(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		entry := s.entry(t)
		require.NoError(t, s.resolver.NotHappened(t.Context(), entry, resolve.By{Operator: "bob", Reason: "no charge"}))
		require.Equal(t, "bob: no charge", s.entry(t).Note)
		require.Equal(t, idempotency.OutcomeNotHappened, s.events.Last(t).Outcome)
		require.ErrorIs(t, s.resolver.Happened(t.Context(), entry, idempotency.Response{Status: 200}, alice), idempotency.ErrEntryChanged)
		require.Len(t, s.events.All(), 1)
		testservice.RequireProblem(t, s.Call("k", "changed"), http.StatusConflict, "key-reused")
		require.Equal(t, "attempt 2", s.Call("k", "b").Body)
		require.True(t, s.Call("k", "b").Replayed())
	})
}

// A tombstone of work without HTTP has no status.
func TestTombstoneOfTheOperator(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		require.NoError(t, s.resolver.Happened(t.Context(), s.entry(t), idempotency.Response{Status: 201, Omitted: true}, alice))
		problem := testservice.RequireProblem(t, s.Call("k", "b"), http.StatusConflict, "not-replayable")
		require.Equal(t, 201, problem.OriginalStatus)
	})
}

func TestWhatAnOperatorMustNotSay(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		ok := idempotency.Response{Status: 200}
		for name, c := range map[string]struct {
			resp idempotency.Response
			by   resolve.By
			want string
		}{
			"nobody":              {ok, resolve.By{Reason: "because"}, "no operator"},
			"spaces":              {ok, resolve.By{Operator: " \t", Reason: "because"}, "no operator"},
			"no reason":           {ok, resolve.By{Operator: "alice", Reason: " "}, "no reason"},
			"long":                {ok, resolve.By{Operator: "alice", Reason: strings.Repeat("x", 249)}, "254 bytes"},
			"informational":       {idempotency.Response{Status: 103}, alice, "status 103"},
			"status of 4 digits":  {idempotency.Response{Status: 1000}, alice, "status 1000"},
			"wrong length":        {idempotency.Response{Status: 200, Header: "Content-Length: 5\n"}, alice, "Content-Length"},
			"field of connection": {idempotency.Response{Status: 200, Header: "Connection: close\n"}, alice, "Connection"},
			"replay marker":       {idempotency.Response{Status: 200, Header: "Idempotent-Replayed: true\n"}, alice, "Idempotent-Replayed"},
			"large body":          {idempotency.Response{Status: 200, Body: make([]byte, 101)}, alice, "101 bytes"},
		} {
			require.ErrorContains(t, s.resolver.Happened(t.Context(), s.entry(t), c.resp, c.by), c.want, name)
		}
		require.ErrorContains(t, s.resolver.NotHappened(t.Context(), s.entry(t), resolve.By{Operator: "alice"}), "no reason")
		require.Empty(t, s.events.All())
		require.Equal(t, idempotency.StateAbandoned, s.entry(t).State)
	})
}

func TestNotes(t *testing.T) {
	t.Parallel()
	for by, want := range map[resolve.By]string{
		{Operator: "alice", Reason: "asked"}:             "alice: asked",
		{Operator: " alice ", Reason: "\tasked\n"}:       "alice: asked",
		{Operator: "Zoë", Reason: "a\nb\x00c\u202e 語 😀"}: `Zo\u00eb: a\nb\x00c\u202e \u8a9e \U0001f600`,
		{Operator: "a\xff", Reason: "b"}:                 `a\ufffd: b`,
	} {
		note, err := by.Note()
		require.NoError(t, err)
		require.Equal(t, want, note)
	}
}

type inspector struct{ idempotency.Inspector }

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := resolve.New(inspector{}, resolve.Options{TTL: -1, MaxResponse: -1})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "TTL -1ns is negative")
	require.ErrorContains(t, err, "MaxResponse -1 is negative")
}

// Without a logger, the default one is told; without an observer, nobody.
func TestDefaults(t *testing.T) {
	abandoned(t, func(t *testing.T, s *scene) {
		resolver, err := resolve.New(s.Store.Store.(idempotency.Inspector), resolve.Options{})
		require.NoError(t, err)
		entry := s.entry(t)
		entry.Remaining = 48 * time.Hour // of a service that keeps records for longer
		require.NoError(t, resolver.NotHappened(context.Background(), entry, alice))
		require.Equal(t, 48*time.Hour, s.entry(t).Remaining)
	})
}
