package idempotencytest

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// ledger is the database of the handlers: how many effects of each name are committed.
type ledger struct {
	mu        sync.Mutex
	committed map[string]int
}

func newLedger() *ledger { return &ledger{committed: make(map[string]int)} }

func (l *ledger) add(n int, names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		l.committed[name] += n
	}
}

func (l *ledger) count(ctx context.Context, name string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.committed[name], ctx.Err()
}

// act makes an effect in the transaction of a handler.
func act(ctx context.Context, name string) error {
	tx, ok := ctx.Value(txKey{}).(*transaction)
	if !ok {
		return errors.New("no transaction in this context")
	}
	return tx.act(ctx, name)
}

type txKey struct{}

// transactions is a transactional store: a lock for each claim, and a row for each response. A claim holds one of the
// connections, of which there are no more than the documentation of Run asks for.
type transactions struct {
	bug    string
	conns  chan struct{}
	writer chan struct{} // nil: transactions with effects do not exclude each other
	ledger *ledger
	mu     sync.Mutex
	locks  map[idempotency.Key]*transaction
	rows   map[idempotency.Key]*transaction
	left   []string // the effects of a transaction that has ended, with a bug
}

func newTransactions(bug string) *transactions { return newLedger().newStore(bug) }

// newStore returns a store for handlers with effects in l.
func (l *ledger) newStore(bug string) *transactions {
	return &transactions{
		bug:    bug,
		conns:  make(chan struct{}, 4),
		ledger: l,
		locks:  make(map[idempotency.Key]*transaction),
		rows:   make(map[idempotency.Key]*transaction),
	}
}

// oneWriter lets s have one transaction with effects, or with a record to write, at a time.
func (s *transactions) oneWriter() *transactions {
	s.writer = make(chan struct{}, 1)
	return s
}

func (s *transactions) has(bug string) bool { return s.bug == bug }

func (s *transactions) Transactional() bool { return !s.has("transactions are not announced") }

func (s *transactions) Begin(
	ctx context.Context, key idempotency.Key, a idempotency.ClaimRequest,
) (_ idempotency.Record, claim idempotency.Claim, _ error) {
	if err := acquire(ctx, s.conns); err != nil {
		return idempotency.Record{}, nil, err
	}
	defer func() {
		if claim == nil {
			<-s.conns
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	tx := &transaction{store: s, key: key, begun: ctx, record: idempotency.Record{
		Attempt: 1, Fingerprint: a.Fingerprint, Created: time.Now(), NoLease: true}}
	if s.has("key runs before its record is read") {
		if s.locks[key] != nil {
			return idempotency.Record{NoLease: true}, nil, nil
		}
		s.locks[key] = tx
		s.pause()
		delete(s.locks, key)
	}
	for s.has("effects block other keys") && s.acting() {
		if err := ctx.Err(); err != nil {
			return idempotency.Record{}, nil, err
		}
		s.pause()
	}
	now := time.Now()
	if row := s.rows[key]; row != nil && row.expires.After(now) {
		return row.record, nil, nil
	}
	if lock := s.locks[key]; lock != nil && !(s.has("transaction ends with the lease") && lock.lease.Before(now)) {
		if s.has("running transaction seems abandoned") {
			return idempotency.Record{}, nil, nil
		}
		seen := idempotency.Record{NoLease: true}
		if s.has("running transaction has a lease") {
			seen.LeaseLeft = time.Second
		}
		return seen, nil, nil
	}
	if s.has("get, then set") {
		s.pause()
	}
	if s.has("effects pass to the next transaction") {
		tx.effects, s.left = s.left, nil
	}
	tx.lease = now.Add(a.Lease)
	if s.has("transaction has a lease") {
		tx.record.LeaseLeft = a.Lease
	}
	s.locks[key] = tx
	return tx.record, tx, nil
}

func acquire(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pause gives way between two steps that should be one.
func (s *transactions) pause() {
	s.mu.Unlock()
	time.Sleep(time.Millisecond)
	s.mu.Lock()
}

// acting reports whether there is a transaction with effects.
func (s *transactions) acting() bool {
	for _, lock := range s.locks {
		if len(lock.effects) > 0 {
			return true
		}
	}
	return false
}

type transaction struct {
	store                  *transactions
	key                    idempotency.Key
	record                 idempotency.Record
	lease                  time.Time
	expires                time.Time
	begun, handler, acting context.Context // of Begin, of the handler, and of its first effect
	effects                []string
	writes                 bool // it is the one writer
}

func (tx *transaction) Context(ctx context.Context) context.Context {
	tx.handler = ctx
	return context.WithValue(ctx, txKey{}, tx)
}

// write makes tx the one writer.
func (tx *transaction) write(ctx context.Context) error {
	if tx.writes || tx.store.writer == nil {
		return nil
	}
	err := acquire(ctx, tx.store.writer)
	tx.writes = err == nil
	return err
}

func (tx *transaction) act(ctx context.Context, name string) error {
	s := tx.store
	if err := ctx.Err(); err != nil {
		if s.has("interrupted effect is made") {
			tx.effects = append(tx.effects, name)
		}
		return err
	}
	if !tx.isOpen() {
		return tx.actLate(name)
	}
	if err := tx.write(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(tx.effects) == 0 {
		tx.acting = ctx
	}
	switch {
	case s.has("effects are committed at once"), s.has("first effect is committed at once") && len(tx.effects) == 0:
		s.ledger.add(1, name)
	case s.has("one transaction for all"):
		s.left = append(s.left, name)
	}
	tx.effects = append(tx.effects, name)
	return nil
}

func (tx *transaction) isOpen() bool {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	return tx.store.locks[tx.key] == tx
}

// actLate is act after the end of tx.
func (tx *transaction) actLate(name string) error {
	s := tx.store
	switch {
	case s.has("late effect seems to be made"):
		return nil
	case s.has("late effect is committed"):
		s.ledger.add(1, name)
	}
	return errors.New("the transaction has ended")
}

func (tx *transaction) Extend(context.Context, time.Duration) error {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[tx.key] != tx || s.has("transaction cannot be extended") ||
		s.has("transaction with effects cannot be extended") && len(tx.effects) > 0 {
		return idempotency.ErrClaimLost
	}
	if s.has("Extend begins anew") {
		tx.effects = nil
	}
	return nil
}

func (tx *transaction) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	s := tx.store
	if tx.isOpen() {
		if err := tx.write(ctx); err != nil {
			tx.rollBack()
			return errors.Join(idempotency.ErrRolledBack, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.rows[tx.key] == tx:
		if s.has("repeated Complete commits again") {
			s.ledger.add(1, tx.effects...)
		}
		return nil
	case s.locks[tx.key] != tx && !s.has("rolled back transaction commits") && !s.has("get, then set"):
		return idempotency.ErrRolledBack
	}
	if ctx.Err() != nil {
		return tx.completeLate(ctx, resp, ttl)
	}
	expired := s.rows[tx.key] != nil
	switch {
	case s.has("expired record is in the way") && expired,
		s.has("refusals are not kept") && resp.Status >= 400,
		s.has("refused effects are not kept") && resp.Status >= 400 && len(tx.effects) > 0:
		tx.end()
		return idempotency.ErrRolledBack
	case s.has("nothing to commit is no record") && len(tx.effects) == 0:
		tx.end()
		return nil
	}
	if s.has("lock ends before the commit") {
		delete(s.locks, tx.key)
		s.pause()
		s.locks[tx.key] = tx
	}
	tx.commit(resp)
	tx.keep(resp, ttl)
	tx.end()
	return nil
}

// completeLate is Complete when its context has ended.
func (tx *transaction) completeLate(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	s := tx.store
	switch {
	case s.has("ended Complete keeps the claim"):
		return ctx.Err()
	case s.has("ended Complete commits the effects"):
		tx.commit(resp)
	case s.has("ended Complete keeps the response"):
		tx.keep(resp, ttl)
	case s.has("ended Complete says nothing"):
		tx.end()
		return nil
	}
	tx.end()
	return errors.Join(idempotency.ErrRolledBack, ctx.Err())
}

// commit makes the effects permanent, unless the response is a refusal.
func (tx *transaction) commit(resp idempotency.Response) {
	s := tx.store
	if tx.refuses(resp) {
		return
	}
	effects := tx.effects
	switch {
	case s.has("effects are committed at once"), s.has("effects are lost"),
		s.has("transaction ends with the context of Begin") && tx.begun.Err() != nil,
		s.has("transaction ends with the context of the handler") && tx.handler != nil && tx.handler.Err() != nil,
		s.has("transaction ends with the context of an effect") && tx.acting != nil && tx.acting.Err() != nil:
		effects = nil
	case s.has("last effect alone is committed"), s.has("first effect is committed at once"):
		effects = effects[min(1, len(effects)):]
	case s.has("one transaction for all"):
		effects, s.left = s.left, nil
	}
	s.ledger.add(1, effects...)
}

// refuses reports whether a response says that the effects must be undone.
func (tx *transaction) refuses(resp idempotency.Response) bool {
	switch tx.store.bug {
	case "refusal commits":
		return false
	case "only client errors are refusals":
		return resp.Status >= 400 && resp.Status < 500
	case "400 is no refusal":
		return resp.Status > 400
	case "redirection is a refusal":
		return resp.Status >= 300
	case "399 is a refusal":
		return resp.Status >= 399
	case "no status is a refusal":
		return resp.Status == 0 || resp.Status >= 400
	case "what is omitted is a refusal":
		return resp.Omitted || resp.Status >= 400
	case "omitted refusal commits":
		return !resp.Omitted && resp.Status >= 400
	}
	return resp.Status >= http.StatusBadRequest
}

// keep stores the response.
func (tx *transaction) keep(resp idempotency.Response, ttl time.Duration) {
	s := tx.store
	if s.has("response is lost") {
		return
	}
	resp = resp.Clone()
	tx.record.Response, tx.expires = &resp, time.Now().Add(ttl)
	tx.record.NoLease = false
	s.rows[tx.key] = tx
}

func (tx *transaction) Release(context.Context, time.Duration) error {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows[tx.key] == tx {
		if s.has("Release undoes what was committed") {
			s.ledger.add(-1, tx.effects...)
		}
		return idempotency.ErrClaimLost
	}
	switch {
	case s.locks[tx.key] != tx:
	case s.has("release commits"):
		s.ledger.add(1, tx.effects...)
	case s.has("effects pass to the next transaction"):
		s.left = tx.effects
	}
	tx.end()
	return nil
}

func (tx *transaction) rollBack() {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.end()
}

// end gives the lock and the connection back.
func (tx *transaction) end() {
	s := tx.store
	if s.locks[tx.key] != tx {
		return
	}
	delete(s.locks, tx.key)
	if s.has("rollback keeps the lock") {
		s.locks[tx.key] = new(transaction)
	}
	if tx.writes {
		<-s.writer
	}
	if undone := s.rows[tx.key] != tx; undone && s.has("connection of a rollback is lost") && len(tx.effects) > 0 {
		return
	}
	<-s.conns
}
