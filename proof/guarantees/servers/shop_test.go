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

// shop is a service of two HTTP servers, each with a client of the store of its own. Its clients pay until they have an
// answer, at one server and the other, and give up a request that takes long.
type shop struct {
	t        *testing.T
	servers  []*httptest.Server
	client   http.Client
	patience time.Duration // of every other request, if it is longer than that of the client
	provider *killtest.Provider
	ledger   ledger
	outcomes sync.Map // how many there were of each

	mu     sync.Mutex
	sales  map[string]*sale // since the last audit
	seen   atomic.Int64     // answers
	visits int
}

// sale is what became of one key.
type sale struct {
	began   time.Time // when the client asked first
	seen    time.Time // when the client had an answer; zero: not yet
	receipt string    // that answer
	runs    int       // of the handler
	effects int       // as the ledger has it
	lost    bool      // asked again, another execution has answered
	differ  bool      // asked again, there was another answer without another execution

	unrecorded bool // an answer was given that was not stored in time
	replayed   bool // the answer was seen as one that the store had
}

// ledger is where a handler takes effect.
type ledger interface {
	add(ctx context.Context, key string) error
	effects(t *testing.T) map[string]int
}

// memory is a ledger outside of every store. Nothing in it is ever undone.
type memory struct{ keys sync.Map }

func (m *memory) add(_ context.Context, key string) error {
	count, _ := m.keys.LoadOrStore(key, new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
	return nil
}

func (m *memory) effects(*testing.T) map[string]int {
	all := map[string]int{}
	m.keys.Range(func(key, count any) bool {
		all[key.(string)] = int(count.(*atomic.Int64).Load())
		return true
	})
	return all
}

// patient is for faults after which nothing is forgotten: no lease lapses, and every answer is stored before it is sent.
var patient = idempotency.Options{Lease: time.Minute, StoreTimeout: 30 * time.Second}

// brief is for the others. A key whose claim the store has, but not the answer, is free again soon.
var brief = idempotency.Options{Lease: 3 * time.Second, StoreTimeout: 3 * time.Second}

// patience bounds what is waited for. Nothing takes that long unless it is broken, or the machine is very slow.
const patience = 2 * time.Minute

// newShop returns a service with one server for each store.
func newShop(t *testing.T, opts idempotency.Options, ledger ledger, stores ...idempotency.Store) *shop {
	t.Helper()
	s := &shop{t: t, provider: killtest.NewProvider(t), ledger: ledger, sales: map[string]*sale{}}
	s.client.Timeout = 500 * time.Millisecond
	t.Cleanup(func() { effort.Charges(t, s.provider) })
	opts.Logger = slog.New(slog.DiscardHandler)
	opts.Observer = func(_ context.Context, e idempotency.Event) {
		s.count(e.Outcome).Add(1)
		if e.Outcome == idempotency.OutcomeUnrecorded {
			s.about(e.Key.ID, func(sale *sale) { sale.unrecorded = true })
		}
	}
	for _, store := range stores {
		guard, err := idempotency.New(store, idempotency.SingleUser, opts)
		require.NoError(t, err)
		server := httptest.NewServer(guard.Handler(http.HandlerFunc(s.sell)))
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

func (s *shop) outcome(o idempotency.Outcome) int64 { return s.count(o).Load() }

func (s *shop) count(o idempotency.Outcome) *atomic.Int64 {
	count, _ := s.outcomes.LoadOrStore(o, new(atomic.Int64))
	return count.(*atomic.Int64)
}

// sell charges, and then takes effect. It takes its time now and then, so that faults find handlers that run.
func (s *shop) sell(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	s.about(key, func(sale *sale) { sale.runs++ })
	err := s.provider.Charge(r.Context())
	time.Sleep(mathrand.N(20 * time.Millisecond))
	if err == nil {
		err = s.ledger.add(r.Context(), key)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, rand.Text()) // no two executions give the same answer
	if strings.HasSuffix(key, "0") {      // which is stored in another way
		_, _ = io.WriteString(w, strings.Repeat(".", 4<<10))
	}
}

// about notes something of a key that was not audited yet.
func (s *shop) about(key string, note func(*sale)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sale := s.sales[key]; sale != nil {
		note(sale)
	}
}

// open lets clients pay, until some have, while the fault happens, and then until some more have.
func (s *shop) open(more int64, fault func()) {
	const clients = 8
	var paying sync.WaitGroup
	var closed atomic.Bool
	defer paying.Wait()
	defer closed.Store(true)
	s.visits++
	for n := range clients {
		paying.Go(func() {
			for i := 0; !closed.Load(); i++ {
				key := fmt.Sprint(s.visits, "-", n, "-", i)
				s.buy(key)
				time.Sleep(mathrand.N(10 * time.Millisecond))
			}
		})
	}
	s.await(more)
	fault()
	s.await(more)
}

// await waits until clients have seen so many more answers.
func (s *shop) await(more int64) {
	s.t.Helper()
	before := s.seen.Load()
	enough := func() bool { return s.seen.Load() >= before+more }
	require.Eventually(s.t, enough, patience, time.Millisecond)
}

func (s *shop) buy(key string) {
	sale := &sale{began: time.Now()}
	s.mu.Lock()
	s.sales[key] = sale
	s.mu.Unlock()
	receipt, replayed := s.pay(key, s.servers)
	s.mu.Lock()
	defer s.mu.Unlock()
	sale.receipt, sale.replayed, sale.seen = receipt, replayed, time.Now()
	s.seen.Add(1)
}

// pay asks one of these servers after the other until there is an answer.
func (s *shop) pay(key string, servers []*httptest.Server) (receipt string, replayed bool) {
	n := mathrand.IntN(len(servers))
	refusal := map[string]int{}
	for until := time.Now().Add(patience); time.Now().Before(until); n++ {
		receipt, replayed, err := s.ask(servers[n%len(servers)], key)
		if err == nil {
			return receipt, replayed
		}
		refusal[err.Error()]++
		time.Sleep(10 * time.Millisecond)
	}
	s.t.Errorf("key %s is stuck: %v", key, refusal)
	return "", false
}

func (s *shop) ask(server *httptest.Server, key string) (receipt string, replayed bool, err error) {
	r, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("pay"))
	if err != nil {
		return "", false, err
	}
	r.Header.Set("Idempotency-Key", key)
	client := s.client
	if mathrand.IntN(2) == 0 {
		client.Timeout = max(client.Timeout, s.patience)
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
