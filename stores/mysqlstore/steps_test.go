package mysqlstore_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
)

// claimWithStep claims key, and stores the step "charge".
func claimWithStep(t testing.TB, store idempotency.Store, key string) idempotency.Checkpointer {
	t.Helper()
	_, claim := claimKey(t, store, key)
	steps := claim.(idempotency.Checkpointer)
	stored, err := steps.Checkpoint(context.Background(), "charge", []byte("1"))
	require.NoError(t, err)
	require.Equal(t, "1", string(stored))
	return steps
}

// Storing a step takes one round trip, and reading the steps of earlier attempts takes one.
func TestRoundTripsOfSteps(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"interpolateParams=true"}, {"clientFoundRows=true"}} {
		t.Run(fmt.Sprint(settings), func(t *testing.T) {
			t.Parallel()
			m := servertest.MariaDB(t)
			db := openPool(t, m.DSN(), settings...)
			db.SetMaxOpenConns(1)
			store, _ := newStore(t, db)
			counter := openPool(t, m.DSN())
			counter.SetMaxOpenConns(1)
			trips := func(do func()) int {
				before := countCommands(t, counter)
				do()
				return countCommands(t, counter) - before - 1 // less the query of the counter
			}
			adds := func(claim idempotency.Checkpointer, name string) {
				_, err := claim.Checkpoint(t.Context(), name, []byte("2"))
				require.NoError(t, err)
			}
			// The driver prepares the statements.
			require.NoError(t, claimWithStep(t, store, "warm").Release(t.Context(), idempotency.Release{TTL: time.Hour}))
			claim := claimWithStep(t, store, "warm")
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))

			require.Equal(t, 2+3, trips(func() {
				claim = claimWithStep(t, store, "key")
				adds(claim, "reserve")
				adds(claim, "ship")
			}))
			require.Equal(t, 1, trips(func() { require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour})) }))
			require.Equal(t, 2+1+1+1, trips(func() {
				_, next := claimKey(t, store, "key")
				claim = next.(idempotency.Checkpointer)
				found, err := claim.Checkpoints(t.Context())
				require.NoError(t, err)
				require.Len(t, found, 3)
				adds(claim, "mail")
				require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			}))
		})
	}
}

// A completed operation keeps no steps, whichever attempt completes it.
func TestStepsGoWithTheAnswer(t *testing.T) {
	t.Parallel()
	w := newTableStore(t)
	require.NoError(t, claimWithStep(t, w.store, "completed").Complete(t.Context(), answer, time.Hour))
	require.NoError(t, claimWithStep(t, w.store, "released").Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	kept := "SELECT COUNT(steps) FROM " + w.table
	require.Equal(t, 1, queryValue[int](t, w.db, kept))
	_, claim := claimKey(t, w.store, "released")
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	require.Equal(t, 1, queryValue[int](t, w.db, kept))
	completeKey(t, w.store, "released")
	require.Equal(t, 0, queryValue[int](t, w.db, kept))
	require.Equal(t, 2, queryValue[int](t, w.db, "SELECT COUNT(response) FROM "+w.table))
}

// The store neither returns tampered steps nor adds to them. The operation can still be completed.
func TestTamperedSteps(t *testing.T) {
	t.Parallel()
	rowtest.TamperedSteps(t, newSubject(t), []string{
		"x'05'", "x'0161'", "x'016105'", "x'ffffffffffffffffffff01'", "REPEAT(x'00', 7)",
	})
}

// The server refuses steps that exceed its max_allowed_packet. Stored steps stay.
func TestStepsAboveThePacket(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "max_allowed_packet=256K", "sql_mode=")
	db := openPool(t, m.DSN())
	store, _ := newStore(t, db)
	for kind, add := range map[string]func(claim idempotency.Checkpointer, name string, data []byte) error{
		"Do": func(claim idempotency.Checkpointer, name string, data []byte) error {
			_, err := claim.Checkpoint(t.Context(), name, data)
			return err
		},
		"DoTx": func(claim idempotency.Checkpointer, name string, data []byte) error {
			_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
				Name: name, Var: new(*sql.Tx), Timeout: 20 * time.Second, Run: func() ([]byte, error) { return data, nil },
			})
			return err
		},
		"DoInTx": func(claim idempotency.Checkpointer, name string, data []byte) error {
			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
				Name: name, Tx: tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) { return data, nil },
			})
			if err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
	} {
		t.Run(kind, func(t *testing.T) {
			claim := claimWithStep(t, store, kind)
			want := []string{"charge"}
			for _, name := range []string{"a", "b", "c", "d", "e", "f"} { // only two of them fit
				err := add(claim, name, make([]byte, 50<<10))
				if len(want) < 3 {
					require.NoError(t, err)
					want = append(want, name)
				} else {
					require.ErrorIs(t, err, idempotency.ErrStoreFull)
				}
			}
			found, err := claim.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Len(t, found, len(want))
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
		})
	}
}

// If the connection breaks while a step is stored, the result of the step is stored once.
func TestConnectionBreaksAtAStep(t *testing.T) {
	t.Parallel()
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply,
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			proxy := servertest.NewProxy(t, sharedServer(t).Addr())
			db := openPool(t, sharedServer(t).DSNAt(proxy.Addr()))
			store, table := newStore(t, db)
			claimWithStep(t, store, "warm")

			proxy.Inject(newStepFault(fault))
			claim := claimWithStep(t, store, "key")
			require.Equal(t, 1, proxy.Strikes())
			found, err := claim.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"charge": []byte("1")}, found)
			require.Equal(t, 2, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table+" WHERE LENGTH(steps) = 9"))
		})
	}
}

// newStepFault returns a rule for the statement that stores a step, after the two statements of the claim.
func newStepFault(fault servertest.Fault) servertest.Rule {
	operation := keyOf("key").OperationID()
	return servertest.Rule{Fault: fault, Pattern: hex.EncodeToString(operation[:]), Skip: 2}
}

// If the context ends while the result of a checkpoint is unknown, the step is stored at most once: the first
// checkpoint that reaches the server counts.
func TestStepInDoubt(t *testing.T) {
	t.Parallel()
	for fault, want := range map[servertest.Fault]string{servertest.HoldReply: "1", servertest.HoldRequest: "2"} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			proxy := servertest.NewProxy(t, sharedServer(t).Addr())
			store, _ := newStore(t, openPool(t, sharedServer(t).DSNAt(proxy.Addr())))
			claimWithStep(t, store, "warm")

			proxy.Inject(newStepFault(fault))
			_, own := claimKey(t, store, "key")
			claim := own.(idempotency.Checkpointer)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := claim.Checkpoint(ctx, "charge", []byte("1"))
			require.Error(t, err)
			require.Equal(t, 1, proxy.Strikes())

			stored, err := claim.Checkpoint(t.Context(), "charge", []byte("2"))
			require.NoError(t, err)
			require.Equal(t, want, string(stored))
			proxy.Release()
			_, err = claim.Checkpoint(t.Context(), "ship", []byte("3"))
			require.NoError(t, err)
			found, err := claim.Checkpoints(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"charge": []byte(want), "ship": []byte("3")}, found)
		})
	}
}
