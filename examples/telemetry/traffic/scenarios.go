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

// Scenario is a course of events in a shop. Play can be called more than once.
type Scenario struct {
	Name    string   // also the name of the job in Prometheus
	Alerts  []string // the alerts that become pending or firing
	Options idempotency.Options
	Store   idempotency.Store // nil stands for a store in memory
	Cached  bool
	Play    func(context.Context, *Run) error
}

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{Name: "quiet", Play: PlayQuiet},
		{Name: "cached", Cached: true, Play: playCached},
		{Name: "waiting", Options: idempotency.Options{Wait: time.Minute}, Play: playWaiting},
		{Name: "misuse", Alerts: []string{"IdempotencyClientsAtFault"}, Play: PlayMisuse},
		{Name: "store-down", Alerts: []string{"IdempotencyStoreUnavailable"}, Play: PlayStoreDown},
		{Name: "unprotected", Alerts: []string{"IdempotencyUnprotected"}, Play: playUnprotected,
			Options: idempotency.Options{FailOpen: true}},
		{Name: "recorded-later", Play: playRecordedLater,
			Options: idempotency.Options{StoreTimeout: 20 * time.Millisecond}},
		{Name: "not-recorded", Alerts: []string{"IdempotencyAnswersNotRecorded"}, Play: playNotRecorded,
			Options: idempotency.Options{StoreTimeout: 20 * time.Millisecond}},
		{Name: "leases-lost", Alerts: []string{"IdempotencyLeasesLost"}, Play: playLeasesLost,
			Options: idempotency.Options{Lease: 500 * time.Millisecond}},
		{Name: "records-lost", Alerts: []string{"IdempotencyRecordsLost"}, Play: playRecordsLost},
		{Name: "outcome-unknown", Alerts: []string{"IdempotencyOutcomeUnknown"}, Play: playOutcomeUnknown,
			Options: idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Second}},
	}
}

// PlayQuiet plays an ordinary day: retries, a retry during the first attempt, and a bank that is busy.
func PlayQuiet(ctx context.Context, r *Run) error {
	for range 20 {
		key := NewKey()
		err := errors.Join(
			r.Send(ctx, key, plainBody, idempotency.OutcomeExecuted),
			r.Send(ctx, key, plainBody, idempotency.OutcomeReplayed),
			r.Send(ctx, key, plainBody, idempotency.OutcomeReplayed),
		)
		if err != nil {
			return err
		}
	}
	key := NewKey()
	first := make(chan error)
	go func() { first <- r.Send(ctx, key, gatedBody, idempotency.OutcomeExecuted) }()
	<-r.handlerGate // the handler runs
	early := r.Send(ctx, key, gatedBody, idempotency.OutcomeInProgress)
	<-r.handlerGate
	return errors.Join(early, <-first, r.Send(ctx, NewKey(), busyBody, idempotency.OutcomeReleased), sendOmitted(ctx, r))
}

// sendOmitted repeats a request whose answer the store has not kept.
func sendOmitted(ctx context.Context, r *Run) error {
	key := NewKey()
	return errors.Join(
		r.Send(ctx, key, tombstoneBody, idempotency.OutcomeExecuted),
		r.Send(ctx, key, tombstoneBody, idempotency.OutcomeNotReplayable),
	)
}

// playCached has replays from the cache.
func playCached(ctx context.Context, r *Run) error {
	key := NewKey()
	err := r.Send(ctx, key, plainBody, idempotency.OutcomeExecuted)
	for range 5 {
		err = errors.Join(err, r.Send(ctx, key, plainBody, idempotency.OutcomeReplayed))
		r.observed.update(func(l *Ledger) { l.FromCache++ })
	}
	return err
}

// playWaiting has a duplicate that waits for the end of the first attempt.
func playWaiting(ctx context.Context, r *Run) error {
	key := NewKey()
	first, duplicate := make(chan error), make(chan error)
	go func() { first <- r.Send(ctx, key, gatedBody, idempotency.OutcomeExecuted) }()
	<-r.handlerGate // the handler runs
	r.Store.drainKeyHeld()
	go func() { duplicate <- r.Send(ctx, key, gatedBody, idempotency.OutcomeReplayed) }()
	<-r.Store.KeyHeld // the duplicate has found the claim, and waits
	<-r.handlerGate
	r.observed.update(func(l *Ledger) { l.Waits++ })
	return errors.Join(<-first, <-duplicate)
}

// PlayMisuse has a client that uses a key for two requests, sends invalid keys, and exceeds the quota of its user.
func PlayMisuse(ctx context.Context, r *Run) error {
	key := NewKey()
	err := r.Send(ctx, key, plainBody, idempotency.OutcomeExecuted)
	for range 4 {
		err = errors.Join(err,
			r.Send(ctx, key, busyBody, idempotency.OutcomeKeyReused),
			r.Send(ctx, "not a key", plainBody, idempotency.OutcomeRejected, "key_invalid"))
	}
	r.Store.Claims.Set(idempotency.ErrUserQuota)
	err = errors.Join(err, r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeQuotaExceeded))
	r.Store.Claims.Set(nil)
	return err
}

// PlayStoreDown has a store that refuses connections.
func PlayStoreDown(ctx context.Context, r *Run) error {
	err := r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeExecuted)
	r.Store.Claims.Set(ErrDown)
	for range 4 {
		err = errors.Join(err, r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeUnavailable, "connection"))
	}
	r.Store.Claims.Set(nil)
	return err
}

// playUnprotected has a store that does not answer in time, so the middleware runs the handler without a claim.
func playUnprotected(ctx context.Context, r *Run) error {
	err := r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeExecuted)
	r.Store.Claims.Set(context.DeadlineExceeded)
	for range 3 {
		err = errors.Join(err, r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeUnprotected, "timeout"))
	}
	r.Store.Claims.Set(nil)
	return err
}

// playRecordedLater has answers that the middleware stores later, when the store is available again.
func playRecordedLater(ctx context.Context, r *Run) error {
	keys, err := sendUnrecorded(ctx, r)
	r.Store.Completions.Set(nil)
	for _, key := range keys {
		err = errors.Join(err, r.SendUntil(ctx, key, plainBody, idempotency.OutcomeReplayed))
		r.observed.update(func(l *Ledger) {
			l.Recoveries["recorded"]++
			l.Stored += storedAnswerSize
		})
	}
	return err
}

// playNotRecorded has answers that the store refuses until the shop closes.
func playNotRecorded(ctx context.Context, r *Run) error {
	_, err := sendUnrecorded(ctx, r)
	return err
}

// sendUnrecorded makes payments whose answers the store refuses, and returns their keys. The store refuses further answers,
// too, until the caller resets the fault.
func sendUnrecorded(ctx context.Context, r *Run) (keys []string, err error) {
	r.Store.Completions.Set(ErrDown)
	for range 3 {
		keys = append(keys, NewKey())
		err = errors.Join(err, r.Send(ctx, keys[len(keys)-1], plainBody, idempotency.OutcomeUnrecorded, "connection"))
	}
	return keys, err
}

// playLeasesLost has an attempt whose lease lapses, because renewals fail, so another attempt takes over.
func playLeasesLost(ctx context.Context, r *Run) error {
	key := NewKey()
	r.Store.Renewals.Set(ErrDown)
	first := make(chan error)
	go func() { first <- r.Send(ctx, key, lapsingBody, idempotency.OutcomeClaimLost) }()
	<-r.handlerGate // the handler runs
	err := r.SendUntil(ctx, key, lapsingBody, idempotency.OutcomeExecuted)
	r.observed.update(func(l *Ledger) { l.Stored += storedAnswerSize })
	<-r.handlerGate
	r.Store.Renewals.Set(nil)
	return errors.Join(err, <-first)
}

// playRecordsLost has a store that has lost acknowledged records, as after a failover.
func playRecordsLost(ctx context.Context, r *Run) error {
	r.Store.Completions.Set(idempotency.ErrRestored)
	err := errors.Join(
		r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeRestored),
		r.Send(ctx, NewKey(), plainBody, idempotency.OutcomeRestored),
	)
	r.Store.Completions.Set(nil)
	return err
}

// playOutcomeUnknown has an attempt with an unknown outcome, a client that repeats the request, and an operator who resolves
// the operation.
func playOutcomeUnknown(ctx context.Context, r *Run) error {
	key := NewKey()
	err := errors.Join(
		r.Send(ctx, key, unknownBody, idempotency.OutcomeAbandoned),
		r.SendUntil(ctx, key, unknownBody, idempotency.OutcomeUnknown),
	)
	for range 14 {
		err = errors.Join(err, r.Send(ctx, key, unknownBody, idempotency.OutcomeUnknown))
	}
	return errors.Join(err, r.resolveAbandoned(ctx), r.Send(ctx, key, unknownBody, idempotency.OutcomeReplayed))
}

// resolveAbandoned resolves all abandoned operations as happened, as an operator does after a look at the bank's list.
func (r *Run) resolveAbandoned(ctx context.Context) error {
	store := r.Store.Store.(idempotency.Inspector)
	resolver, err := resolve.New(store, resolve.Options{Observer: r.Shop.Observe, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	listing, err := store.List(ctx, idempotency.ListRequest{States: []idempotency.State{idempotency.StateAbandoned}})
	for _, entry := range listing.Entries {
		by := resolve.By{Operator: "alice", Reason: "the bank has the charge"}
		err = errors.Join(err, resolver.Happened(ctx, entry, idempotency.Response{Status: http.StatusCreated}, by))
		r.observed.update(func(l *Ledger) { l.Resolutions++ })
	}
	return err
}
