//go:build linux

package clocks_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// TestSilentTransactionAndTheClock shows what PostgreSQL measures the silence of a session with: its wall clock. If that is
// set back, a silent owner keeps its key for longer, until its connection ends at the latest.
func TestSilentTransactionAndTheClock(t *testing.T) {
	t.Parallel()
	c := newClock(t)
	s := kinds[len(kinds)-1].start(t, c.env()...)
	for i, jump := range []time.Duration{0, time.Hour, -time.Hour} {
		c.set(0)
		silent := s.begin(t, pgxstore.Options{IdleTimeout: time.Second}, i)
		require.True(t, silent.claims())
		c.set(jump)
		next := s.begin(t, pgxstore.Options{}, i)
		if jump < 0 {
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
				require.False(t, next.claims(), "the clock was set back by %v", jump)
			}
			silent.end()
		} else {
			defer silent.end()
		}
		await(t, next.claims)
		next.end()
	}
	effort.Count(t, "silent transactions", 3)
}

// owner is who has a claim, or tries to get one.
type owner struct {
	claims func() bool
	end    func() // closes its connections
}

func (s server) begin(t testing.TB, opts pgxstore.Options, key int) owner {
	t.Helper()
	var wires []net.Conn
	s.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		wire, err := new(net.Dialer).DialContext(ctx, network, addr)
		wires = append(wires, wire)
		return wire, err
	}
	pool, err := s.newPool()
	require.NoError(t, err)
	store := pgxstore.NewTx(pool, opts)
	var claim idempotency.Claim
	claims := func() bool {
		_, claim, err = store.Begin(context.Background(), idempotency.Key{ID: string(rune('a' + key))},
			idempotency.ClaimRequest{Lease: lease, TTL: ttl})
		require.NoError(t, err)
		return claim != nil
	}
	return owner{claims, func() {
		for _, wire := range wires {
			_ = wire.Close()
		}
		_ = claim.Release(context.Background(), ttl)
		pool.Close()
	}}
}
