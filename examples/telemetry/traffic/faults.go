package traffic

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// FaultyStore is a store whose claims, renewals and completions fail on demand.
type FaultyStore struct {
	idempotency.Store
	Claims, Renewals, Completions Fault

	KeyHeld chan bool // receives a value when Begin finds that another attempt holds the key
}

func newFaultyStore(store idempotency.Store) *FaultyStore {
	if store == nil {
		store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	return &FaultyStore{Store: store, KeyHeld: make(chan bool, 1)}
}

// drainKeyHeld empties KeyHeld, because a waiting request calls Begin more than once.
func (s *FaultyStore) drainKeyHeld() {
	select {
	case <-s.KeyHeld:
	default:
	}
}

// Begin implements [idempotency.Store].
func (s *FaultyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := s.Claims.loadError(); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, inner, err := s.Store.Begin(ctx, key, request)
	if inner != nil {
		inner = &faultyClaim{inner, s}
	}
	if record.LeaseLeft > 0 && inner == nil {
		select {
		case s.KeyHeld <- true:
		default:
		}
	}
	return record, inner, err
}

// Fault makes a step of the store fail. The zero Fault lets the step succeed.
type Fault struct{ errPointer atomic.Pointer[error] }

// Set makes the step fail with err, or succeed if err is nil.
func (f *Fault) Set(err error) { f.errPointer.Store(&err) }

func (f *Fault) loadError() error {
	if err := f.errPointer.Load(); err != nil {
		return *err
	}
	return nil
}

// ErrDown is the error of a store that cannot be reached.
var ErrDown error = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}

// faultyClaim is a claim whose renewals and completions fail on demand.
type faultyClaim struct {
	idempotency.Claim
	faultyStore *FaultyStore
}

func (c *faultyClaim) Extend(ctx context.Context, lease time.Duration) error {
	if err := c.faultyStore.Renewals.loadError(); err != nil {
		return err
	}
	return c.Claim.Extend(ctx, lease)
}

// Complete stores the response and returns the error of the fault if that is ErrRestored, because a store that restores a
// lost record keeps the response. Any other fault keeps Complete from storing.
func (c *faultyClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	err := c.faultyStore.Completions.loadError()
	if err != nil && !errors.Is(err, idempotency.ErrRestored) {
		return err
	}
	return errors.Join(c.Claim.Complete(ctx, resp, ttl), err)
}
