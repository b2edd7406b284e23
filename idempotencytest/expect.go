package idempotencytest

import (
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
)

// succeeds checks the error of a step.
func (t *trial) succeeds(step string, err error) {
	if err != nil {
		t.failf("%s: %w", step, err)
	}
}

// succeedsLate checks the error of a step that may have come after the record expired.
func (t *trial) succeedsLate(step string, err error) {
	if !errors.Is(err, idempotency.ErrRestored) {
		t.succeeds(step, err)
	}
}

// succeedsOrLoses checks the error of a step that may have come after the end of its claim.
func (t *trial) succeedsOrLoses(step string, err error) {
	if !errors.Is(err, idempotency.ErrClaimLost) {
		t.succeeds(step, err)
	}
}

// says checks that a step returned a certain error.
func (t *trial) says(step string, err, want error) {
	if !errors.Is(err, want) {
		t.failf("%s returned %q, want %q", step, fmt.Sprint(err), want)
	}
}

// loses checks that each step of own says that the claim is lost.
func (t *trial) loses(own answer) {
	t.says("Extend", own.claim.Extend(t.ctx, short), idempotency.ErrClaimLost)
	t.says("Complete", own.claim.Complete(t.ctx, receipt("of the old owner"), short), idempotency.ErrClaimLost)
	t.says("Release", own.claim.Release(t.ctx, long), idempotency.ErrClaimLost)
}

// describes checks that a record is that of the attempt of own.
func (t *trial) describes(seen, own answer) {
	switch {
	case seen.Attempt != own.Attempt:
		t.failf("the record is of attempt %d, not of attempt %d", seen.Attempt, own.Attempt)
	case seen.Created.Sub(own.Created).Abs() > resolution:
		t.failf("the operation was created at %v, not at %v", seen.Created, own.Created)
	}
	t.tellsApart(seen, own)
}

// tellsApart checks that the fingerprint of a record says whether who asked for it has sent the request of own.
func (t *trial) tellsApart(seen, own answer) {
	switch {
	case seen.asker == own.asker && seen.Fingerprint != seen.asker:
		t.failf("the record has fingerprint %v, not that of its request, %v", seen.Fingerprint, seen.asker)
	case seen.asker != own.asker && seen.Fingerprint == seen.asker:
		t.failf("the record has the fingerprint of another request, which asks for it")
	case seen.Fingerprint == idempotency.Fingerprint{}:
		t.failf("the record has no fingerprint")
	}
}

// runs checks that nobody can claim the key while own runs.
func (t *trial) runs(own answer) {
	t.runsAs(t.refused(request), own)
	t.runsAs(t.refused(takingOver(request)), own)
}

// runsAs checks what somebody else was told while own runs.
func (t *trial) runsAs(seen, own answer) {
	if seen.Response != nil {
		t.failf("the record of an attempt that runs has a response")
	}
	t.describes(seen, own)
	t.leaseRuns(seen, own)
}

// leaseRuns checks what a record says of the lease of own, as far as the time between question and answer allows.
func (t *trial) leaseRuns(seen, own answer) {
	age := seen.answered.Sub(own.asked)
	least, most := max(own.lease-age-resolution, 0), own.lease+resolution
	if left := seen.LeaseLeft; left < least || left > most || left == 0 && age < own.lease {
		t.failf("of a lease of %v, claimed no longer than %v ago, %v are left", own.lease, age, left)
	}
}

// isAbandoned checks that a record says that nobody runs the operation of own, and that it is not completed.
func (t *trial) isAbandoned(seen, own answer) {
	t.describes(seen, own)
	if seen.LeaseLeft != 0 || seen.Response != nil {
		t.failf("the record is not that of an attempt that has ended without a response: %s", show(seen))
	}
}

// isNew checks that own is a first attempt, which knows nothing of the attempt before.
func (t *trial) isNew(own, before answer) {
	least := own.asked.Sub(before.answered) - resolution
	if own.Attempt != 1 || own.Created.Sub(before.Created) < least {
		t.failf("the claim is not a first one, made now: %s", show(own))
	}
}

// replays checks that the key stays with the response of own, whoever asks and however often.
func (t *trial) replays(own answer, resp idempotency.Response) {
	for _, a := range []idempotency.ClaimRequest{request, takingOver(request), another, takingOver(another)} {
		t.isResponse(t.refused(a), own, resp)
	}
}

// isResponse checks that a record has the response of own.
func (t *trial) isResponse(seen, own answer, resp idempotency.Response) {
	if seen.Response == nil {
		t.failf("the record has no response: %s", show(seen))
	}
	t.describes(seen, own)
	if seen.LeaseLeft != 0 {
		t.failf("the record of a completed operation has a lease of %v left", seen.LeaseLeft)
	}
	if diff := difference(*seen.Response, resp); diff != "" {
		t.failf("the response is not what was completed: %s", diff)
	}
}

// notEarly checks that what seen shows did not happen before span was over, which began after since.
func (t *trial) notEarly(event string, since time.Time, span time.Duration, seen answer) {
	if took := seen.answered.Sub(since); took < span-resolution {
		t.failf("%s after %v instead of %v", event, took, span)
	}
}

func show(a answer) string {
	return fmt.Sprintf("attempt %d, created %v, lease left %v, completed %t",
		a.Attempt, a.Created, a.LeaseLeft, a.Response != nil)
}
