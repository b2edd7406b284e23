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

// requireNamespaces ends the test unless err is nil. In CI it may be skipped only if somebody has said so.
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

// partition is an owner that can be cut off from its store, and a process that cannot. They have one key.
type partition struct {
	*trial
	*cable
	owner, other *process
	answers      chan answer // of the first request to the owner
	working      chan struct{}
}

// split starts an owner whose store is behind a cable, and another process. Either handler answers with the name of its
// process if its work returns no error. Work is that of the owner. The other one has its effect.
func split(t *testing.T, b *backend, lease time.Duration, policy idempotency.Abandoned,
	connect func(*testing.T, *cable) idempotency.Store, work func(*partition, *http.Request) error,
) *partition {
	p := &partition{
		trial: newTrial(t, b, subject{scenario{lease: lease}, policy}), cable: newCable(t),
		answers: make(chan answer, 1), working: make(chan struct{}),
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
	p.owner = p.begin(connect(t, p.cable), p.options(), handler("owner", func(r *http.Request) error { return work(p, r) }))
	p.other = p.begin(b.direct, p.options(), handler("other", func(r *http.Request) error {
		return b.effects.add(r.Context(), p.key)
	}))
	p.processes = []*process{p.owner, p.other}
	go func() {
		first := p.owner.ask(p.key)
		for first.problem() == "store-unavailable" && !p.isWorking() { // on a busy machine
			first = p.owner.ask(p.key)
		}
		p.answers <- first
	}()
	<-p.working
	return p
}

func (p *partition) isWorking() bool {
	select {
	case <-p.working:
		return true
	default:
		return false
	}
}

// An owner that is cut off stops in time, and another process takes over. What the owner answers is not stored, whether
// it does so before or after the cut heals.
func TestPartitionedOwner(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	everyCut(t, stores, bothWays, func(t *testing.T, b *backend, connect connector, healsFirst bool) {
		stopped, answers := make(chan struct{}), make(chan struct{})
		p := split(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			close(p.working)
			await(t, r.Context().Done())
			close(stopped)
			await(t, answers)
			return nil
		})
		p.cut()
		began := time.Now()
		final := p.other.settle(p.key)
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
				_, _, err := p.owner.store.again(p.owner.store.Store)
				return err == nil
			}, patience, 10*time.Millisecond, "the owner reaches its store")
		}
		close(answers)
		first := <-p.answers
		if healsFirst {
			require.Equal(t, "in-progress", first.problem(), "its claim is lost")
		}
		p.heal()
		p.requireSettled(final)
	})
}

// With Refuse nobody takes over. When the cut heals, the answer of the owner is stored for all.
func TestPartitionedOwnerThatNobodyReplaces(t *testing.T) {
	t.Parallel()
	everyCut(t, stores, oneWay, func(t *testing.T, b *backend, connect connector, _ bool) {
		answers := make(chan struct{})
		p := split(t, b, 2*time.Second, idempotency.Refuse, connect, func(p *partition, r *http.Request) error {
			close(p.working)
			await(t, answers)
			return b.effects.add(r.Context(), p.key)
		})
		p.cut()
		require.Eventually(t, func() bool { return p.other.ask(p.key).problem() == "outcome-unknown" }, patience, pause)
		close(answers)
		require.Equal(t, answer{http.StatusCreated, "owner"}, <-p.answers, "the effect exists, so the answer is true")
		p.heal()
		p.requireSettled(answer{http.StatusCreated, "owner"})
	})
}

// A cut that is shorter than the lease costs nothing.
func TestShortPartition(t *testing.T) {
	t.Parallel()
	const lease = 12 * time.Second // long enough for a busy machine
	everyCut(t, stores, oneWay, func(t *testing.T, b *backend, connect connector, _ bool) {
		p := split(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			close(p.working)
			awaitRenewal(p.trial, r)
			if err := r.Context().Err(); err != nil {
				return err
			}
			return b.effects.add(r.Context(), p.key)
		})
		p.cut()
		record, _, err := p.owner.store.again(b.direct)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // a renewal was tried in vain
			record, _, err = p.owner.store.again(b.direct)
			return err != nil || record.LeaseLeft < lease-lease/3-storeTimeout-pause/2
		}, patience, 10*time.Millisecond)
		p.heal()
		require.Equal(t, answer{http.StatusCreated, "owner"}, <-p.answers)
		p.requireSettled(answer{http.StatusCreated, "owner"})
	})
}

// An owner is cut off in the transaction of a step. Another process writes the rows when the lease has lapsed, or, where the
// record is locked, when the server has ended the silent session. The owner commits nothing, and does not answer that it has.
func TestPartitionedStep(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	everyCut(t, ofSteps, bothWays, func(t *testing.T, b *backend, connect connector, healsFirst bool) {
		answers, failed := make(chan struct{}), make(chan error, 1)
		p := split(t, b, lease, idempotency.ReExecute, connect, func(p *partition, r *http.Request) error {
			err := b.effects.(*rowLedger).addAnd(r.Context(), p.key, patience, func() {
				close(p.working)
				await(t, answers)
			})
			failed <- err
			return err
		})
		p.cut()
		began := time.Now()
		final := p.other.settle(p.key)
		require.Less(t, time.Since(began), lease+idleTimeout+5*time.Second)
		require.Equal(t, answer{http.StatusCreated, "other"}, final)
		if healsFirst {
			p.heal()
		}
		close(answers)
		require.Error(t, <-failed)
		require.NotEqual(t, http.StatusCreated, (<-p.answers).status, "its rows were rolled back")
		p.heal()
		p.requireSettled(final)
	})
}

// await waits for done, or for the end of a test that has failed.
func await(t *testing.T, done <-chan struct{}) {
	select {
	case <-done:
	case <-t.Context().Done():
	}
}

// connector opens a store through a cable.
type connector = func(*testing.T, *cable) idempotency.Store

// The ways in which an owner can answer: after the cut has healed, or before.
var (
	bothWays = map[string]bool{"answers after the cut": true, "answers while cut off": false}
	oneWay   = map[string]bool{"cut": true}
)

// opener starts a store, and returns how it is reached through a cable.
type opener = func(*testing.T) (*backend, connector)

var (
	stores  = map[string]opener{"Redis": redisBehindCable, "Postgres": postgres(nil, pgxstore.Options{})}
	ofSteps = map[string]opener{
		"read committed": postgres(&rowLedger{}, pgxstore.Options{}),
		"serializable":   postgres(&rowLedger{}, pgxstore.Options{Isolation: pgx.Serializable}),
		"of the handler": postgres(&rowLedger{joins: true}, pgxstore.Options{}),
	}
)

// everyCut runs a test with every store in every way, several times.
func everyCut(t *testing.T, stores map[string]opener, ways map[string]bool,
	test func(t *testing.T, b *backend, connect connector, healsFirst bool),
) {
	rounds := effort.Of(2)
	newCable(t) // the test ends here if there can be none
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

func redisBehindCable(t *testing.T) (*backend, connector) {
	server := servertest.Redis(t)
	return newRedisBackendOn(t, server), func(t *testing.T, c *cable) idempotency.Store {
		client := redis.NewClient(&redis.Options{
			Addr: c.serve(t, server.Addr()), Password: servertest.RedisPassword(), Dialer: c.dial,
		})
		t.Cleanup(func() { _ = client.Close() })
		return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	}
}

// postgres opens a store whose effects are rows of a ledger, unless that is nil.
func postgres(rows *rowLedger, opts pgxstore.Options) opener {
	return func(t *testing.T) (*backend, connector) { return postgresBehindCable(t, rows, opts) }
}

func postgresBehindCable(t *testing.T, rows *rowLedger, opts pgxstore.Options) (*backend, connector) {
	db := servertest.Postgres(t)
	b := newPostgresBackendOn(t, db, rows, opts)
	return b, func(t *testing.T, c *cable) idempotency.Store {
		return b.open(newPool(t, db.URLAt(c.serve(t, db.Addr())), func(config *pgxpool.Config) {
			config.ConnConfig.DialFunc = c.dial
		}))
	}
}
