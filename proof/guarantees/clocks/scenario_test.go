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

// ending is the end of an attempt.
type ending string

const (
	succeeds ending = "succeeds"
	fails    ending = "fails"
	vanishes ending = "vanishes"
)

// scenario is a sequence of up to three requests with one key: A runs, may renew its lease, and ends while B may run.
// C begins last.
type scenario struct {
	t      testing.TB
	runner *idempotency.Runner
	key    idempotency.Key

	isRenewed        bool
	firstEnding      ending
	refusesAbandoned bool

	requestByName map[string]*request
	model         model

	storeOutcomes, modelOutcomes []string
}

// scenarioSteps are the steps of a scenario. The clock may jump before each step after the first.
var scenarioSteps = [gapCount + 1]func(*scenario){
	func(r *scenario) { r.beginRequest("A") },
	func(r *scenario) { r.renewLease("A") },
	func(r *scenario) { r.beginRequest("B") },
	func(r *scenario) { r.finishRequest("A", r.firstEnding) },
	func(r *scenario) { r.finishRequest("B", succeeds) },
	func(r *scenario) {
		r.beginRequest("C")
		r.finishRequest("C", succeeds)
	},
}

// newBatch returns one scenario for each combination of policy, renewal and ending. The keys of the batch have the endpoint id.
func newBatch(t testing.TB, k kind, store idempotency.Store, id string) (b batch) {
	for _, policy := range []idempotency.Abandoned{idempotency.ReExecute, idempotency.Refuse} {
		runner, err := idempotency.NewRunner(claimRecorder{store}, idempotency.RunnerOptions{
			Lease: lease, TTL: ttl, Abandoned: policy, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for _, renewed := range []bool{false, true} {
			for _, ending := range []ending{succeeds, fails, vanishes} {
				r := &scenario{
					t: t, runner: runner, isRenewed: renewed, firstEnding: ending, refusesAbandoned: policy == idempotency.Refuse,
					requestByName: map[string]*request{},
				}
				r.key = idempotency.Key{Endpoint: id, ID: r.describeScenario()}
				r.model.kind, r.model.refusesAbandoned = k, r.refusesAbandoned
				b = append(b, r)
			}
		}
	}
	return b
}

func (r *scenario) describeScenario() string {
	return fmt.Sprintf("A is renewed: %t, A %s, refuse: %t", r.isRenewed, r.firstEnding, r.refusesAbandoned)
}

// request is one call of Runner.Do. Its work lasts until the test chooses the ending.
type request struct {
	claim           idempotency.Claim
	begunWork       chan idempotency.Operation // receives the operation when the work begins
	chosenEnding    chan ending
	reportedOutcome chan string // receives the outcome of Runner.Do
	isWorking       bool
}

var errWork = errors.New("the work fails")

// beginRequest begins a request, and waits for the beginning of its work or for its outcome.
func (r *scenario) beginRequest(name string) {
	q := &request{
		begunWork: make(chan idempotency.Operation), chosenEnding: make(chan ending, 1), reportedOutcome: make(chan string, 1),
	}
	r.requestByName[name] = q
	go func() {
		ctx := context.WithValue(context.Background(), claimRecorderKey{}, &q.claim)
		resp, replayed, err := r.runner.Do(ctx, r.key, nil, func(ctx context.Context) (idempotency.Response, error) {
			op, _ := idempotency.FromContext(ctx)
			q.begunWork <- op
			if <-q.chosenEnding == succeeds {
				return idempotency.Response{Body: []byte(name)}, nil
			}
			return idempotency.Response{}, errWork
		})
		q.reportedOutcome <- describeOutcome(string(resp.Body), replayed, err)
	}()
	r.modelOutcomes = append(r.modelOutcomes, r.model.beginRequest(name))
	select {
	case op := <-q.begunWork:
		q.isWorking = true
		assert.Equal(r.t, r.key.OperationID(), op.ID)
		r.storeOutcomes = append(r.storeOutcomes, fmt.Sprint("attempt ", op.Attempt))
	case told := <-q.reportedOutcome:
		r.storeOutcomes = append(r.storeOutcomes, told)
	}
}

func describeOutcome(body string, replayed bool, err error) string {
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

// renewLease renews the lease of the request name, as the runner does when the clock of the process says so.
func (r *scenario) renewLease(name string) {
	if !r.isRenewed {
		return
	}
	r.model.renewLease(name)
	_ = r.requestByName[name].claim.Extend(context.Background(), lease) // later steps show the effect of the renewal
}

// finishRequest ends the work of the request name, if its work is under way. A request that vanishes keeps working.
func (r *scenario) finishRequest(name string, how ending) {
	q := r.requestByName[name]
	if !q.isWorking || how == vanishes {
		return
	}
	if how == succeeds {
		r.modelOutcomes = append(r.modelOutcomes, r.model.completeRecord(name))
	} else {
		r.modelOutcomes = append(r.modelOutcomes, r.model.releaseRecord(name))
	}
	q.isWorking = false
	q.chosenEnding <- how
	r.storeOutcomes = append(r.storeOutcomes, <-q.reportedOutcome)
}

// endRequests ends the work of all requests.
func (r *scenario) endRequests() {
	for _, q := range r.requestByName {
		if q.isWorking {
			q.chosenEnding <- fails
			<-q.reportedOutcome
		}
	}
}

// claimRecorder is a store whose Begin also stores the granted claim in the variable that the context points to.
type claimRecorder struct{ idempotency.Store }

type claimRecorderKey struct{}

func (s claimRecorder) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	*ctx.Value(claimRecorderKey{}).(*idempotency.Claim) = claim
	return record, claim, err
}
