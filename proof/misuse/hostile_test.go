package misuse_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

var hostileFor = flag.Duration("hostile", 3*time.Second, "how long TestOneHostileUserAmongAHundred lasts")

// One user sends as much as possible of what costs a store most. None of a hundred others notices: each of their
// requests is executed once, and replayed.
func TestOneHostileUserAmongAHundred(t *testing.T) {
	for name, test := range map[string]struct {
		store func(*testing.T) idempotency.Store
		outer func(http.Handler) http.Handler
	}{
		// The store gives each user a share.
		"memory": {store: func(*testing.T) idempotency.Store {
			return idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 32 << 20, MaxUserBytes: 128 << 10})
		}},
		// The store has no shares: a rate limit in front of the middleware bounds what a user can have stored.
		"Redis": {store: func(t *testing.T) idempotency.Store {
			client := testservice.NewRedisClient(t, servertest.Redis(t, "--maxmemory", "256mb").Addr())
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		}, outer: atMost(10)},
	} {
		t.Run(name, func(t *testing.T) {
			var stopped atomic.Bool // the hostile user has met a limit: the share, or that in front of the middleware
			watch := func(_ context.Context, e idempotency.Event) {
				if e.Outcome == idempotency.OutcomeQuotaExceeded {
					stopped.Store(true)
				}
			}
			svc := testservice.Setup{
				Store: test.store(t),
				User:  func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
				Opts:  idempotency.Options{Wait: 5 * time.Second, Observer: watch},
				Outer: test.outer,
			}.Serve(t, charge)
			svc.Server.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 200
			end := time.Now().Add(*hostileFor)
			var all sync.WaitGroup
			var hostile sync.Map // status -> *atomic.Int64
			for range 16 {
				all.Go(func() {
					// On a slow machine it takes longer until the attack has gone as far as it can.
					for now := time.Now(); now.Before(end) || !stopped.Load() && now.Before(end.Add(time.Minute)); now = time.Now() {
						status := attack(svc).Status
						n, _ := hostile.LoadOrStore(status, new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
						if test.outer != nil && status == http.StatusTooManyRequests {
							stopped.Store(true)
						}
					}
				})
			}
			var honest atomic.Int64
			for i := range 100 {
				all.Go(func() {
					pause := time.NewTicker(400 * time.Millisecond)
					defer pause.Stop()
					for ; time.Now().Before(end); <-pause.C {
						pay(t, svc, fmt.Sprint("user ", i))
						honest.Add(1)
					}
				})
			}
			all.Wait()
			counts := map[any]int64{}
			hostile.Range(func(status, n any) bool {
				counts[status] = n.(*atomic.Int64).Load()
				return true
			})
			t.Logf("%d payments of honest users; answers to the hostile one, by status: %v", honest.Load(), counts)
			require.Positive(t, honest.Load())
			require.True(t, stopped.Load(), "no limit was met")
			require.NotContains(t, counts, 0, "a request without an answer")
		})
	}
}

// pay sends a payment twice, as a client does that has lost its connection.
func pay(t *testing.T, svc *testservice.Service, user string) {
	key := rand.Text()
	var answers [2]testservice.Answer
	for i := range answers {
		answers[i] = svc.Send("/payments", key, `{"amount":1}`, testservice.WithHeader("X-User", user))
	}
	first, second := answers[0], answers[1]
	if first.Err != nil || second.Err != nil || first.Status != http.StatusCreated || first.Replayed() ||
		second.Status != http.StatusCreated || !second.Replayed() || first.Body != second.Body {
		t.Errorf("%s: first %d %s %v, then %d %s %v", user, first.Status, first.Body, first.Err, second.Status, second.Body, second.Err)
	}
}

// charge answers as it is asked to: each answer has an ID of its own.
func charge(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Large", r.Header.Get("X-Answer-Header"))
	switch r.Header.Get("X-Ask-For") {
	case "refusal":
		w.WriteHeader(http.StatusTooManyRequests)
	case "failure":
		w.WriteHeader(http.StatusBadGateway)
	case "large answer":
		_, _ = io.WriteString(w, strings.Repeat("x", 900<<10))
	case "slow answer":
		time.Sleep(100 * time.Millisecond)
		w.WriteHeader(http.StatusCreated)
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, rand.Text())
	}
}

// attack sends one request of the hostile user.
func attack(svc *testservice.Service) testservice.Answer {
	target, key, body := "/payments", rand.Text(), ""
	edits := []testservice.Edit{testservice.WithHeader("X-User", "mallory")}
	ask := func(what string) { edits = append(edits, testservice.WithHeader("X-Ask-For", what)) }
	switch mathrand.IntN(8) {
	case 0:
		ask("refusal")
	case 1:
		ask("failure")
	case 2:
		ask("large answer")
	case 3:
		ask("refusal")
		target = "/" + strings.Repeat("a", 60_000)
	case 4:
		ask("slow answer")
		key = "always-the-same"
	case 5:
		body = strings.Repeat("x", 900<<10)
	case 6:
		edits = append(edits, testservice.WithHeader("X-Answer-Header", strings.Repeat("x", 60_000)))
	default: // as many records as possible
	}
	return svc.Send(target, key, body, edits...)
}

// atMost lets so many requests of a user pass in each second.
func atMost(each int) func(http.Handler) http.Handler {
	var mu sync.Mutex
	passed := map[string]int{} // in this second
	var second int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("X-User")
			mu.Lock()
			if now := time.Now().Unix(); now != second {
				second = now
				clear(passed)
			}
			passed[user]++
			refused := passed[user] > each
			mu.Unlock()
			if refused {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
