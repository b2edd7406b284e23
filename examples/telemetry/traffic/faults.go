package traffic

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Faults is a store in which claims, renewals and completions can be made to fail.
type Faults struct {
	idempotency.Store
	Claims, Renewals, Completions Fault

	Held chan bool // has a value when a request has found that another attempt holds its key
}

func newFaults() *Faults {
	return &Faults{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{}), Held: make(chan bool, 1)}
}

// Begin implements [idempotency.Store].
func (s *Faults) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := s.Claims.failure(); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, inner, err := s.Store.Begin(ctx, key, request)
	if inner != nil {
		inner = &claim{inner, s}
	}
	if record.LeaseLeft > 0 && inner == nil {
		select {
		case s.Held <- true:
		default:
		}
	}
	return record, inner, err
}

// Fault is how a step of the store fails. The zero Fault is none.
type Fault struct{ err atomic.Pointer[error] }

// Set lets the step fail with err. Nil ends that.
func (f *Fault) Set(err error) { f.err.Store(&err) }

func (f *Fault) failure() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// ErrDown is the error of a store that cannot be reached.
var ErrDown error = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}

type claim struct {
	idempotency.Claim
	store *Faults
}

func (c *claim) Extend(ctx context.Context, lease time.Duration) error {
	if err := c.store.Renewals.failure(); err != nil {
		return err
	}
	return c.Claim.Extend(ctx, lease)
}

// Complete stores the response if the fault says that the store had lost the record.
func (c *claim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	err := c.store.Completions.failure()
	if err != nil && !errors.Is(err, idempotency.ErrRestored) {
		return err
	}
	return errors.Join(c.Claim.Complete(ctx, resp, ttl), err)
}
