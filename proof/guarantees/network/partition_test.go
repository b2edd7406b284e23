package network_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// requireNamespaces ends the test unless err is nil. In CI the test fails, unless IDEMPOTENCY_NO_NETNS accepts that the test is
// skipped.
func requireNamespaces(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	_, ci := os.LookupEnv("IDEMPOTENCY_CI")
	_, accepted := os.LookupEnv("IDEMPOTENCY_NO_NETNS")
	if ci && !accepted {
		t.Fatalf("NOT RUN: no network namespaces on this machine (IDEMPOTENCY_NO_NETNS=1 accepts that): %v", err)
	}
	t.Skipf("NOT RUN: no network namespaces on this machine: %v", err)
}

// partition has two processes that use the same key. The cable can cut the owner off from its store, but not the other process.
type partition struct {
	*trial
	*cable
	ownerProcess, otherProcess *process
	ownerAnswers               chan answer // the answer to the first request to the owner
	ownerWorks                 chan struct{}
}

// startPartition starts an owner whose store is behind a cable, and another process. The handler of the owner calls work, and the
// handler of the other process adds an effect. Each handler answers with the name of its process unless its work returns an error.
func startPartition(t *testing.T, b *backend, lease time.Duration, policy idempotency.Abandoned,
	connect func(*testing.T, *cable) idempotency.Store, work func(*partition, *http.Request) error,
) *partition {
	p := &partition{
		trial: newTrial(t, b, policyScenario{scenario{leaseDuration: lease}, policy}), cable: newCable(t),
		ownerAnswers: make(chan answer, 1), ownerWorks: make(chan struct{}),
	}
	handler := func(name string, work func(*http.Request) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if work(r) != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(name))
		}
	}
	p.ownerProcess = p.startProcess(connect(t, p.cable), p.buildOptions(), handler("owner", func(r *http.Request) error {
		return work(p, r)
	}))
	p.otherProcess = p.startProcess(b.directStore, p.buildOptions(), handler("other", func(r *http.Request) error {
		return b.effectLedger.addEffect(r.Context(), p.key)
	}))
	p.processes = []*process{p.ownerProcess, p.otherProcess}
	go func() {
		first := p.ownerProcess.sendOnce(p.key)
		for first.problemName() == "store-unavailable" && !p.isWorking() { // on a busy machine
			first = p.ownerProcess.sendOnce(p.key)
		}
		p.ownerAnswers <- first
	}()
	<-p.ownerWorks
	return p
}

func (p *partition) isWorking() bool {
	select {
	case <-p.ownerWorks:
		return true
	default:
		return false
	}
}

// An owner that is cut off stops in time, and another process takes over. The answer of the owner is not stored, whether the owner
// answers before or after the cut heals.
func TestPartitionedOwner(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	runEveryCut(t, storeOpeners, cutBothWays, func(t *testing.T, b *backend, connect storeConnector, healsFirst bool) {
		stopped, answers := make(chan struct{}), make(chan struct{})
		p := startPartition(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			close(p.ownerWorks)
			awaitDone(t, r.Context().Done())
			close(stopped)
			awaitDone(t, answers)
			return nil
		})
		p.cut()
		began := time.Now()
		final := p.otherProcess.repeatUntilFinal(p.key)
		require.Less(t, time.Since(began), lease+5*time.Second)
		require.Equal(t, answer{http.StatusCreated, "other"}, final)
		select {
		case <-stopped:
		default:
			require.Fail(t, "the owner was not told before another one took over")
		}
		if healsFirst {
			p.heal()
			require.Eventually(t, func() bool {
				_, _, err := p.ownerProcess.rememberingStore.repeatBegin(p.ownerProcess.rememberingStore.Store)
				return err == nil
			}, patience, 10*time.Millisecond, "the owner reaches its store")
		}
		close(answers)
		first := <-p.ownerAnswers
		if healsFirst {
			require.Equal(t, "in-progress", first.problemName(), "its claim is lost")
		}
		p.heal()
		p.requireSettled(final)
	})
}

// With Refuse the other process does not take over. When the cut heals, the answer of the owner is stored for all clients.
func TestPartitionedOwnerThatNobodyReplaces(t *testing.T) {
	t.Parallel()
	runEveryCut(t, storeOpeners, cutOneWay, func(t *testing.T, b *backend, connect storeConnector, _ bool) {
		answers := make(chan struct{})
		p := startPartition(t, b, 2*time.Second, idempotency.Refuse, connect, func(p *partition, r *http.Request) error {
			close(p.ownerWorks)
			awaitDone(t, answers)
			return b.effectLedger.addEffect(r.Context(), p.key)
		})
		p.cut()
		require.Eventually(t, func() bool {
			return p.otherProcess.sendOnce(p.key).problemName() == "outcome-unknown"
		}, patience, retryPause)
		close(answers)
		require.Equal(t, answer{http.StatusCreated, "owner"}, <-p.ownerAnswers, "the effect exists, so the answer is true")
		p.heal()
		p.requireSettled(answer{http.StatusCreated, "owner"})
	})
}

// A cut that is shorter than the lease costs nothing.
func TestShortPartition(t *testing.T) {
	t.Parallel()
	const lease = 12 * time.Second // long enough for a busy machine
	runEveryCut(t, storeOpeners, cutOneWay, func(t *testing.T, b *backend, connect storeConnector, _ bool) {
		p := startPartition(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			close(p.ownerWorks)
			awaitRenewal(p.trial, r)
			if err := r.Context().Err(); err != nil {
				return err
			}
			return b.effectLedger.addEffect(r.Context(), p.key)
		})
		p.cut()
		record, _, err := p.ownerProcess.rememberingStore.repeatBegin(b.directStore)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // until a renewal was due and failed
			record, _, err = p.ownerProcess.rememberingStore.repeatBegin(b.directStore)
			return err != nil || record.LeaseLeft < lease-lease/3-storeTimeout-retryPause/2
		}, patience, 10*time.Millisecond)
		p.heal()
		require.Equal(t, answer{http.StatusCreated, "owner"}, <-p.ownerAnswers)
		p.requireSettled(answer{http.StatusCreated, "owner"})
	})
}

// An owner is cut off in the transaction of a step. Another process writes the rows when the lease has lapsed or, if the owner has
// locked the record, when the server has ended the silent session. The owner commits nothing, and does not claim to have committed.
func TestPartitionedStep(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	runEveryCut(t, stepStoreOpeners, cutBothWays, func(t *testing.T, b *backend, connect storeConnector, healsFirst bool) {
		answers, failed := make(chan struct{}), make(chan error, 1)
		p := startPartition(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			err := b.effectLedger.(*rowLedger).addEffectAnd(r.Context(), p.key, patience, func() {
				close(p.ownerWorks)
				awaitDone(t, answers)
			})
			failed <- err
			return err
		})
		p.cut()
		began := time.Now()
		final := p.otherProcess.repeatUntilFinal(p.key)
		require.Less(t, time.Since(began), lease+idleTimeout+5*time.Second)
		require.Equal(t, answer{http.StatusCreated, "other"}, final)
		if healsFirst {
			p.heal()
		}
		close(answers)
		require.Error(t, <-failed)
		require.NotEqual(t, http.StatusCreated, (<-p.ownerAnswers).status, "its rows were rolled back")
		p.heal()
		p.requireSettled(final)
	})
}

// awaitDone waits for done, or for the end of a failed test.
func awaitDone(t *testing.T, done <-chan struct{}) {
	select {
	case <-done:
	case <-t.Context().Done():
	}
}

// storeConnector opens a store through a cable.
type storeConnector = func(*testing.T, *cable) idempotency.Store

// The ways in which an owner can answer, by name. The value reports whether the cut heals before the owner answers.
var (
	cutBothWays = map[string]bool{"answers after the cut": true, "answers while cut off": false}
	cutOneWay   = map[string]bool{"cut": true}
)

// backendOpener starts the server of a store, and returns a connector that reaches the server through a cable.
type backendOpener = func(*testing.T) (*backend, storeConnector)

var (
	storeOpeners     = map[string]backendOpener{"Redis": openRedisBehindCable, "Postgres": newPostgresOpener(nil, pgxstore.Options{})}
	stepStoreOpeners = map[string]backendOpener{
		"read committed": newPostgresOpener(&rowLedger{}, pgxstore.Options{}),
		"serializable":   newPostgresOpener(&rowLedger{}, pgxstore.Options{Isolation: pgx.Serializable}),
		"of the handler": newPostgresOpener(&rowLedger{handlerOwnsTx: true}, pgxstore.Options{}),
	}
)

// runEveryCut runs a test with every store in every way, several times.
func runEveryCut(t *testing.T, stores map[string]backendOpener, ways map[string]bool,
	test func(t *testing.T, b *backend, connect storeConnector, healsFirst bool),
) {
	rounds := effort.Of(2)
	newCable(t) // the test ends here if the machine does not allow namespaces
	for store, open := range stores {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			b, connect := open(t)
			t.Run("all", func(t *testing.T) {
				for way, healsFirst := range ways {
					for range rounds {
						t.Run(way, func(t *testing.T) {
							t.Parallel()
							test(t, b, connect, healsFirst)
						})
					}
				}
			})
			b.requireEmpty(t)
		})
	}
	effort.Count(t, "cuts", rounds*len(stores)*len(ways))
}

func openRedisBehindCable(t *testing.T) (*backend, storeConnector) {
	server := servertest.Redis(t)
	return newRedisBackendOn(t, server), func(t *testing.T, c *cable) idempotency.Store {
		client := redis.NewClient(&redis.Options{
			Addr: c.serveAtFar(t, server.Addr()), Password: servertest.RedisPassword(), Dialer: c.dialFromNear,
		})
		t.Cleanup(func() { _ = client.Close() })
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	}
}

// newPostgresOpener returns an opener. The effects are rows of the ledger rows, unless rows is nil.
func newPostgresOpener(rows *rowLedger, opts pgxstore.Options) backendOpener {
	return func(t *testing.T) (*backend, storeConnector) { return openPostgresBehindCable(t, rows, opts) }
}

func openPostgresBehindCable(t *testing.T, rows *rowLedger, opts pgxstore.Options) (*backend, storeConnector) {
	db := servertest.Postgres(t)
	b := newPostgresBackendOn(t, db, rows, opts)
	return b, func(t *testing.T, c *cable) idempotency.Store {
		return b.openStore(newPool(t, db.URLAt(c.serveAtFar(t, db.Addr())), func(config *pgxpool.Config) {
			config.ConnConfig.DialFunc = c.dialFromNear
		}))
	}
}
