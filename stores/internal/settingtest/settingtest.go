// Package settingtest checks that a store keeps its contract with different settings of a server, a session or a file. A test
// changes a setting, and calls [CheckContract].
package settingtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Subject is a store under test with its own empty table.
type Subject struct {
	Store interface {
		idempotency.Store
		idempotency.Resolver
	}

	// Maintain deletes all expired records. Nil means that the store deletes expired records by itself.
	Maintain func(ctx context.Context) error

	// Records counts the records of the table in a session with the usual settings. Nil means that Maintain keeps expired
	// records for some time.
	Records func(ctx context.Context) (int, error)
}

// Names are users, endpoints and IDs of keys. Some encoding, collation or mode refuses each of these names, or treats the name as
// equal to a different name.
var Names = []string{
	"alice", "ALICE", "alice ", "", " ", "0", "\u00e4", "a\u0308", "\u4e2d\u6587", "alice \U0001F600", "\u20ac\u0153",
	"NULL", `\`, `\'`, "'", `"`, "`", "?", "$1", "%_", "a\x00b", "a\xffb", "\xf0\x9f\x98", "a\nb", "\u202e\u0130", `\x41`, "\\u0041",
}

const (
	lease = time.Minute
	ttl   = time.Hour
	short = 20 * time.Millisecond // TTL that ends soon
	gone  = time.Microsecond      // lease or TTL that ends before the next step
)

// CheckContract calls all methods of the store on records in all states. The error names each part of the check in which the store
// violates its contract.
func CheckContract(ctx context.Context, s Subject) error {
	r := &contractCheck{ctx: ctx, Subject: s}
	parts := []struct {
		name string
		run  func() error
	}{
		{"names", r.useNames}, {"bodies", r.useBodies}, {"attempts", r.useAttempts}, {"takeover", r.takeOver},
		{"restoration", r.restoreRecords}, {"crowd", r.claimAtOnce}, {"operator", r.resolveAndForget}, {"listing", r.listRecords},
		{"expiry", r.expireRecords},
	}
	var faults []error
	for _, part := range parts {
		if err := part.run(); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", part.name, err))
		}
	}
	return errors.Join(faults...)
}

type contractCheck struct {
	Subject
	ctx context.Context
}

// partKey returns a key for a part of the check. Different parts have different keys.
func partKey(part, id string) idempotency.Key {
	return idempotency.Key{User: "user " + part, Endpoint: "POST /payments", ID: id}
}

var fingerprint = idempotency.Fingerprint{1, 2, 3}

// beginAttempt claims a key. The number of the attempt must be attempt.
func (r *contractCheck) beginAttempt(
	key idempotency.Key, request idempotency.ClaimRequest, attempt int,
) (idempotency.Claim, error) {
	request.Fingerprint = fingerprint
	record, claim, err := r.Store.Begin(r.ctx, key, request)
	switch {
	case err != nil:
		return nil, fmt.Errorf("begin: %w", err)
	case claim == nil:
		return nil, fmt.Errorf("begin: the key of attempt %d is taken: %+v", attempt, record)
	case record.Attempt != attempt:
		return nil, fmt.Errorf("begin: attempt %d, not %d", record.Attempt, attempt)
	}
	if age := time.Since(record.Created); age < -ttl || age > ttl {
		return nil, fmt.Errorf("begin: the record was created at %s", record.Created)
	}
	return claim, nil
}

// usual is the claim request of most parts.
var usual = idempotency.ClaimRequest{Lease: lease, TTL: ttl}

func answerOf(body []byte) idempotency.Response {
	const header = "Content-Type: text/plain\nX-Path: C:\\n\\'\"\n"
	return idempotency.Response{Status: 201, Header: header, Body: body, Note: "it's done"}
}

// completeClaim completes a claim, and checks the replay.
func (r *contractCheck) completeClaim(key idempotency.Key, claim idempotency.Claim, want idempotency.Response) error {
	given := want.Clone()
	if err := claim.Complete(r.ctx, given, ttl); err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	return r.requireReplay(key, want)
}

// requireReplay checks that a retry gets the response want.
func (r *contractCheck) requireReplay(key idempotency.Key, want idempotency.Response) error {
	request := usual
	request.Fingerprint, request.TakeOver = fingerprint, true
	record, claim, err := r.Store.Begin(r.ctx, key, request)
	switch {
	case err != nil:
		return fmt.Errorf("replay: %w", err)
	case claim != nil:
		return errors.New("replay: the operation would be executed again")
	case record.Response == nil:
		return fmt.Errorf("replay: no response in %+v", record)
	case record.Fingerprint != fingerprint:
		return fmt.Errorf("replay: another fingerprint: %x", record.Fingerprint)
	}
	got := *record.Response
	if got.Status != want.Status || got.Header != want.Header || got.Trailer != want.Trailer ||
		!bytes.Equal(got.Body, want.Body) || got.Omitted || got.Note != want.Note {
		return fmt.Errorf("replay: %.200q, not %.200q", fmt.Sprint(got), fmt.Sprint(want))
	}
	return nil
}

// useNames completes an operation for each name, because a server might treat different names as equal.
func (r *contractCheck) useNames() error {
	var faults []error
	for i, name := range Names {
		err := r.useName(idempotency.Key{User: name, Endpoint: name, ID: name}, answerOf([]byte{byte(i)}))
		if err != nil {
			faults = append(faults, fmt.Errorf("%q: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

func (r *contractCheck) useName(key idempotency.Key, answer idempotency.Response) error {
	claim, err := r.beginAttempt(key, usual, 1)
	if err != nil {
		return err
	}
	if err := r.completeClaim(key, claim, answer); err != nil {
		return err
	}
	entry, err := r.Store.Inspect(r.ctx, key)
	if err != nil || entry.Key != key || entry.State != idempotency.StateCompleted {
		return fmt.Errorf("inspect: %+v, %v", entry, err)
	}
	byOperation, err := r.Store.InspectOperation(r.ctx, key.OperationID())
	if err != nil || byOperation.Key != key {
		return fmt.Errorf("look by operation: %+v, %v", byOperation, err)
	}
	if key.User == "" {
		return nil // in a listing, an empty user means all users
	}
	listing, err := r.Store.List(r.ctx, idempotency.ListRequest{User: key.User})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if !slices.ContainsFunc(listing.Entries, func(e idempotency.Entry) bool {
		return e.Operation == key.OperationID() && e.Key == key && e.Size == entry.Size
	}) {
		return fmt.Errorf("list of the user: %+v, not %+v", listing.Entries, entry)
	}
	return nil
}

// useBodies stores answers with different bytes and sizes.
func (r *contractCheck) useBodies() error {
	every := make([]byte, 1<<15)
	for i := range every {
		every[i] = byte(i * i >> 3)
	}
	for id, body := range map[string][]byte{"empty": {}, "zero": {0}, "every": every, "large": bytes.Repeat(every, 8)} {
		key := partKey("bodies", id)
		claim, err := r.beginAttempt(key, usual, 1)
		if err == nil {
			err = r.completeClaim(key, claim, answerOf(body))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

// useAttempts stores results of steps, releases the claim, and completes the next attempt.
func (r *contractCheck) useAttempts() error {
	key := partKey("attempts", "1")
	claim, err := r.beginAttempt(key, usual, 1)
	if err != nil {
		return err
	}
	steps := map[string][]byte{"charge": []byte("\x00'\\\xff"), "empty": {}}
	if err := r.keepSteps(claim, steps, 1); err != nil {
		return err
	}
	if err := claim.Extend(r.ctx, 2*lease); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	asked := usual
	asked.Fingerprint = fingerprint
	record, other, err := r.Store.Begin(r.ctx, key, asked)
	if err != nil || other != nil || record.LeaseLeft <= lease || record.LeaseLeft > 2*lease {
		return fmt.Errorf("begin beside the owner: %+v, claimed %t, %v", record, other != nil, err)
	}
	if err := claim.Release(r.ctx, idempotency.Release{TTL: ttl}); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if claim, err = r.beginAttempt(key, usual, 2); err != nil {
		return err
	}
	steps["mail"] = []byte("1")
	if err := r.keepSteps(claim, steps, 2); err != nil {
		return err
	}
	return r.completeClaim(key, claim, answerOf([]byte("1")))
}

// keepSteps stores the results want as checkpoints, and checks that Checkpoints returns exactly want. From the second attempt on,
// keepSteps offers a different result for the step charge, because the result of the first attempt counts.
func (r *contractCheck) keepSteps(claim idempotency.Claim, want map[string][]byte, attempt int) error {
	keeper, ok := claim.(idempotency.Checkpointer)
	if !ok {
		return errors.New("the claim keeps no checkpoints")
	}
	for name, result := range want {
		given := bytes.Clone(result)
		if attempt > 1 && name == "charge" {
			given = []byte("another result")
		}
		stored, err := keeper.Checkpoint(r.ctx, name, given)
		if err != nil || !bytes.Equal(stored, result) {
			return fmt.Errorf("checkpoint %s: %q, %v", name, stored, err)
		}
	}
	got, err := keeper.Checkpoints(r.ctx)
	if err != nil || !maps.EqualFunc(got, want, bytes.Equal) {
		return fmt.Errorf("checkpoints: %q, %v", got, err)
	}
	return nil
}

// takeOver takes over an operation after the lease of the first attempt has lapsed.
func (r *contractCheck) takeOver() error {
	key := partKey("takeover", "1")
	first, err := r.beginAttempt(key, idempotency.ClaimRequest{Lease: gone, TTL: ttl}, 1)
	if err != nil {
		return err
	}
	request := usual
	request.TakeOver = true
	second, err := r.beginAttempt(key, request, 2)
	if err != nil {
		return err
	}
	for name, err := range map[string]error{
		"Extend": first.Extend(r.ctx, lease), "Complete": first.Complete(r.ctx, answerOf(nil), ttl),
		"Release": first.Release(r.ctx, idempotency.Release{TTL: ttl}),
	} {
		if !errors.Is(err, idempotency.ErrClaimLost) {
			return fmt.Errorf("%s of the attempt before: %v", name, err)
		}
	}
	return r.completeClaim(key, second, answerOf([]byte("2")))
}

// restoreRecords calls the methods of claims whose records have expired.
func (r *contractCheck) restoreRecords() error {
	for _, use := range []struct {
		name string
		call func(claim idempotency.Checkpointer) error
	}{
		{"Extend", func(claim idempotency.Checkpointer) error { return claim.Extend(r.ctx, lease) }},
		{"Complete", func(claim idempotency.Checkpointer) error { return claim.Complete(r.ctx, answerOf(nil), ttl) }},
		{"Checkpoint", func(claim idempotency.Checkpointer) error {
			_, err := claim.Checkpoint(r.ctx, "step", []byte("1"))
			return errors.Join(err, claim.Extend(r.ctx, lease))
		}},
	} {
		key := partKey("restoration", use.name)
		claim, err := r.beginAttempt(key, idempotency.ClaimRequest{Lease: gone, TTL: short}, 1)
		if err == nil {
			err = r.awaitExpiry(key)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", use.name, err)
		}
		if err := use.call(claim.(idempotency.Checkpointer)); !errors.Is(err, idempotency.ErrRestored) {
			return fmt.Errorf("%s of a record that has expired: %v", use.name, err)
		}
		if err := r.completeClaim(key, claim, answerOf(nil)); err != nil {
			return fmt.Errorf("%s: %w", use.name, err)
		}
	}
	return nil
}

// awaitExpiry waits until the record of a key has expired.
func (r *contractCheck) awaitExpiry(key idempotency.Key) error {
	for {
		_, err := r.Store.Inspect(r.ctx, key)
		switch {
		case errors.Is(err, idempotency.ErrNoRecord):
			return nil
		case err != nil:
			return fmt.Errorf("inspect: %w", err)
		}
		time.Sleep(short / 10)
	}
}

// claimAtOnce claims a key concurrently. Exactly one claim must succeed.
func (r *contractCheck) claimAtOnce() error {
	const callers = 8
	request := usual
	request.Fingerprint = fingerprint
	var claims, failures [callers]error
	var callersDone sync.WaitGroup
	for i := range callers {
		callersDone.Go(func() {
			_, claim, err := r.Store.Begin(r.ctx, partKey("crowd", "1"), request)
			failures[i] = err
			if claim != nil && err == nil {
				claims[i] = errors.New("claimed")
			}
		})
	}
	callersDone.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		return err
	}
	if claimed := slices.DeleteFunc(claims[:], func(err error) bool { return err == nil }); len(claimed) != 1 {
		return fmt.Errorf("%d of %d have claimed the key", len(claimed), callers)
	}
	return nil
}

// resolveAndForget resolves abandoned operations in both ways, and forgets the records.
func (r *contractCheck) resolveAndForget() error {
	happened := answerOf([]byte("by an operator"))
	for id, resolution := range map[string]idempotency.Resolution{
		"happened": {Response: &happened, TTL: ttl}, "not happened": {TTL: ttl},
	} {
		key := partKey("operator", id)
		claim, err := r.beginAttempt(key, idempotency.ClaimRequest{Lease: lease, TTL: ttl}, 1)
		if err != nil {
			return err
		}
		results := map[string][]byte{"charge": []byte("1"), "Charge": []byte("22"), "a": []byte("333")}
		if err := r.keepSteps(claim, results, 1); err != nil {
			return err
		}
		running, err := r.Store.Inspect(r.ctx, key)
		if err != nil || running.State != idempotency.StateRunning || running.LeaseLeft <= 0 || running.LeaseLeft > lease {
			return fmt.Errorf("inspect of a running operation: %+v, %v", running, err)
		}
		if err := r.Store.Forget(r.ctx, running); !errors.Is(err, idempotency.ErrInProgress) {
			return fmt.Errorf("forget of a running operation: %v", err)
		}
		if err := claim.Extend(r.ctx, gone); err != nil {
			return fmt.Errorf("extend: %w", err)
		}
		entry, err := r.Store.InspectOperation(r.ctx, key.OperationID())
		steps := []idempotency.StepSize{{Name: "Charge", Bytes: 2}, {Name: "a", Bytes: 3}, {Name: "charge", Bytes: 1}}
		if err != nil || entry.State != idempotency.StateAbandoned || !slices.Equal(entry.Steps, steps) || entry.Key != key {
			return fmt.Errorf("look by operation of an abandoned operation: %+v, %v", entry, err)
		}
		if err := r.Store.Resolve(r.ctx, entry, resolution); err != nil {
			return fmt.Errorf("resolve: %w", err)
		}
		if err := claim.Extend(r.ctx, lease); !errors.Is(err, idempotency.ErrClaimLost) {
			return fmt.Errorf("extend after Resolve: %v", err)
		}
		if err := r.Store.Forget(r.ctx, entry); !errors.Is(err, idempotency.ErrEntryChanged) {
			return fmt.Errorf("forget of an entry that was resolved: %v", err)
		}
		if resolution.Response != nil {
			if err := r.requireReplay(key, happened); err != nil {
				return err
			}
		} else if claim, err = r.beginAttempt(key, usual, 2); err != nil {
			return err
		} else if err := r.completeClaim(key, claim, happened); err != nil {
			return err
		}
		if entry, err = r.Store.Inspect(r.ctx, key); err != nil || entry.Size == 0 || entry.Note != happened.Note {
			return fmt.Errorf("inspect: %+v, %v", entry, err)
		}
		if err := r.Store.Forget(r.ctx, entry); err != nil {
			return fmt.Errorf("forget: %w", err)
		}
		if _, err := r.Store.Inspect(r.ctx, key); !errors.Is(err, idempotency.ErrNoRecord) {
			return fmt.Errorf("inspect of a record that was forgotten: %v", err)
		}
	}
	return nil
}

// listRecords lists records in all states, page by page.
func (r *contractCheck) listRecords() error {
	states := []idempotency.State{
		idempotency.StateRunning, idempotency.StateAbandoned, idempotency.StateReleased, idempotency.StateCompleted,
	}
	user := partKey("listing", "").User
	for i, state := range states {
		for n := range 3 {
			key := partKey("listing", fmt.Sprint(state, n))
			claim, err := r.beginAttempt(key, usual, 1)
			switch {
			case err != nil:
				return err
			case state == idempotency.StateAbandoned:
				err = claim.Extend(r.ctx, gone)
			case state == idempotency.StateReleased:
				err = claim.Release(r.ctx, idempotency.Release{TTL: ttl})
			case state == idempotency.StateCompleted:
				err = claim.Complete(r.ctx, answerOf(make([]byte, i*n)), ttl)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", state, err)
			}
		}
	}
	for _, request := range []idempotency.ListRequest{
		{User: user}, {User: user, Limit: 5}, {User: user, Limit: 5, Order: idempotency.LargestFirst},
		{User: user, States: states[1:3], Limit: 4}, {States: states[1:3], Limit: 100},
	} {
		if err := r.readPages(request); err != nil {
			return fmt.Errorf("list of %+v: %w", request, err)
		}
	}
	return nil
}

// readPages reads all pages of a listing, and compares them with the totals.
func (r *contractCheck) readPages(request idempotency.ListRequest) error {
	limit := request.Limit
	var entries []idempotency.Entry
	for {
		listing, err := r.Store.List(r.ctx, request)
		if err != nil {
			return err
		}
		entries = append(entries, listing.Entries...)
		if len(listing.Entries) > 0 && len(listing.Entries) == limit {
			request.After = &listing.Entries[limit-1]
			continue
		}
		counts := make(map[idempotency.State]int)
		for _, entry := range entries {
			counts[entry.State]++
			if entry.State == idempotency.StateCompleted && (entry.Status != 201 || entry.Note != answerOf(nil).Note) {
				return fmt.Errorf("an entry has no status or note: %+v", entry)
			}
		}
		want := len(request.States) * 3
		if len(request.States) == 0 {
			want = 12
		}
		totals := make(map[idempotency.State]int)
		for state, total := range listing.Totals {
			totals[state] = int(total.Records)
		}
		if len(entries) < want || !maps.Equal(counts, totals) || listing.Unreadable > 0 {
			return fmt.Errorf("%d entries in these states: %v; totals %v", len(entries), counts, listing.Totals)
		}
		return nil
	}
}

// expireRecords lets records expire, and counts the records before and after Maintain.
func (r *contractCheck) expireRecords() error {
	for i := range 5 {
		request := idempotency.ClaimRequest{Lease: gone, TTL: gone}
		if _, err := r.beginAttempt(partKey("expiry", fmt.Sprint(i)), request, 1); err != nil {
			return err
		}
	}
	if r.Maintain == nil {
		return nil
	}
	count := r.Records
	if count == nil {
		if err := r.Maintain(r.ctx); err != nil {
			return fmt.Errorf("maintain: %w", err)
		}
		return nil
	}
	before, err := count(r.ctx)
	if err != nil {
		return err
	}
	if err := r.Maintain(r.ctx); err != nil {
		return fmt.Errorf("maintain: %w", err)
	}
	after, err := count(r.ctx)
	if err != nil {
		return err
	}
	if before-after != 5 {
		return fmt.Errorf("maintain has deleted %d of 5 records that have expired", before-after)
	}
	return nil
}
