package resolve

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/idempotency-go/idempotency"
)

// EraseOptions are the settings of [EraseUser]. The zero value of each field is its default.
type EraseOptions struct {
	// Scan is the maximum number of records to read, of all users, in stores that read each record separately, such as
	// Redis. Zero means no maximum.
	Scan int

	// Progress, if set, is called from time to time while EraseUser reads the store, and after each record of the user.
	Progress func(EraseProgress)
}

// EraseProgress describes how far [EraseUser] has got.
type EraseProgress struct {
	// Read and Total are the numbers of [idempotency.ListRequest].Progress. They are zero in a store that answers with
	// one statement. EraseUser reads the store once for each 10,000 records of the user, and Read begins again each
	// time.
	Read, Total int64

	// Handled is the number of records of the user that EraseUser has removed or left so far, of the Found records that
	// the first reading has found.
	Handled, Found int
}

// Erasure counts what [EraseUser] has removed, and what has stayed.
type Erasure struct {
	Erased  int // records that were removed
	Running int // records that stay because an attempt is running

	// Unreadable counts the records that stay because they cannot be read. If the user of such a record is unknown, as
	// in Redis, the records of all users count.
	Unreadable int

	// Partial reports that the store has more records than EraseOptions.Scan, so further records of the user may be
	// among them.
	Partial bool
}

// erasePageSize bounds the memory for the entries that EraseUser lists at a time, to some megabytes. A larger page saves
// readings of the whole store.
const erasePageSize = 10_000

// maxEraseTries bounds how often EraseUser looks at a record that changes at each try, because its request is repeated.
const maxEraseTries = 5

// EraseUser removes the records of user from store, with their answers, results of steps and resolutions. Sealed answers
// (see package seal) need no key for this. Pass the user as the [idempotency.UserFunc] returned it. After the removal, a
// repeated request runs its operation as a new operation, so the effects may happen twice.
//
// A record stays while an attempt is running, because the owner of the attempt would store the record again. An owner
// whose lease has lapsed may do the same when its handler returns, and a new request of the user stores a new record. To
// leave nothing behind, refuse requests of the user first, and repeat EraseUser after a lease until Running and Erased
// are zero. EraseUser may be interrupted and repeated at any time.
//
// EraseUser finds no record that has expired, and no key that was freed within the last two leases. Both hold the name of the
// user, and an expired record its answer, until the store deletes them: after two leases, call Maintain of a table of
// pgxstore or mysqlstore; in sqlitestore, later claims delete them. A RedisStore with MaxUserRecords keeps an index with the
// IDs of the operations for up to two TTLs.
//
// EraseUser reaches only the records of store. The same data may also be in backups, in replicas that lag, in the memory
// of other processes with a store of package cache (up to its MaxAge), in logs, and in the systems that handlers call.
//
// An error ends EraseUser, and the counts say what was done before:
//
//   - an error that wraps [errors.ErrUnsupported]: the store cannot list the records of a user;
//   - an error of List, InspectOperation or Forget of the store;
//   - another error: user is empty.
func EraseUser(ctx context.Context, store idempotency.Inspector, user string, opts EraseOptions) (Erasure, error) {
	if user == "" {
		return Erasure{}, errors.New("idempotency: resolve: no user whose records to erase")
	}
	e := &eraser{store: store, reportProgress: opts.Progress}
	request := idempotency.ListRequest{
		User: idempotency.Key{User: user}.Bounded().User, Order: idempotency.OldestFirst, Limit: erasePageSize,
		Scan: cmp.Or(opts.Scan, math.MaxInt), Progress: e.noteRead,
	}
	for {
		listing, err := store.List(ctx, request)
		if err != nil {
			return e.erasure, err
		}
		if err := e.erasePage(ctx, listing); err != nil {
			return e.erasure, err
		}
		if len(listing.Entries) < erasePageSize {
			e.erasure.Unreadable += listing.Unreadable
			return e.erasure, nil
		}
		request.After = &listing.Entries[erasePageSize-1] // so that the records that stay are not listed again
	}
}

// eraser is a running EraseUser.
type eraser struct {
	store          idempotency.Inspector
	erasure        Erasure
	progress       EraseProgress
	reportProgress func(EraseProgress)
}

// noteRead reports the progress of a List.
func (e *eraser) noteRead(read, total int64) {
	e.progress.Read, e.progress.Total = read, total
	e.report()
}

func (e *eraser) report() {
	if e.reportProgress != nil {
		e.reportProgress(e.progress)
	}
}

// erasePage removes the entries of listing.
func (e *eraser) erasePage(ctx context.Context, listing idempotency.Listing) error {
	e.erasure.Partial = e.erasure.Partial || listing.Partial
	if e.progress.Found == 0 { // the first page
		for _, total := range listing.Totals {
			e.progress.Found += total.Records
		}
	}
	for _, entry := range listing.Entries {
		if err := e.countResult(e.eraseEntry(ctx, entry)); err != nil {
			return err
		}
		e.progress.Handled++
		e.report()
	}
	return nil
}

// eraseEntry removes the record of entry, in its present state if the record has changed since the listing.
func (e *eraser) eraseEntry(ctx context.Context, entry idempotency.Entry) error {
	for range maxEraseTries {
		err := e.store.Forget(ctx, entry)
		if !errors.Is(err, idempotency.ErrEntryChanged) {
			return err
		}
		if entry, err = e.store.InspectOperation(ctx, entry.Operation); err != nil {
			return err
		}
	}
	return idempotency.ErrInProgress // one attempt follows another
}

// countResult counts a record by the result of eraseEntry, and returns the errors that end EraseUser.
func (e *eraser) countResult(err error) error {
	switch {
	case err == nil:
		e.erasure.Erased++
	case errors.Is(err, idempotency.ErrNoRecord): // the record has expired, or somebody else has removed the record
	case errors.Is(err, idempotency.ErrInProgress):
		e.erasure.Running++
	case errors.Is(err, idempotency.ErrRecordInvalid):
		e.erasure.Unreadable++
	default:
		return err
	}
	return nil
}
