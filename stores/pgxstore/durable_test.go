package pgxstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// confirmHook is a tracer of pgx that calls a function once, before a record is confirmed.
type confirmHook struct {
	once sync.Once
	do   func()
}

func (o *confirmHook) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "idempotency: confirm") {
		o.once.Do(o.do)
	}
	return ctx
}

func (o *confirmHook) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The new primary has a claim, but not its response, which the old primary has shown. This response is not replayed.
func TestConfirmedOnAServerWithoutTheResponse(t *testing.T) {
	t.Parallel()
	server := servertest.Postgres(t, "synchronous_standby_names=somebody", "synchronous_commit=local")
	pool := newPool(t, server.URL())
	for name, ask := range map[string]func(*testing.T, idempotency.Store, idempotency.Claim){
		"repeated Complete": func(t *testing.T, _ idempotency.Store, claim idempotency.Claim) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.ErrorContains(t, claim.Complete(ctx, answer, time.Hour), "gone, or has changed")
			require.NoError(t, ctx.Err(), "it has waited for what will not come back")
		},
		"replay": func(t *testing.T, store idempotency.Store, _ idempotency.Claim) {
			record, claim, err := store.Begin(t.Context(), keyOf("1"), attempt)
			require.NoError(t, err)
			require.Nil(t, claim)
			require.Nil(t, record.Response)
			require.NotZero(t, record.LeaseLeft)
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := newTable(t, pool, pgxstore.Options{})
			tracer := &confirmHook{do: func() {
				_, err := pool.Exec(t.Context(), "UPDATE "+tableName(opts)+` SET status = NULL, header = NULL, trailer = NULL,
body = NULL, completed_at = NULL, lease_until = now() + interval '1 minute'`)
				require.NoError(t, err)
			}}
			store := pgxstore.New(newPool(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer }), opts)
			_, claim, err := store.Begin(t.Context(), keyOf("1"), attempt)
			require.NoError(t, err)
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			ask(t, store, claim)
			require.False(t, isCompleted(t, pool, opts, keyOf("1")))

			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			require.True(t, isCompleted(t, pool, opts, keyOf("1")))
		})
	}
}
