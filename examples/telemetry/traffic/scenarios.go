package traffic

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/resolve"
)

// Scenario is something that happens to a shop. It can be played more than once.
type Scenario struct {
	Name    string   // also of the job in Prometheus
	Alerts  []string // that are raised, whether they wait or fire
	Options idempotency.Options
	Store   idempotency.Store // nil: one in memory
	Cached  bool
	Play    func(context.Context, *Run) error
}

// Scenarios returns all of them.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "quiet", Play: Quiet},
		{Name: "cached", Cached: true, Play: cached},
		{Name: "waiting", Options: idempotency.Options{Wait: time.Minute}, Play: waiting},
		{Name: "misuse", Alerts: []string{"IdempotencyClientsAtFault"}, Play: Misuse},
		{Name: "store-down", Alerts: []string{"IdempotencyStoreUnavailable"}, Play: StoreDown},
		{Name: "unprotected", Alerts: []string{"IdempotencyUnprotected"}, Play: unprotected,
			Options: idempotency.Options{FailOpen: true}},
		{Name: "recorded-later", Play: recordedLater,
			Options: idempotency.Options{StoreTimeout: 20 * time.Millisecond}},
		{Name: "not-recorded", Alerts: []string{"IdempotencyAnswersNotRecorded"}, Play: notRecorded,
			Options: idempotency.Options{StoreTimeout: 20 * time.Millisecond}},
		{Name: "leases-lost", Alerts: []string{"IdempotencyLeasesLost"}, Play: leasesLost,
			Options: idempotency.Options{Lease: 500 * time.Millisecond}},
		{Name: "records-lost", Alerts: []string{"IdempotencyRecordsLost"}, Play: recordsLost},
		{Name: "outcome-unknown", Alerts: []string{"IdempotencyOutcomeUnknown"}, Play: outcomeUnknown,
			Options: idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Second}},
	}
}

// Quiet is what happens every day: retries, a few of them too early, and a bank that is busy.
func Quiet(ctx context.Context, r *Run) error {
	for range 20 {
		key := NewKey()
		err := errors.Join(
			r.Send(ctx, key, plain, idempotency.OutcomeExecuted),
			r.Send(ctx, key, plain, idempotency.OutcomeReplayed),
			r.Send(ctx, key, plain, idempotency.OutcomeReplayed),
		)
		if err != nil {
			return err
		}
	}
	key := NewKey()
	first := make(chan error)
	go func() { first <- r.Send(ctx, key, slow, idempotency.OutcomeExecuted) }()
	<-r.gate // it runs
	early := r.Send(ctx, key, slow, idempotency.OutcomeInProgress)
	<-r.gate
	return errors.Join(early, <-first, r.Send(ctx, NewKey(), busy, idempotency.OutcomeReleased), omitted(ctx, r))
}

// omitted is an answer that is not kept.
func omitted(ctx context.Context, r *Run) error {
	key := NewKey()
	return errors.Join(
		r.Send(ctx, key, once, idempotency.OutcomeExecuted),
		r.Send(ctx, key, once, idempotency.OutcomeNotReplayable),
	)
}

func cached(ctx context.Context, r *Run) error {
	key := NewKey()
	err := r.Send(ctx, key, plain, idempotency.OutcomeExecuted)
	for range 5 {
		err = errors.Join(err, r.Send(ctx, key, plain, idempotency.OutcomeReplayed))
		r.book.write(func(l *Ledger) { l.FromCache++ })
	}
	return err
}

// waiting has duplicates that wait for the first one.
func waiting(ctx context.Context, r *Run) error {
	key := NewKey()
	first, duplicate := make(chan error), make(chan error)
	go func() { first <- r.Send(ctx, key, slow, idempotency.OutcomeExecuted) }()
	<-r.gate // it runs
	r.Store.forgetHeld()
	go func() { duplicate <- r.Send(ctx, key, slow, idempotency.OutcomeReplayed) }()
	<-r.Store.Held // so the duplicate waits
	<-r.gate
	r.book.write(func(l *Ledger) { l.Waits++ })
	return errors.Join(<-first, <-duplicate)
}

// Misuse is a client that uses keys again, sends keys that are none, and more than its share.
func Misuse(ctx context.Context, r *Run) error {
	key := NewKey()
	err := r.Send(ctx, key, plain, idempotency.OutcomeExecuted)
	for range 4 {
		err = errors.Join(err,
			r.Send(ctx, key, busy, idempotency.OutcomeKeyReused),
			r.Send(ctx, "not a key", plain, idempotency.OutcomeRejected, "key_invalid"))
	}
	r.Store.Claims.Set(idempotency.ErrUserQuota)
	err = errors.Join(err, r.Send(ctx, NewKey(), plain, idempotency.OutcomeQuotaExceeded))
	r.Store.Claims.Set(nil)
	return err
}

// StoreDown has a store that cannot be reached.
func StoreDown(ctx context.Context, r *Run) error {
	err := r.Send(ctx, NewKey(), plain, idempotency.OutcomeExecuted)
	r.Store.Claims.Set(ErrDown)
	for range 4 {
		err = errors.Join(err, r.Send(ctx, NewKey(), plain, idempotency.OutcomeUnavailable, "connection"))
	}
	r.Store.Claims.Set(nil)
	return err
}

func unprotected(ctx context.Context, r *Run) error {
	err := r.Send(ctx, NewKey(), plain, idempotency.OutcomeExecuted)
	r.Store.Claims.Set(context.DeadlineExceeded)
	for range 3 {
		err = errors.Join(err, r.Send(ctx, NewKey(), plain, idempotency.OutcomeUnprotected, "timeout"))
	}
	r.Store.Claims.Set(nil)
	return err
}

// recordedLater has answers that the store takes when it is back.
func recordedLater(ctx context.Context, r *Run) error {
	keys, err := unrecorded(ctx, r)
	r.Store.Completions.Set(nil)
	for _, key := range keys {
		err = errors.Join(err, r.SendUntil(ctx, key, plain, idempotency.OutcomeReplayed))
		r.book.write(func(l *Ledger) {
			l.Recoveries["recorded"]++
			l.Stored += answerSize
		})
	}
	return err
}

// notRecorded has answers that the store does not take as long as the shop runs.
func notRecorded(ctx context.Context, r *Run) error {
	_, err := unrecorded(ctx, r)
	return err
}

func unrecorded(ctx context.Context, r *Run) (keys []string, err error) {
	r.Store.Completions.Set(ErrDown)
	for range 3 {
		keys = append(keys, NewKey())
		err = errors.Join(err, r.Send(ctx, keys[len(keys)-1], plain, idempotency.OutcomeUnrecorded, "connection"))
	}
	return keys, err
}

// leasesLost has an owner that cannot renew its lease, so another attempt takes over.
func leasesLost(ctx context.Context, r *Run) error {
	key := NewKey()
	r.Store.Renewals.Set(ErrDown)
	first := make(chan error)
	go func() { first <- r.Send(ctx, key, lapsing, idempotency.OutcomeClaimLost) }()
	<-r.gate // it runs
	err := r.SendUntil(ctx, key, lapsing, idempotency.OutcomeExecuted)
	r.book.write(func(l *Ledger) { l.Stored += answerSize })
	<-r.gate
	r.Store.Renewals.Set(nil)
	return errors.Join(err, <-first)
}

// recordsLost has a store that has lost what it had acknowledged, as after a failover.
func recordsLost(ctx context.Context, r *Run) error {
	r.Store.Completions.Set(idempotency.ErrRestored)
	err := errors.Join(
		r.Send(ctx, NewKey(), plain, idempotency.OutcomeRestored),
		r.Send(ctx, NewKey(), plain, idempotency.OutcomeRestored),
	)
	r.Store.Completions.Set(nil)
	return err
}

// outcomeUnknown has an attempt that was interrupted, a client that insists, and an operator who resolves it.
func outcomeUnknown(ctx context.Context, r *Run) error {
	key := NewKey()
	err := errors.Join(
		r.Send(ctx, key, unclear, idempotency.OutcomeAbandoned),
		r.SendUntil(ctx, key, unclear, idempotency.OutcomeUnknown),
	)
	for range 14 {
		err = errors.Join(err, r.Send(ctx, key, unclear, idempotency.OutcomeUnknown))
	}
	return errors.Join(err, r.resolve(ctx), r.Send(ctx, key, unclear, idempotency.OutcomeReplayed))
}

// resolve is what an operator does who has asked the bank: the operations that were abandoned have happened.
func (r *Run) resolve(ctx context.Context) error {
	store := r.Store.Store.(idempotency.Inspector)
	resolver, err := resolve.New(store, resolve.Options{Observer: r.Shop.Observe, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	listing, err := store.List(ctx, idempotency.ListRequest{States: []idempotency.State{idempotency.StateAbandoned}})
	for _, entry := range listing.Entries {
		by := resolve.By{Operator: "alice", Reason: "the bank has the charge"}
		err = errors.Join(err, resolver.Happened(ctx, entry, idempotency.Response{Status: http.StatusCreated}, by))
		r.book.write(func(l *Ledger) { l.Resolutions++ })
	}
	return err
}
