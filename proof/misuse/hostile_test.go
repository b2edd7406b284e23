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

var hostileDuration = flag.Duration("hostile", 3*time.Second, "how long TestOneHostileUserAmongAHundred lasts")

// One user sends as many as possible of the requests that cost a store most. A hundred other users are not
// affected: each of their requests is executed once, and replayed.
func TestOneHostileUserAmongAHundred(t *testing.T) {
	for name, test := range map[string]struct {
		store func(*testing.T) idempotency.Store
		outer func(http.Handler) http.Handler
	}{
		// The store limits the bytes of each user.
		"memory": {store: func(*testing.T) idempotency.Store {
			return idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 32 << 20, MaxUserBytes: 128 << 10})
		}},
		// The store has no limit for each user, so a rate limit in front of the middleware bounds how much a user can
		// store.
		"Redis": {store: func(t *testing.T) idempotency.Store {
			client := testservice.NewRedisClient(t, servertest.Redis(t, "--maxmemory", "256mb").Addr())
			return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		}, outer: limitRate(10)},
	} {
		t.Run(name, func(t *testing.T) {
			var limitReached atomic.Bool // the hostile user has reached the store's limit or the rate limit
			watch := func(_ context.Context, e idempotency.Event) {
				if e.Outcome == idempotency.OutcomeQuotaExceeded {
					limitReached.Store(true)
				}
			}
			svc := testservice.Setup{
				Store: test.store(t),
				User:  func(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil },
				Opts:  idempotency.Options{Wait: 5 * time.Second, Observer: watch},
				Outer: test.outer,
			}.Serve(t, charge)
			svc.Server.Client().Transport.(*http.Transport).MaxIdleConnsPerHost = 200
			end := time.Now().Add(*hostileDuration)
			var clients sync.WaitGroup
			var hostile sync.Map // status -> *atomic.Int64
			for range 16 {
				clients.Go(func() {
					// The attack takes longer to reach the limit on a slow machine.
					for now := time.Now(); now.Before(end) || !limitReached.Load() && now.Before(end.Add(time.Minute)); now = time.Now() {
						status := sendAttack(svc).Status
						n, _ := hostile.LoadOrStore(status, new(atomic.Int64))
						n.(*atomic.Int64).Add(1)
						if test.outer != nil && status == http.StatusTooManyRequests {
							limitReached.Store(true)
						}
					}
				})
			}
			var honest atomic.Int64
			for i := range 100 {
				clients.Go(func() {
					pause := time.NewTicker(400 * time.Millisecond)
					defer pause.Stop()
					for ; time.Now().Before(end); <-pause.C {
						payTwice(t, svc, fmt.Sprint("user ", i))
						honest.Add(1)
					}
				})
			}
			clients.Wait()
			counts := map[any]int64{}
			hostile.Range(func(status, n any) bool {
				counts[status] = n.(*atomic.Int64).Load()
				return true
			})
			t.Logf("%d payments of honest users; answers to the hostile one, by status: %v", honest.Load(), counts)
			require.Positive(t, honest.Load())
			require.True(t, limitReached.Load(), "no limit was met")
			require.NotContains(t, counts, 0, "a request without an answer")
		})
	}
}

// payTwice sends a payment twice, like a client after a lost connection.
func payTwice(t *testing.T, svc *testservice.Service, user string) {
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

// charge answers in the way that the header X-Ask-For names. Each default answer has its own ID.
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

// sendAttack sends one request of the hostile user.
func sendAttack(svc *testservice.Service) testservice.Answer {
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
	default: // a small request, to make as many records as possible
	}
	return svc.Send(target, key, body, edits...)
}

// limitRate refuses requests of a user after perSecond requests in the same second.
func limitRate(perSecond int) func(http.Handler) http.Handler {
	var mu sync.Mutex
	requestsByUser := map[string]int{} // requests of each user in this second
	var second int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("X-User")
			mu.Lock()
			if now := time.Now().Unix(); now != second {
				second = now
				clear(requestsByUser)
			}
			requestsByUser[user]++
			refused := requestsByUser[user] > perSecond
			mu.Unlock()
			if refused {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
