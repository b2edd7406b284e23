package idempotency_test

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// operationOfK is the ID of the operation with SingleUser, POST /payments and the key "k". The ID must never change.
const operationOfK = "d8a8b2b2-f890-89b4-a911-912f4b6c912d"

// The ID follows from the user, the endpoint and the key alone. A change of the store, or a failure of earlier
// attempts, leaves the ID unchanged.
func TestOperationIDFollowsFromTheKey(t *testing.T) {
	t.Parallel()
	server, client := testservice.NewMiniredis(t)
	memory, restarted := idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	onRedis := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	var seen []idempotency.Operation
	fails := true
	ask := func(store idempotency.Store, body string) {
		svc := testservice.Setup{Store: store}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			seen = append(seen, op)
			if fails {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		svc.Call("k", body)
	}
	ask(memory, "b")
	ask(memory, "b") // after a failure
	ask(restarted, "b")
	ask(onRedis, "b")
	server.FlushAll()
	ask(onRedis, "another body")
	fails = false
	ask(testservice.MustSeal(t, cache.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), cache.Options{}), testservice.Sealing("key")), "b")
	ask(idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "other:"}), "b")

	numbers := make([]int, len(seen))
	for i, op := range seen {
		require.Equal(t, operationOfK, op.ID.String())
		numbers[i] = op.Attempt
	}
	require.Equal(t, []int{1, 2, 1, 1, 1, 1, 1}, numbers)
	require.Equal(t, uuid.Version(8), seen[0].ID.Version())
	require.Equal(t, uuid.RFC4122, seen[0].ID.Variant())
}

// After its TTL, a key has the same operation ID as before, and the store counts the attempts from 1.
func TestOperationIDAfterTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen []idempotency.Operation
		svc := testservice.Setup{Opts: idempotency.Options{TTL: time.Hour}}.Guard(t, func(_ http.ResponseWriter, r *http.Request) {
			op, _ := idempotency.FromContext(r.Context())
			seen = append(seen, op)
		})
		svc.Call("k", "b")
		time.Sleep(time.Hour)
		svc.Call("k", "another body")
		require.Len(t, seen, 2)
		require.NotEqual(t, seen[0].Fingerprint, seen[1].Fingerprint, "the fingerprint shows that the effect belongs to another request")
		seen[1].Fingerprint = seen[0].Fingerprint
		require.Equal(t, seen[0], seen[1])
		require.Equal(t, operationOfK, seen[0].ID.String())
	})
}

const someNote = "payment 4711, trace 00-4bf92f"

// A note goes from the handler through the store to the events of its operation, and never to a client.
func TestNote(t *testing.T) {
	t.Parallel()
	memory := func(t *testing.T) idempotency.Store { return testservice.NewSpyStore() }
	for name, newStore := range map[string]func(t *testing.T) idempotency.Store{
		"memory": memory,
		"cache": func(t *testing.T) idempotency.Store {
			return cache.New(memory(t), cache.Options{})
		},
		"sealed": func(t *testing.T) idempotency.Store {
			return testservice.MustSeal(t, memory(t), testservice.Sealing("a"))
		},
	} {
		for _, header := range []http.Header{nil, {"Content-Type": {"text/plain"}, "Location": {"/payments/1"}}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				svc := testservice.Setup{Store: newStore(t)}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
					assert.NoError(t, idempotency.Annotate(r.Context(), "an earlier note"))
					assert.NoError(t, idempotency.Annotate(r.Context(), someNote))
					for name, values := range header {
						w.Header()[name] = values
					}
					w.WriteHeader(http.StatusCreated)
				})
				first := svc.Post("k", "b")
				require.Equal(t, http.StatusCreated, first.Status)
				testservice.RequireReplay(t, first, svc.Post("k", "b"))
				for _, e := range svc.Journal.All() {
					require.Equal(t, someNote, e.Note, e.Outcome)
				}
				require.Len(t, svc.Journal.All(), 2)
			})
		}
	}
}

// The event of a retry has no note if the answer is not replayed.
func TestNoteOfAnAnswerThatIsNotKept(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, idempotency.Annotate(r.Context(), someNote))
		idempotency.Decide(r.Context(), idempotency.Tombstone)
	})
	require.Equal(t, http.StatusOK, svc.Post("k", "b").Status)
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "not-replayable")
	require.Equal(t, someNote, svc.Journal.All()[0].Note)
	require.Empty(t, svc.Journal.Last(t).Note)
}

// The work of a Runner may set any header field. A field is never taken for a note, even if it looks like the stored
// form of a note.
func TestHeaderIsNoNote(t *testing.T) {
	t.Parallel()
	service := newObservedRunner(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	resp := idempotency.Response{Header: idempotency.NewFields(http.Header{"": {someNote}, ":": {someNote}, " ": {someNote}})}
	for range 2 {
		got, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
			func(context.Context) (idempotency.Response, error) { return resp, nil })
		require.NoError(t, err)
		require.Equal(t, resp, got)
		require.Empty(t, (<-service.events).Note)
	}
}

// Do returns the response with the note, even in the first call. The Note in the response of work is ignored.
func TestNoteOfARunner(t *testing.T) {
	t.Parallel()
	service := newObservedRunner(t, testservice.NewSpyStore(), idempotency.RunnerOptions{})
	for range 2 {
		got, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
			func(ctx context.Context) (idempotency.Response, error) {
				return idempotency.Response{Body: []byte("b"), Note: "of work"}, idempotency.Annotate(ctx, someNote)
			})
		require.NoError(t, err)
		require.Equal(t, idempotency.Response{Body: []byte("b"), Note: someNote}, got)
		require.Equal(t, someNote, (<-service.events).Note)
	}
}

// The text of a note stays although the caller uses its memory again, as fiber does after a request.
func TestNoteIsCopied(t *testing.T) {
	t.Parallel()
	text, store := []byte(someNote), idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	service := newObservedRunner(t, store, idempotency.RunnerOptions{})
	_, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
		func(ctx context.Context) (idempotency.Response, error) {
			return workResponse, idempotency.Annotate(ctx, unsafe.String(&text[0], len(text)))
		})
	require.NoError(t, err)
	copy(text, strings.Repeat("\n", len(text)))
	require.Equal(t, someNote, (<-service.events).Note)
	require.Equal(t, someNote, testservice.MustInspect(t, store, idempotency.Key{ID: "k"}).Note)
}

func TestNotesThatAreRefused(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, idempotency.Annotate(r.Context(), strings.Repeat("x", 255)))
		for _, refused := range []string{strings.Repeat("x", 256), "two\nlines", "tab\t", " space", "space ", "caf\u00e9", "\x7f"} {
			assert.Error(t, idempotency.Annotate(r.Context(), refused), "%q", refused)
		}
	})
	require.Equal(t, http.StatusOK, svc.Post("k", "b").Status)
	require.Equal(t, strings.Repeat("x", 255), svc.Journal.Last(t).Note)
	require.Error(t, idempotency.Annotate(t.Context(), someNote), "no operation")
}

// Each repetition of Complete has the same arguments, as Claim demands, even if Annotate is called between the
// repetitions.
func TestNoteDoesNotChangeBetweenRepetitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &notedStore{Store: testservice.NewSpyStore()}
		service := newObservedRunner(t, store, idempotency.RunnerOptions{})
		_, _, err := service.Do(t.Context(), idempotency.Key{ID: "k"}, nil,
			func(ctx context.Context) (idempotency.Response, error) {
				store.afterFirst = func() { _ = idempotency.Annotate(ctx, "later") }
				return workResponse, idempotency.Annotate(ctx, "first")
			})
		require.NoError(t, err)
		require.Equal(t, "first", (<-service.events).Note)
		require.Len(t, store.notes, 2)
		require.Equal(t, store.notes[0], store.notes[1])
	})
}

// notedStore collects the notes of all calls to Complete, and loses the reply to the first call.
type notedStore struct {
	idempotency.Store
	mu         sync.Mutex
	afterFirst func()
	notes      []string
}

func (s *notedStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = notedClaim{claim, s}
	}
	return record, claim, err
}

// notedClaim is a claim of a notedStore.
type notedClaim struct {
	idempotency.Claim
	store *notedStore
}

func (c notedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	c.store.notes = append(c.store.notes, resp.Note)
	err := c.Claim.Complete(ctx, resp, ttl)
	if len(c.store.notes) == 1 {
		c.store.afterFirst()
		return errors.New("the reply is lost")
	}
	return err
}

// encodeFrame returns a frame of gRPC-Web or of a Connect stream.
func encodeFrame(flag byte, content string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(content))), content...)
}

// gzipText compresses s.
func gzipText(s string) string {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

func TestDefaultStorableUnderstandsStreamsOfConnect(t *testing.T) {
	t.Parallel()
	const final, passing = `{"error":{"code":"not_found"}}`, `{"error":{"code":"unavailable","message":"down"}}`
	for name, test := range map[string]struct {
		end    []byte
		stored bool
	}{
		"ok":                  {encodeFrame(2, `{"metadata":{"a":["b"]}}`), true},
		"final":               {encodeFrame(2, final), true},
		"passing":             {encodeFrame(2, passing), false},
		"final, compressed":   {encodeFrame(3, gzipText(final)), true},
		"passing, compressed": {encodeFrame(3, gzipText(passing)), false},
		"unknown compression": {encodeFrame(3, "?"), true},
		"unknown code":        {encodeFrame(2, `{"error":{}}`), false},
		"not JSON":            {encodeFrame(2, "?"), false},
		"no end":              {nil, false},
	} {
		resp := idempotency.Response{
			Status: 200, Header: "Content-Type: application/connect+proto\n", Body: slices.Concat(encodeFrame(0, "message"), test.end),
		}
		require.Equal(t, test.stored, idempotency.DefaultStorable(&resp), name)
	}
	large := idempotency.Response{Status: 200, Header: "Content-Type: application/connect+json\n", Omitted: true}
	require.True(t, idempotency.DefaultStorable(&large))
}

func TestDefaultStorableUnderstandsGRPC(t *testing.T) {
	t.Parallel()
	carriers := map[string]func(code string) *idempotency.Response{
		"header": func(code string) *idempotency.Response {
			return &idempotency.Response{Status: 200, Header: "Content-Type: application/grpc\nGrpc-Status: " + idempotency.Fields(code) + "\n"}
		},
		"declared trailer": func(code string) *idempotency.Response {
			return &idempotency.Response{
				Status: 200, Header: "Content-Type: application/grpc+proto\n",
				Trailer: "Grpc-Status: " + idempotency.Fields(code) + "\n",
			}
		},
		"trailer": func(code string) *idempotency.Response {
			return &idempotency.Response{
				Status: 200, Header: "Content-Type: application/grpc\n",
				Trailer: idempotency.NewFields(http.Header{http.TrailerPrefix + "Grpc-Status": {code}}),
			}
		},
		"frame": func(code string) *idempotency.Response {
			body := slices.Concat(encodeFrame(0, "message"), encodeFrame(0x80, "grpc-message: text\r\nGrpc-Status: "+code+"\r\n"))
			return &idempotency.Response{Status: 200, Header: "Content-Type: application/grpc-web+proto\n", Body: body}
		},
		"compressed frame": func(code string) *idempotency.Response {
			body := slices.Concat(encodeFrame(1, "message"), encodeFrame(0x81, gzipText("grpc-status: "+code+"\r\n")))
			return &idempotency.Response{Status: 200, Header: "Content-Type: application/grpc-web+proto\n", Body: body}
		},
		"frame in base64": func(code string) *idempotency.Response {
			text := base64.StdEncoding.EncodeToString(encodeFrame(0, "message")) + // each part has its own padding
				base64.StdEncoding.EncodeToString(encodeFrame(0x80, "grpc-status:"+code+"\r\n"))
			return &idempotency.Response{Status: 200, Header: "Content-Type: application/grpc-web-text\n", Body: []byte(text)}
		},
	}
	for carrier, answer := range carriers {
		for code, stored := range map[string]bool{
			"0": true, "1": false, "2": false, "3": true, "4": false, "5": true, "6": true, "7": true, "8": false,
			"9": true, "10": false, "11": true, "12": false, "13": false, "14": false, "15": false, "16": false,
			"99": false, "x": false,
		} {
			require.Equal(t, stored, idempotency.DefaultStorable(answer(code)), "%s: %s", carrier, code)
		}
	}
	for name, test := range map[string]struct {
		resp   idempotency.Response
		stored bool
	}{
		"no status":                        {idempotency.Response{Header: "Content-Type: application/grpc\n"}, false},
		"no status of what is large":       {idempotency.Response{Header: "Content-Type: application/grpc\n", Omitted: true}, true},
		"broken frame":                     {idempotency.Response{Header: "Content-Type: application/grpc-web\n", Body: []byte{0x80, 0xff, 0, 0, 0, 1}}, false},
		"frame in an unknown compression":  {idempotency.Response{Header: "Content-Type: application/grpc-web\n", Body: encodeFrame(0x81, "?")}, true},
		"frame of which a part is missing": {idempotency.Response{Header: "Content-Type: application/grpc-web\n", Body: encodeFrame(0x81, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")}, true},
		"broken base64":                    {idempotency.Response{Header: "Content-Type: application/grpc-web-text\n", Body: []byte("????")}, false},
		"frame of no status":               {idempotency.Response{Header: "Content-Type: application/grpc-web\n", Body: encodeFrame(0x80, "a: b\r\n")}, false},
		"not gRPC":                         {idempotency.Response{Header: "Content-Type: text/plain\nGrpc-Status: 14\n"}, true},
		"conflict":                         {idempotency.Response{Status: 409}, true},
		"conflict that may pass":           {idempotency.Response{Status: 409, Header: "retry-after: 1\n"}, false},
	} {
		if test.resp.Status == 0 {
			test.resp.Status = 200
		}
		require.Equal(t, test.stored, idempotency.DefaultStorable(&test.resp), name)
	}
}

// A transient failure of gRPC may be tried again, although the HTTP status is 200.
func TestTransientFailureOfGRPCMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "message")
		if op.Attempt == 1 {
			w.Header().Set("Grpc-Status", "14") // unavailable
		} else {
			w.Header().Set("Grpc-Status", "9") // failed_precondition
		}
	})
	require.False(t, svc.Post("k", "b").Replayed())
	require.False(t, svc.Post("k", "b").Replayed())
	require.True(t, svc.Post("k", "b").Replayed())
	require.EqualValues(t, 2, svc.Runs.Load())
}

func TestStorableSeesTheWholeAnswer(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		var seen idempotency.Response
		svc := testservice.Setup{Opts: idempotency.Options{Stream: stream, Storable: func(resp *idempotency.Response) bool {
			seen = resp.Clone()
			return true
		}}}.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-Sum", "1")
		})
		svc.Post("k", "b")
		require.Equal(t, idempotency.Response{
			Status: http.StatusAccepted, Header: "Content-Type: text/plain\nTrailer: X-Sum\n", Trailer: "X-Sum: 1\n", Body: []byte("body"),
		}, seen)
	}
}

func TestVerdictOutranksStorable(t *testing.T) {
	t.Parallel()
	const again, replayed, concealed, unknown = "runs again", "is replayed", "is not shown again", "is unknown"
	for name, test := range map[string]struct {
		status                int
		verdict               idempotency.Verdict
		reExecuting, refusing string
	}{
		"keep what is not storable": {500, idempotency.Keep, replayed, replayed},
		"keep what is storable":     {201, idempotency.Keep, replayed, replayed},
		"conceal what is storable":  {201, idempotency.Tombstone, concealed, concealed},
		"conceal what is not":       {500, idempotency.Tombstone, concealed, concealed},
		"free what is storable":     {201, idempotency.Free, again, again},
		"free what is not":          {500, idempotency.Free, again, again},
		"unknown, though storable":  {201, idempotency.Unknown, again, unknown},
		"unknown, and not storable": {502, idempotency.Unknown, again, unknown},
	} {
		for when, early := range map[string]bool{"before": true, "after": false} {
			for policy, retry := range map[idempotency.Abandoned]string{
				idempotency.ReExecute: test.reExecuting, idempotency.Refuse: test.refusing,
			} {
				synctest.Test(t, func(t *testing.T) {
					svc := testservice.Setup{Opts: idempotency.Options{Abandoned: policy}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
						if early {
							assert.True(t, idempotency.Decide(r.Context(), test.verdict))
						}
						w.WriteHeader(test.status)
						_, _ = io.WriteString(w, "answer")
						if !early {
							assert.True(t, idempotency.Decide(r.Context(), idempotency.Keep), "the last call counts")
							assert.True(t, idempotency.Decide(r.Context(), test.verdict))
						}
					})
					first := svc.Call("k", "b")
					require.Equal(t, test.status, first.Status)
					require.Equal(t, "answer", first.Body, "the client gets it in any case")
					second := svc.Call("k", "b")
					switch retry {
					case again:
						require.Equal(t, first, second, "%s %s", name, when)
						require.EqualValues(t, 2, svc.Runs.Load())
					case replayed:
						testservice.RequireReplay(t, first, second)
					case concealed:
						refusal := testservice.RequireProblem(t, second, http.StatusConflict, "not-replayable")
						require.Equal(t, test.status, refusal.OriginalStatus)
						require.EqualValues(t, 1, svc.Runs.Load())
					case unknown:
						testservice.RequireProblem(t, second, http.StatusConflict, "outcome-unknown")
						require.Equal(t, idempotency.OutcomeAbandoned, svc.Journal.All()[0].Outcome)
						require.EqualValues(t, 1, svc.Runs.Load())
					}
				})
			}
		}
	}
}

func TestVerdictWithoutAnOperation(t *testing.T) {
	t.Parallel()
	require.False(t, idempotency.Decide(t.Context(), idempotency.Keep))
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
		assert.False(t, idempotency.Decide(r.Context(), idempotency.Keep))
	})
	svc.Call("", "b")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// A verdict is ignored after the end of the handler.
func TestVerdictOfAGoroutineLeftBehind(t *testing.T) {
	t.Parallel()
	var kept context.Context
	svc := testservice.Setup{}.Guard(t, func(w http.ResponseWriter, r *http.Request) { kept = r.Context() })
	first := svc.Call("k", "b")
	idempotency.Decide(kept, idempotency.Free)
	testservice.RequireReplay(t, first, svc.Call("k", "b"))
}

// An answer that breaks off cannot be replayed. Keep still ends the operation, and a retry gets the problem
// not-replayable.
func TestBrokenAnswerThatIsKept(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), idempotency.Keep)
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "short")
	})
	require.Error(t, svc.Send("/payments", "k", "b").Err)
	testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "not-replayable")
}

// The verdict on an answer over MaxResponse is applied before the first byte of the answer goes out.
func TestVerdictOnALargeAnswer(t *testing.T) {
	t.Parallel()
	for verdict, executed := range map[idempotency.Verdict]int64{
		idempotency.Keep: 1, idempotency.Tombstone: 1, idempotency.Free: 2,
	} {
		svc := testservice.Setup{Opts: idempotency.Options{MaxResponse: 8}}.Guard(t, func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), verdict)
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "over the limit")
		})
		require.Equal(t, "over the limit", svc.Call("k", "b").Body)
		svc.Call("k", "b")
		require.Equal(t, executed, svc.Runs.Load())
	}
}

func TestVerdictOfWork(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict idempotency.Verdict
		err     error
		outcome idempotency.Outcome
		reason  idempotency.EndReason
	}{
		"free":                  {idempotency.Free, nil, idempotency.OutcomeReleased, ""},
		"unknown":               {idempotency.Unknown, nil, idempotency.OutcomeAbandoned, idempotency.EndNotKept},
		"keep":                  {idempotency.Keep, nil, idempotency.OutcomeExecuted, ""},
		"tombstone":             {idempotency.Tombstone, nil, idempotency.OutcomeExecuted, ""},
		"error that is unknown": {idempotency.Unknown, testservice.ErrDown, idempotency.OutcomeAbandoned, idempotency.EndFailed},
		"error that is kept":    {idempotency.Keep, testservice.ErrDown, idempotency.OutcomeReleased, idempotency.EndFailed},
		"error that is hidden":  {idempotency.Tombstone, testservice.ErrDown, idempotency.OutcomeReleased, idempotency.EndFailed},
	} {
		store := testservice.NewSpyStore()
		b := newBench(t, store, idempotency.RunnerOptions{Abandoned: idempotency.Refuse})
		resp, _, err := b.doOperation(func(ctx context.Context) (idempotency.Response, error) {
			assert.True(t, idempotency.Decide(ctx, test.verdict))
			return idempotency.Response{Status: 207}, test.err
		})
		require.Equal(t, test.err, err, name)
		require.Equal(t, 207, resp.Status)
		last := b.journal.Last(t)
		require.Equal(t, test.outcome, last.Outcome, name)
		entry, _ := store.Store.(idempotency.Inspector).Inspect(t.Context(), last.Key)
		require.Equal(t, test.reason, entry.Ended, name)
	}
}

// With Tombstone, nothing of an answer but its status reaches the store: header, body and trailer may contain a
// secret.
func TestTombstoneKeepsNothingOfTheAnswer(t *testing.T) {
	t.Parallel()
	store := testservice.NewSpyStore()
	var stored []idempotency.Response
	spy := recordingStore{store, &stored}
	svc := testservice.Setup{Store: spy}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Token", "secret")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "secret")
		w.Header().Set(http.TrailerPrefix+"X-Token", "secret")
		idempotency.Decide(r.Context(), idempotency.Tombstone)
	})
	first := svc.Post("k", "")
	require.Equal(t, "secret", first.Body)
	require.Equal(t, "secret", first.Header.Get("X-Token"))
	testservice.RequireProblem(t, svc.Post("k", ""), http.StatusConflict, "not-replayable")

	runner, err := idempotency.NewRunner(spy, idempotency.RunnerOptions{})
	require.NoError(t, err)
	work := func(ctx context.Context) (idempotency.Response, error) {
		idempotency.Decide(ctx, idempotency.Tombstone)
		return idempotency.Response{Status: 201, Body: []byte("secret")}, nil
	}
	resp, _, err := runner.Do(t.Context(), idempotency.Key{ID: "k"}, nil, work)
	require.NoError(t, err)
	require.Equal(t, "secret", string(resp.Body))
	_, _, err = runner.Do(t.Context(), idempotency.Key{ID: "k"}, nil, work)
	require.ErrorIs(t, err, idempotency.ErrNotReplayable)

	tombstone := idempotency.Response{Status: http.StatusCreated, Omitted: true}
	require.Equal(t, []idempotency.Response{tombstone, tombstone}, stored)
}

// recordingStore collects the stored responses.
type recordingStore struct {
	idempotency.Store
	storedResponses *[]idempotency.Response
}

func (s recordingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = recordingClaim{claim, s.storedResponses}
	}
	return record, claim, err
}

// recordingClaim is a claim of a recordingStore.
type recordingClaim struct {
	idempotency.Claim
	storedResponses *[]idempotency.Response
}

func (c recordingClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	*c.storedResponses = append(*c.storedResponses, resp.Clone())
	return c.Claim.Complete(ctx, resp, ttl)
}

// A gateway and the service behind the gateway both have a Middleware. The service is still at work when the gateway
// gives up. The gateway does not store the service's refusal that the operation is in progress, because that refusal
// is not the answer.
func TestGatewayDoesNotStoreThatTheServiceIsAtWork(t *testing.T) {
	t.Parallel()
	working, finish := make(chan struct{}, 1), make(chan struct{})
	service := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		working <- struct{}{}
		<-finish
		testservice.Echo(w, r)
	})
	target, err := url.Parse(service.Server.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	impatient := true
	gateway := testservice.Setup{}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if impatient {
			impatient = false
			ctx, cancel := context.WithCancel(r.Context())
			go func() { <-working; cancel() }()
			r = r.WithContext(ctx)
		}
		proxy.ServeHTTP(w, r)
	})
	require.Equal(t, http.StatusBadGateway, gateway.Post("k", "b").Status)
	require.Equal(t, http.StatusConflict, gateway.Post("k", "b").Status)
	close(finish)
	require.Eventually(t, func() bool { return gateway.Post("k", "b").Status == http.StatusCreated },
		10*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 1, service.Runs.Load())
}

// The operation has succeeded before a panic in Storable, so the answer is kept.
func TestPanicInStorableKeepsTheAnswer(t *testing.T) {
	t.Parallel()
	bug := true
	svc := testservice.Setup{Opts: idempotency.Options{Storable: func(*idempotency.Response) bool {
		if bug {
			panic("bug")
		}
		return true
	}}}.Guard(t, testservice.Echo)
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "k")
	require.PanicsWithValue(t, "bug", func() { svc.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	bug = false
	got := svc.Call("k", "")
	require.True(t, got.Replayed())
	require.Equal(t, http.StatusCreated, got.Status)
}

// Storable judges a large answer before the answer is sent. After a panic in Storable, a retry gets the problem
// not-replayable, because the panic says nothing about the operation.
func TestPanicInStorableKeepsALargeAnswer(t *testing.T) {
	t.Parallel()
	storable := func(*idempotency.Response) bool { panic("bug") }
	svc := testservice.Setup{
		Opts: idempotency.Options{MaxResponse: 8, Storable: storable},
	}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "over the limit")
	})
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", "k")
	require.PanicsWithValue(t, "bug", func() { svc.Handler.ServeHTTP(httptest.NewRecorder(), r) })
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// If a handler recovers from the panic in Storable and goes on writing, the client gets the header, and nothing of
// the body.
func TestPanicInStorableIsRecovered(t *testing.T) {
	t.Parallel()
	storable := func(*idempotency.Response) bool { panic("bug") }
	svc := testservice.Setup{
		Opts: idempotency.Options{MaxResponse: 8, Storable: storable},
	}.Guard(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Charge", "1")
		w.WriteHeader(http.StatusCreated)
		for range 2 {
			require.PanicsWithValue(t, "bug", func() { _, _ = io.WriteString(w, "over the limit") })
		}
	})
	answer := svc.Call("k", "")
	require.Equal(t, http.StatusCreated, answer.Status)
	require.Equal(t, "1", answer.Header.Get("X-Charge"))
	require.Empty(t, answer.Body)
	testservice.RequireProblem(t, svc.Call("k", ""), http.StatusConflict, "not-replayable")
	require.EqualValues(t, 1, svc.Runs.Load())
}

// After a large answer that is kept has begun to go out, the operation does not run again, whatever the handler does,
// and even if the store failed at that moment.
func TestLargeAnswerThatHasBegunIsKept(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*http.Request){
		"panic": func(*http.Request) { panic(http.ErrAbortHandler) },
		"free":  func(r *http.Request) { idempotency.Decide(r.Context(), idempotency.Free) },
		"short": func(*http.Request) {},
	} {
		for state, fault := range map[string]testservice.Hook{"up": nil, "down": testservice.Failing(1, testservice.ErrDown)} {
			t.Run(name+", store "+state, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := testservice.NewSpyStore()
					store.OnComplete = fault
					opts := idempotency.Options{MaxResponse: 8, StoreTimeout: time.Millisecond}
					svc := testservice.Setup{Store: store, Opts: opts}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Length", "100")
						_, _ = io.WriteString(w, "over the limit")
						end(r)
					})
					require.Error(t, svc.Send("/payments", "k", "b").Err)
					testservice.RequireProblem(t, svc.Post("k", "b"), http.StatusConflict, "not-replayable")
					require.EqualValues(t, 1, svc.Runs.Load())
					require.Equal(t, idempotency.OutcomeExecuted, svc.Journal.All()[0].Outcome)
				})
			})
		}
	}
}
