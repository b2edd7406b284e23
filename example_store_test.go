package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
)

// A MemoryStore has bounds: one user cannot take the room of the others.
func ExampleNewMemoryStore() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 64 << 10, MaxUserBytes: 8 << 10})
	user := func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("x", 1<<10))
	}))
	send := func(user string, key int) int {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("X-User", user)
		r.Header.Set("Idempotency-Key", fmt.Sprint(key))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	answers := map[int]int{}
	for key := range 50 {
		answers[send("mallory", key)]++
	}
	fmt.Println("mallory refused:", answers[http.StatusTooManyRequests] > 0)
	fmt.Println("alice:", send("alice", 1))
	// Output:
	// mallory refused: true
	// alice: 200
}

// Services that share a Redis have a prefix each.
func ExampleRedisOptions_prefix() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "staging:payments:idempotency:"})
	_ = store
}

// redisLog gives to slog what go-redis has to say. What this means for a request is said by the middleware, at the level ERROR.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, values ...any) {
	slog.DebugContext(ctx, "go-redis: "+fmt.Sprintf(format, values...))
}

// go-redis writes to stderr, unless it is given a logger.
func ExampleNewRedisStore_logger() {
	redis.SetLogger(redisLog{}) // for all clients of the process
}

// A service weighs what Check has found. This one may lose its records with the power, and nothing else.
func ExampleRedisStore_Check() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	err := idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(context.Background())
	for _, finding := range idempotency.Findings(err) {
		unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding)
		if !ok || !strings.HasPrefix(unsafe.Setting, "append") {
			log.Fatal(finding) // or Redis does not answer
		}
		log.Print(unsafe.Node, unsafe.Setting, unsafe.Value, unsafe.Risk)
	}
}

// Wrapping a store is enough to count its steps, to log them, or to make it fail in a test.
func ExampleStore() {
	store := &switchable{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), down: true}
	opts := idempotency.Options{FailOpen: true, Logger: slog.New(slog.DiscardHandler)}
	idem, err := idempotency.New(store, idempotency.SingleUser, opts)
	if err != nil {
		log.Fatal(err)
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		fmt.Println("attempt", op.Attempt, op.DownstreamKey("charge"))
	}))
	for range 2 {
		r := httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "1")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// attempt 0 e47137d2-7929-5e00-be29-51573412aa45
	// attempt 0 e47137d2-7929-5e00-be29-51573412aa45
}

// switchable is a Store that can be down.
type switchable struct {
	idempotency.Store
	down bool
}

func (s *switchable) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.down {
		return idempotency.Record{}, nil, errors.New("connection refused")
	}
	return s.Store.Begin(ctx, key, request)
}

// counted is a Store in front of another one. By Unwrap, As finds what the other Store can do, such as Resolve.
type counted struct {
	idempotency.Store
	begins atomic.Int64
}

func (s *counted) Unwrap() idempotency.Store { return s.Store }

// Immediate says that counted itself waits for nothing.
func (s *counted) Immediate() bool {
	inner, ok := s.Store.(idempotency.Immediate)
	return ok && inner.Immediate()
}

func (s *counted) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.begins.Add(1)
	return s.Store.Begin(ctx, key, request)
}

// A Key does not print what may be personal. Its digest is what stores use as their key.
func ExampleKey() {
	key := idempotency.Key{User: "alice@example.com", Endpoint: "POST /payments", ID: "order-1"}
	fmt.Println(strings.Contains(fmt.Sprintf("%+v", key), "alice"))
	other := key
	other.User = "bob@example.com"
	fmt.Println(key.Digest() == other.Digest())
	// Output:
	// false
	// false
}

// A store keeps a long part of a key in a shortened form. Bounded returns the key as the store has it.
func ExampleKey_Bounded() {
	key := idempotency.Key{User: "alice", Endpoint: "POST /" + strings.Repeat("a", 300), ID: "order-1"}
	bounded := key.Bounded()
	fmt.Println(len(key.Endpoint), len(bounded.Endpoint), bounded.ID)
	// Output: 306 257 order-1
}

// Fields keep a header as text: one line for each value.
func ExampleNewFields() {
	fields := idempotency.NewFields(http.Header{
		"Content-Type": {"application/json"},
		"Link":         {"</a>", "</b>"},
	})
	fmt.Print(fields)
	fmt.Println(fields.Get("content-type"))
	// Output:
	// Content-Type: application/json
	// Link: </a>
	// Link: </b>
	// application/json
}

// A store reads fields that it has kept.
func ExampleParseFields() {
	fields, err := idempotency.ParseFields("Content-Type: text/plain\n")
	fmt.Println(fields.Header(), err)
	_, err = idempotency.ParseFields("no newline")
	fmt.Println(err)
	// Output:
	// map[Content-Type:[text/plain]] <nil>
	// idempotency: stored record not readable: lines of the header
}

// A store of your own keeps an answer as bytes.
func ExampleResponse() {
	answer := idempotency.Response{
		Status: http.StatusCreated,
		Header: idempotency.NewFields(http.Header{"Location": {"/payments/1"}}),
		Body:   []byte("paid"),
	}
	stored, err := answer.MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	var read idempotency.Response
	if err := read.UnmarshalBinary(stored); err != nil {
		log.Fatal(err) // wraps ErrRecordInvalid
	}
	fmt.Printf("%d %s %s\n", read.Status, read.Header.Get("Location"), read.Body)
	// Output: 201 /payments/1 paid
}

// The support asks what became of a key, and lets the operation run again.
func ExampleInspector() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/payments", nil)
	r.Header.Set("Idempotency-Key", "order-1")
	idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "card expired", http.StatusPaymentRequired)
	})).ServeHTTP(httptest.NewRecorder(), r)

	ctx := context.Background()
	user, _ := idempotency.SingleUser(nil)
	key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: "order-1"}
	entry, err := store.Inspect(ctx, key.Bounded())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, attempt %d: %d %s", entry.State, entry.Attempt, entry.Status, entry.Response.Body)

	if err := store.Forget(ctx, entry); err != nil {
		log.Fatal(err)
	}
	_, err = store.Inspect(ctx, key)
	fmt.Println(errors.Is(err, idempotency.ErrNoRecord))
	// Output:
	// completed, attempt 1: 402 card expired
	// true
}

// List shows the largest records, and how many there are of each state.
func ExampleInspector_list() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	for id, answer := range map[string]string{"1": "short", "2": "a longer answer", "3": ""} {
		key := idempotency.Key{User: "billing", Endpoint: "invoices", ID: id}
		_, _, _ = runner.Do(ctx, key, nil, func(context.Context) (idempotency.Response, error) {
			if answer == "" {
				return idempotency.Response{}, errors.New("the printer is out of paper") // may be tried again
			}
			return idempotency.Response{Body: []byte(answer)}, nil
		})
	}
	listing, err := store.List(ctx, idempotency.ListRequest{Largest: true, Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("largest:", listing.Entries[0].Key.ID)
	fmt.Println("completed:", listing.Totals[idempotency.StateCompleted].Records)
	fmt.Println("released:", listing.Totals[idempotency.StateReleased].Records)
	// Output:
	// largest: 2
	// completed: 2
	// released: 1
}

// A program that is given a store tells whether handlers may have steps, and steps in transactions.
func ExampleCheckpointer() {
	var store idempotency.Store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	_, claim, err := store.Begin(context.Background(), idempotency.Key{User: "alice", ID: "1"},
		idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	_, steps := claim.(idempotency.Checkpointer)
	_, rows := claim.(idempotency.TxCheckpointer)
	fmt.Println("steps:", steps, "in transactions:", rows)
	// Output: steps: true in transactions: false
}

// A tool says whether its store lets operators end what was abandoned. Package resolve does it.
func ExampleResolver() {
	var store idempotency.Inspector = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	_, ok := store.(idempotency.Resolver)
	fmt.Println(ok)
	// Output: true
}

// A wrapper that only counts is no Resolver. The store behind it is.
func ExampleAs() {
	store := &counted{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	_, direct := idempotency.Store(store).(idempotency.Resolver)
	resolver, found := idempotency.As[idempotency.Resolver](store)
	fmt.Println(direct, found)
	_, err := resolver.Inspect(context.Background(), idempotency.Key{ID: "k"})
	fmt.Println(err)
	// Output:
	// false true
	// idempotency: no record of the key
}

// New reports the faults of the store's options together with its own.
func ExampleValidator() {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	_, isValidator := idempotency.Store(store).(idempotency.Validator)
	_, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{MaxBody: -1})
	fmt.Println(isValidator)
	fmt.Println(err)
	// Output:
	// true
	// idempotency: MaxBytes -1 is negative
	// idempotency: MaxBody -1 is negative
}
