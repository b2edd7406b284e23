package servers_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/killtest"
)

// shop is a service of two HTTP servers. Each server has its own client of the store. The clients of the shop repeat a payment at
// alternating servers until they have an answer, and give up a request that takes long.
type shop struct {
	test          *testing.T
	servers       []*httptest.Server
	client        http.Client
	longTimeout   time.Duration // timeout of half of the requests, if longer than the timeout of client
	provider      *killtest.Provider
	ledger        ledger
	outcomeCounts sync.Map // of *atomic.Int64, by idempotency.Outcome

	mu          sync.Mutex
	sales       map[string]*sale // by key, since the last audit
	seenAnswers atomic.Int64
	openCount   int
}

// sale is the history of a key.
type sale struct {
	firstAsked  time.Time // when the client sent the first request
	answerSeen  time.Time // when the client received an answer; zero: not yet
	receipt     string    // the answer
	handlerRuns int
	effectCount int  // in the ledger
	wasLost     bool // the answer to a later request came from another execution
	hasDiffered bool // the answer to a later request differed without another execution

	wasUnrecorded bool // an answer was sent although it was not stored in time
	wasReplayed   bool // the client saw the answer as a replay
}

// ledger records the effects of handlers.
type ledger interface {
	addEffect(ctx context.Context, key string) error
	countEffects(t *testing.T) map[string]int
}

// memoryLedger is a ledger outside of every store. No effect is ever undone.
type memoryLedger struct{ countsByKey sync.Map }

func (m *memoryLedger) addEffect(_ context.Context, key string) error {
	count, _ := m.countsByKey.LoadOrStore(key, new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
	return nil
}

func (m *memoryLedger) countEffects(*testing.T) map[string]int {
	all := map[string]int{}
	m.countsByKey.Range(func(key, count any) bool {
		all[key.(string)] = int(count.(*atomic.Int64).Load())
		return true
	})
	return all
}

// patientOptions is for faults after which no record is forgotten, because no lease lapses, and every answer is stored before the
// answer is sent.
var patientOptions = idempotency.Options{Lease: time.Minute, StoreTimeout: 30 * time.Second}

// briefOptions is for other faults. A key whose claim survives without an answer is soon free again.
var briefOptions = idempotency.Options{Lease: 3 * time.Second, StoreTimeout: 3 * time.Second}

// patience limits every wait. A wait takes this long only if the code is broken or the machine is very slow.
const patience = 2 * time.Minute

// newShop returns a service with one server for each store.
func newShop(t *testing.T, opts idempotency.Options, ledger ledger, stores ...idempotency.Store) *shop {
	t.Helper()
	s := &shop{test: t, provider: killtest.NewProvider(t), ledger: ledger, sales: map[string]*sale{}}
	s.client.Timeout = 500 * time.Millisecond
	t.Cleanup(func() { effort.Charges(t, s.provider) })
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Observer = func(_ context.Context, e idempotency.Event) {
		s.outcomeCounter(e.Outcome).Add(1)
		if e.Outcome == idempotency.OutcomeUnrecorded {
			s.updateSale(e.Key.ID, func(sale *sale) { sale.wasUnrecorded = true })
		}
	}
	for _, store := range stores {
		guard, err := idempotency.New(store, idempotency.SingleUser, opts)
		require.NoError(t, err)
		server := httptest.NewServer(guard.Handler(http.HandlerFunc(s.handlePayment)))
		t.Cleanup(func() {
			server.Close()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			require.NoError(t, guard.Shutdown(ctx))
		})
		s.servers = append(s.servers, server)
	}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

func (s *shop) outcomeCount(o idempotency.Outcome) int64 { return s.outcomeCounter(o).Load() }

func (s *shop) outcomeCounter(o idempotency.Outcome) *atomic.Int64 {
	count, _ := s.outcomeCounts.LoadOrStore(o, new(atomic.Int64))
	return count.(*atomic.Int64)
}

// handlePayment charges, and then adds the effect. A random sleep between makes sure that faults hit running handlers.
func (s *shop) handlePayment(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	s.updateSale(key, func(sale *sale) { sale.handlerRuns++ })
	err := s.provider.Charge(r.Context())
	time.Sleep(mathrand.N(20 * time.Millisecond))
	if err == nil {
		err = s.ledger.addEffect(r.Context(), key)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, rand.Text()) // no two executions give the same answer
	if strings.HasSuffix(key, "0") {      // long answers, because the store stores them in another way
		_, _ = io.WriteString(w, strings.Repeat(".", 4<<10))
	}
}

// updateSale calls note with the sale of key, unless the sale is already audited.
func (s *shop) updateSale(key string, note func(*sale)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sale := s.sales[key]; sale != nil {
		note(sale)
	}
}

// payDuring lets clients pay until they have seen more answers, then during the fault, and then until they have again seen more
// answers.
func (s *shop) payDuring(more int64, fault func()) {
	const clients = 8
	var paying sync.WaitGroup
	var closed atomic.Bool
	defer paying.Wait()
	defer closed.Store(true)
	s.openCount++
	for n := range clients {
		paying.Go(func() {
			for i := 0; !closed.Load(); i++ {
				key := fmt.Sprint(s.openCount, "-", n, "-", i)
				s.buyOnce(key)
				time.Sleep(mathrand.N(10 * time.Millisecond))
			}
		})
	}
	s.awaitAnswers(more)
	fault()
	s.awaitAnswers(more)
}

// awaitAnswers waits until clients have seen more further answers.
func (s *shop) awaitAnswers(more int64) {
	s.test.Helper()
	before := s.seenAnswers.Load()
	enough := func() bool { return s.seenAnswers.Load() >= before+more }
	require.Eventually(s.test, enough, patience, time.Millisecond)
}

func (s *shop) buyOnce(key string) {
	sale := &sale{firstAsked: time.Now()}
	s.mu.Lock()
	s.sales[key] = sale
	s.mu.Unlock()
	receipt, replayed := s.payUntilAnswered(key, s.servers)
	s.mu.Lock()
	defer s.mu.Unlock()
	sale.receipt, sale.wasReplayed, sale.answerSeen = receipt, replayed, time.Now()
	s.seenAnswers.Add(1)
}

// payUntilAnswered asks servers in turn until the key has an answer.
func (s *shop) payUntilAnswered(key string, servers []*httptest.Server) (receipt string, replayed bool) {
	n := mathrand.IntN(len(servers))
	refusal := map[string]int{}
	for until := time.Now().Add(patience); time.Now().Before(until); n++ {
		receipt, replayed, err := s.sendPayment(servers[n%len(servers)], key)
		if err == nil {
			return receipt, replayed
		}
		refusal[err.Error()]++
		time.Sleep(10 * time.Millisecond)
	}
	s.test.Errorf("key %s is stuck: %v", key, refusal)
	return "", false
}

func (s *shop) sendPayment(server *httptest.Server, key string) (receipt string, replayed bool, err error) {
	r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("pay"))
	if err != nil {
		return "", false, err
	}
	r.Header.Set("Idempotency-Key", key)
	client := s.client
	if mathrand.IntN(2) == 0 {
		client.Timeout = max(client.Timeout, s.longTimeout)
	}
	resp, err := client.Do(r)
	if err != nil {
		return "", false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), resp.Header.Get("Idempotent-Replayed") != "", err
}
