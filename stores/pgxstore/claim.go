package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// claim implements [idempotency.Claim]. It remembers what the record is made of, to make it again should it be lost.
type claim struct {
	store   *Store
	sql     statements
	names   sqlstore.Names
	digest  [32]byte
	request idempotency.ClaimRequest
	token   pgtype.UUID
	grant
	rows reliedRows
	settlement
}

// grant is what the server has granted to a claim.
type grant struct {
	attempt  int32 // 0: not claimed yet
	created  pgtype.Timestamptz
	replaced time.Duration // how long the record of the attempt before would have been kept; 0: not known
}

// settlement says whether a claim is settled, and until then, whether its lease is renewed.
type settlement struct {
	mu      sync.Mutex // held while the record is settled or made again
	settled bool       // Complete or Release has ended the claim

	renewals sync.RWMutex // held for reading by a renewal, and for writing by a transaction that locks the record or ends
	rests    bool         // a transaction has locked the record: renewals rest
}

// take claims the key, and returns the record that holds it then. See [Table.retry] for claimed.
func (c *claim) take(ctx context.Context, claimed *bool) (held *row, err error) {
	reach := int32(1) // what was released may be claimed
	if c.request.TakeOver {
		reach = 2 // and that whose lease has lapsed
	}
	args := []any{c.digest[:], c.request.Fingerprint[:], reach, c.names[0], c.names[1], c.names[2], &c.token,
		c.request.Lease.Microseconds(), c.request.TTL.Microseconds()}
	err = c.ask(ctx, claimed, pooled, c.sql["claim"], args, func(r pgx.Row) (err error) {
		held, err = c.scan(r)
		return err
	})
	return held, err
}

// ask runs a statement that may insert the record.
func (c *claim) ask(
	ctx context.Context, claimed *bool, from source, sql string, args []any, scan func(pgx.Row) error,
) error {
	return c.store.retry(ctx, claimed, from, func(conn *pgx.Conn) error {
		if c.store.opts.divided() {
			return c.askInTurn(ctx, conn, sql, args, scan)
		}
		return scan(conn.QueryRow(ctx, sql, args...))
	})
}

// askInTurn inserts into a divided table, where no unique index can refuse a second record. All claims of a key take
// turns, and each takes the snapshot that it judges by when it is its turn. It is still one round trip.
func (c *claim) askInTurn(ctx context.Context, conn *pgx.Conn, sql string, args []any, scan func(pgx.Row) error) error {
	var batch pgx.Batch
	batch.Queue(beginReadCommitted)
	batch.Queue("select pg_advisory_xact_lock($1::bigint)", c.store.lockNumber(c.digest))
	batch.Queue(sql, args...).QueryRow(scan)
	batch.Queue("commit")
	return conn.SendBatch(ctx, &batch).Close()
}

// scan returns the record that holds the key, which is that of the claim if the statement has made it.
func (c *claim) scan(from pgx.Row) (*row, error) {
	var claimed pgtype.Int4
	held := &row{}
	switch err := from.Scan(held.columns(&c.names, &claimed)...); {
	case err != nil:
		return nil, err
	case !claimed.Valid:
		return held, nil
	case claimed.Int32 == 0:
		return nil, errOvertaken
	}
	own := row{attempt: claimed, fingerprint: c.request.Fingerprint[:], token: c.token, created: held.now,
		now: held.now, leaseUntil: pgtype.Timestamptz{Time: held.now.Time.Add(c.request.Lease), Valid: true}}
	if claimed.Int32 > 1 {
		own.created, c.replaced = held.created, held.left()
	}
	*held = own
	return held, nil
}

// Extend implements [idempotency.Claim]. While a transaction of a step has locked the record, Extend sends nothing: nobody can
// claim the key, and a renewal would wait for the lock.
func (c *claim) Extend(ctx context.Context, lease time.Duration) error {
	c.renewals.RLock()
	defer c.renewals.RUnlock()
	if c.rests {
		return nil
	}
	done, err := c.step(ctx, spare, "extend", lease)
	if done || err != nil {
		return err
	}
	return c.revive(ctx, "extend", lease, max(c.request.TTL, lease))
}

// revive makes the record of a claim that goes on again, for the step of that name.
func (c *claim) revive(ctx context.Context, name string, lease, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled { // nobody would renew or settle the record if it were made again
		return idempotency.ErrClaimLost
	}
	err := c.restore(ctx, spare, name,
		append(c.restoreArgs(), lease.Microseconds(), ttl.Microseconds(), nil, nil, nil, nil, nil))
	if errors.Is(err, idempotency.ErrRestored) {
		c.rows.relyOnJoined()
	}
	return err
}

// Complete implements [idempotency.Claim].
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps, mayHaveRows := c.rows.relied()
	done, err := c.step(ctx, pooled, "complete", ttl, append(responseArgs(resp, make([]any, 0, 6)...), steps)...)
	switch {
	case done || err != nil:
	case mayHaveRows:
		err = c.loseRows(ctx)
	default:
		err = c.restore(ctx, pooled, "complete", responseArgs(resp, append(c.restoreArgs(), nil, ttl.Microseconds())...))
	}
	if errors.Is(err, errCompleted) { // this is a repetition, perhaps of a try that was not answered
		err = c.store.confirm(ctx, c.sql, c.digest, c.token, true)
	}
	return c.settle(err)
}

// reliedRows are the rows that the handler relies on. At Complete, the record must have the steps that may have written them.
type reliedRows struct {
	mu     sync.Mutex
	steps  string   // their names, one a line
	joined []string // steps in transactions of the handler, which may have been committed
}

// rely adds steps, each once.
func (r *reliedRows) rely(steps ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(steps)
}

func (r *reliedRows) add(steps []string) {
	for _, step := range steps {
		switch {
		case r.steps == "":
			r.steps = step
		case !slices.Contains(strings.Split(r.steps, "\n"), step):
			r.steps += "\n" + step
		}
	}
}

// join notes that the result of step was stored in a transaction of the handler.
func (r *reliedRows) join(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.joined = append(r.joined, step)
}

// relyOnJoined is called when the record was lost, and made again without its steps. If the handler has committed the
// transactions of the joined steps, their rows may be lost.
func (r *reliedRows) relyOnJoined() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(r.joined)
}

// relied returns the steps that the record must have, or nil, and whether the handler may have written rows.
func (r *reliedRows) relied() (steps any, mayHaveRows bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.steps == "" {
		return nil, r.joined != nil
	}
	return r.steps, true
}

// loseRows is called if the handler may have written rows, and the record could not be completed:
//
//   - The record is gone, or lacks a step: loseRows returns [sqlstore.ErrRowsLost]. A record that lacks a step gets the step
//     [idempotency.RecordLost].
//   - Another attempt has claimed the key: loseRows returns [idempotency.ErrClaimLost].
//   - The claim has completed the record before: loseRows returns nil.
func (c *claim) loseRows(ctx context.Context) error {
	marked, err := c.change(ctx, pooled, "checkpoint", []any{c.digest[:], c.token, idempotency.RecordLost, []byte{}})
	if err == nil && !marked {
		err = c.store.confirm(ctx, c.sql, c.digest, c.token, true)
	}
	if errors.Is(err, errUnconfirmed) {
		_, _, err = c.steps(ctx)
		marked, err = err == nil, failure("complete", err)
	}
	if marked {
		return sqlstore.ErrRowsLost
	}
	return err
}

// Release implements [idempotency.Claim].
func (c *claim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	statement := "release"
	if ttl == 0 {
		statement, ttl = "free", min(2*c.request.Lease, c.request.TTL)
	}
	done, err := c.step(ctx, pooled, statement, ttl)
	if !done && err == nil {
		err = idempotency.ErrClaimLost
	}
	return c.settle(err)
}

// settle notes that the claim has ended, if err says so.
func (c *claim) settle(err error) error {
	c.settled = c.settled || err == nil || errors.Is(err, idempotency.ErrRestored) || errors.Is(err, idempotency.ErrClaimLost)
	return err
}

// errCompleted says that the claim itself has completed its record.
var errCompleted = fmt.Errorf("%w: completed", idempotency.ErrClaimLost)

// restoreArgs returns what the record is made of again, up to its lease.
func (c *claim) restoreArgs() []any {
	return []any{c.digest[:], c.request.Fingerprint[:], c.names[0], c.names[1], c.names[2], c.token, c.attempt, c.created}
}

// restore makes the record again if it is gone, as it is to be after the step. That is one statement: a record that was
// made first and changed afterwards would show others what is not true, and might lapse in between.
func (c *claim) restore(ctx context.Context, from source, name string, args []any) error {
	claimed := true
	var restored, free, completed bool
	err := c.ask(ctx, &claimed, from, c.sql["restore"], args, func(r pgx.Row) error {
		err := r.Scan(&restored, &free, &completed)
		if err == nil && free && !restored {
			return errOvertaken
		}
		return err
	})
	switch {
	case err != nil:
		return failure(name, err)
	case restored:
		return idempotency.ErrRestored
	case completed:
		return errCompleted
	default:
		return idempotency.ErrClaimLost
	}
}

// step reports whether the claim held its record, which the statement of that name has changed then. The record lives for d,
// or at least for d.
func (c *claim) step(ctx context.Context, from source, name string, d time.Duration, more ...any) (done bool, err error) {
	if err := c.store.mayKeep(d); err != nil {
		return false, err
	}
	return c.change(ctx, from, name, append(append(make([]any, 0, 9), c.digest[:], c.token, d.Microseconds()), more...))
}

// change is step with all arguments of the statement.
func (c *claim) change(ctx context.Context, from source, name string, args []any) (done bool, err error) {
	claimed := true
	err = c.store.retry(ctx, &claimed, from, func(conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, c.sql[name], args...)
		done = tag.RowsAffected() == 1
		return err
	})
	return done, failure(name, err)
}
