package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// noted is an attempt that notes what it is asked to do.
type noted struct {
	did      []string
	failing  error // of Undo
	isBroken bool
}

func (n *noted) Undo(context.Context) error { return n.note("undo", n.failing) }

func (n *noted) Commit(_ context.Context, _ idempotency.Response, _ time.Duration, undo bool) error {
	if undo {
		return n.note("commit without effects", nil)
	}
	return n.note("commit", nil)
}

func (n *noted) Rollback(context.Context) error { return n.note("rollback", nil) }

func (n *noted) HangUp() { _ = n.note("hang up", nil) }

func (n *noted) Alive(context.Context) bool { return !n.isBroken }

func (n *noted) note(what string, err error) error {
	n.did = append(n.did, what)
	return err
}

// claimOf returns a claim whose handler has the session, and its handler's context.
func claimOf(n *noted) *TxClaim {
	c := new(TxClaim)
	c.Exclusive = true
	c.Init(n, "key", c)
	c.Context(context.Background())
	return c
}

// What becomes of what a handler did, and of its answer.
func TestEnds(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	statement := func(outcome Outcome, err error) func(*TxClaim) {
		return func(c *TxClaim) {
			if c.Enter() == nil {
				c.Leave(outcome, err)
			}
		}
	}
	rollback := func(c *TxClaim) { _ = c.Renounce(context.Background()) }
	rejectedInUse := func(c *TxClaim) {
		_ = c.Enter()
		rollback(c)
		c.Leave(Stands, nil)
	}
	for name, test := range map[string]struct {
		handler []func(*TxClaim)
		ok, bad string // what the attempt does at last for an answer of 200, and for one of 422
	}{
		"does nothing":             {nil, "commit", "commit"},
		"has effects":              {[]func(*TxClaim){statement(Stands, nil)}, "commit", "commit without effects"},
		"keeps them":               {[]func(*TxClaim){statement(Stands, nil), (*TxClaim).Keep}, "commit", "commit"},
		"violates a constraint":    {[]func(*TxClaim){statement(Stands, failed)}, "commit", "commit without effects"},
		"meets a lock":             {[]func(*TxClaim){statement(MayPass, failed)}, "commit", "rollback"},
		"recovers from it":         {[]func(*TxClaim){statement(MayPass, failed), statement(Recovered, nil)}, "commit", "commit without effects"},
		"meets a deadlock":         {[]func(*TxClaim){statement(Ended, failed)}, "rollback", "rollback"},
		"does not recover":         {[]func(*TxClaim){statement(Ended, failed), statement(Recovered, nil)}, "rollback", "rollback"},
		"rolls back":               {[]func(*TxClaim){rollback}, "rollback", "commit without effects"},
		"keeps what is gone":       {[]func(*TxClaim){rollback, (*TxClaim).Keep}, "rollback", "rollback"},
		"rolls back, but has rows": {[]func(*TxClaim){rejectedInUse}, "rollback", "commit without effects"},
		"loses a savepoint":        {[]func(*TxClaim){statement(Stands, nil), func(c *TxClaim) { c.Spoil(failed) }}, "rollback", "commit without effects"},
		"leaves rows open":         {[]func(*TxClaim){func(c *TxClaim) { _ = c.Enter() }}, "hang up", "hang up"},
	} {
		for status, want := range map[int]string{http.StatusOK: test.ok, http.StatusUnprocessableEntity: test.bad} {
			n := new(noted)
			c := claimOf(n)
			for _, do := range test.handler {
				do(c)
			}
			err := c.Complete(context.Background(), idempotency.Response{Status: status}, time.Hour)
			require.Equal(t, want, n.did[len(n.did)-1], "%s, %d", name, status)
			if want == "rollback" || want == "hang up" {
				require.ErrorIs(t, err, idempotency.ErrRolledBack, "%s, %d", name, status)
			} else {
				require.NoError(t, err, "%s, %d", name, status)
			}
			require.Equal(t, err, c.Complete(context.Background(), idempotency.Response{Status: status}, time.Hour))
		}
	}
}

// A Rollback that fails has nothing committed either.
func TestRollbackThatFails(t *testing.T) {
	t.Parallel()
	n := &noted{failing: errors.New("failed")}
	c := claimOf(n)
	require.ErrorIs(t, c.Renounce(context.Background()), n.failing)
	require.ErrorIs(t, c.Renounce(context.Background()), sql.ErrTxDone)
	require.Error(t, c.Enter())
	require.ErrorIs(t, c.Complete(context.Background(), idempotency.Response{}, time.Hour), idempotency.ErrRolledBack)
}

// A claim is not lost while somebody uses its transaction, nor while it is committed.
func TestIsAlive(t *testing.T) {
	t.Parallel()
	n := &noted{isBroken: true}
	c := claimOf(n)
	extend := func() error { return c.Extend(context.Background(), time.Hour) }
	require.ErrorIs(t, extend(), idempotency.ErrClaimLost)
	require.NoError(t, c.Enter())
	require.ErrorIs(t, c.Enter(), ErrBusy)
	require.NoError(t, extend())
	c.Leave(Stands, nil)
	require.True(t, c.end())
	require.NoError(t, extend())
	require.ErrorIs(t, c.Enter(), sql.ErrTxDone)
	require.NoError(t, c.Release(context.Background(), time.Hour))
	require.ErrorIs(t, extend(), idempotency.ErrClaimLost)
}
