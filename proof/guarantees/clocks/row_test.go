//go:build linux

package clocks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// ending is what becomes of the first attempt.
type ending string

const (
	succeeds ending = "succeeds"
	fails    ending = "fails"
	vanishes ending = "vanishes"
)

// row is up to three requests with one key: A works, is renewed perhaps, and ends while B may work; C comes last.
type row struct {
	t      testing.TB
	runner *idempotency.Runner
	key    idempotency.Key

	renewed bool
	ending  ending
	refuse  bool

	requests map[string]*request
	model    model

	told, expected []string
}

// steps of a row. The clock may jump before each but the first.
var steps = [gaps + 1]func(*row){
	func(r *row) { r.begin("A") },
	func(r *row) { r.renew("A") },
	func(r *row) { r.begin("B") },
	func(r *row) { r.finish("A", r.ending) },
	func(r *row) { r.finish("B", succeeds) },
	func(r *row) {
		r.begin("C")
		r.finish("C", succeeds)
	},
}

// newBatch returns one row of each sort on a store.
func newBatch(t testing.TB, k kind, store idempotency.Store, id string) (b batch) {
	for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
		runner, err := idempotency.NewRunner(claimTeller{store}, idempotency.RunnerOptions{
			Lease: lease, TTL: ttl, Abandoned: policy, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for _, renewed := range []bool{false, true} {
			for _, ending := range []ending{succeeds, fails, vanishes} {
				r := &row{
					t: t, runner: runner, renewed: renewed, ending: ending, refuse: policy == idempotency.Refuse,
					requests: map[string]*request{},
				}
				r.key = idempotency.Key{Endpoint: id, ID: r.name()}
				r.model.kind, r.model.refuse = k, r.refuse
				b = append(b, r)
			}
		}
	}
	return b
}

func (r *row) name() string {
	return fmt.Sprintf("A is renewed: %t, A %s, refuse: %t", r.renewed, r.ending, r.refuse)
}

// request is one call of Runner.Do, which runs until it is told how to end.
type request struct {
	claim  idempotency.Claim
	works  chan idempotency.Operation // has one when the work has begun
	ending chan ending
	told   chan string // has the outcome
	parked bool
}

var errWork = errors.New("the work fails")

// begin begins a request, and waits until it works or is answered.
func (r *row) begin(who string) {
	q := &request{works: make(chan idempotency.Operation), ending: make(chan ending, 1), told: make(chan string, 1)}
	r.requests[who] = q
	go func() {
		ctx := context.WithValue(context.Background(), tellerKey{}, &q.claim)
		resp, replayed, err := r.runner.Do(ctx, r.key, nil, func(ctx context.Context) (idempotency.Response, error) {
			op, _ := idempotency.FromContext(ctx)
			q.works <- op
			if <-q.ending == succeeds {
				return idempotency.Response{Body: []byte(who)}, nil
			}
			return idempotency.Response{}, errWork
		})
		q.told <- outcome(string(resp.Body), replayed, err)
	}()
	r.expected = append(r.expected, r.model.begin(who))
	select {
	case op := <-q.works:
		q.parked = true
		assert.Equal(r.t, r.key.OperationID(), op.ID)
		r.told = append(r.told, fmt.Sprint("attempt ", op.Attempt))
	case told := <-q.told:
		r.told = append(r.told, told)
	}
}

func outcome(body string, replayed bool, err error) string {
	switch {
	case errors.Is(err, idempotency.ErrInProgress):
		return "in progress"
	case errors.Is(err, idempotency.ErrOutcomeUnknown):
		return "unknown"
	case errors.Is(err, idempotency.ErrClaimLost):
		return "lost"
	case err == errWork:
		return "fails"
	case err != nil:
		return err.Error()
	case replayed:
		return "replays " + body
	default:
		return "executes " + body
	}
}

// renew renews the lease, as the runner would by the clock of the process.
func (r *row) renew(who string) {
	if !r.renewed {
		return
	}
	r.model.renew(who)
	_ = r.requests[who].claim.Extend(context.Background(), lease) // what it has done shows later
}

// finish ends the work of a request, if it works.
func (r *row) finish(who string, how ending) {
	q := r.requests[who]
	if !q.parked || how == vanishes {
		return
	}
	if how == succeeds {
		r.expected = append(r.expected, r.model.complete(who))
	} else {
		r.expected = append(r.expected, r.model.fail(who))
	}
	q.parked = false
	q.ending <- how
	r.told = append(r.told, <-q.told)
}

// end ends what still works.
func (r *row) end() {
	for _, q := range r.requests {
		if q.parked {
			q.ending <- fails
			<-q.told
		}
	}
}

// claimTeller is a store that tells the claim which it grants.
type claimTeller struct{ idempotency.Store }

type tellerKey struct{}

func (s claimTeller) Begin(ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	*ctx.Value(tellerKey{}).(*idempotency.Claim) = claim
	return record, claim, err
}
