package dynamodbstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency"
)

// Check reports what would break the promise of the store, or keep it from working. Call it when the program starts. It
// returns all findings joined. Each of these is an [*idempotency.UnsafeSetting] to weigh:
//
//   - a global table in the mode of eventual consistency: two Regions execute the same operation;
//   - a Time to Live that is off, or by another attribute: what has expired is kept for ever;
//   - a service that does not tell its time, so that nothing is known of the clock of this machine;
//   - a Skew of less than six seconds;
//   - a client without the calls DescribeTable and DescribeTimeToLive, or without the permission for them: the table is not
//     looked at.
//
// Any other error says that the options are wrong, that the service could not be asked, that the clock of this machine is
// wrong, or that the store does not work: the table is missing or has other keys, say, or a permission is missing.
// [idempotency.Findings] returns the findings one by one.
func (s *Store) Check(ctx context.Context) error {
	if s.faults != nil {
		return errors.Join(s.faults)
	}
	c := &check{Store: s}
	for _, ask := range []func(context.Context) error{c.askTable, c.askCalls, c.askClock} {
		if err := ask(ctx); err != nil {
			c.findings = append(c.findings, failure("check", err))
		}
	}
	return errors.Join(c.findings...)
}

// check is what the service tells.
type check struct {
	*Store
	unready  bool // the table is missing, or differs
	findings []error
}

func (c *check) unsafe(node, setting, value, risk string) {
	c.findings = append(c.findings, &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk})
}

// askTable looks at the table.
func (c *check) askTable(ctx context.Context) error {
	const unseen = "nobody has looked at the keys, the replicas and the Time to Live of the table"
	client, ok := c.client.(describer)
	if !ok {
		c.unsafe("client", "DescribeTable", "missing", unseen)
		return nil
	}
	table, err := describe(ctx, client, c.opts)
	switch {
	case hasCode(err, "AccessDeniedException"):
		c.unsafe("client", "dynamodb:DescribeTable", "denied", unseen)
		return nil
	case err != nil:
		c.unready = hasCode(err, "ResourceNotFoundException")
		return err
	case !isUsable(table.TableStatus):
		c.unready = true
		return fmt.Errorf("the table is %s", table.TableStatus)
	}
	if err := differs(table); err != nil {
		c.unready = true
		return err
	}
	if len(table.Replicas) > 0 && table.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		c.unsafe(c.opts.table(), "MultiRegionConsistency", "EVENTUAL",
			"two Regions execute the same operation, and the record of one of them is lost")
	}
	return c.askTimeToLive(ctx, client)
}

// askTimeToLive looks at what the service deletes.
func (c *check) askTimeToLive(ctx context.Context, client describer) error {
	name, enabled, err := timeToLive(ctx, client, c.opts)
	const setting = "TimeToLive"
	switch {
	case hasCode(err, "AccessDeniedException"):
		c.unsafe("client", "dynamodb:DescribeTimeToLive", "denied", "nobody has looked at what the service deletes")
	case err != nil:
		return err
	case !enabled:
		c.unsafe(c.opts.table(), setting, "DISABLED", "what has expired is kept, and paid for, until somebody deletes it")
	case name != removeName:
		c.unsafe(c.opts.table(), setting, name, "what has expired is kept: the attribute is not "+removeName)
	}
	return nil
}

// askCalls makes the calls of a service on a record that nobody has, which changes nothing.
func (c *check) askCalls(ctx context.Context) error {
	if c.unready {
		return nil
	}
	digest := make([]byte, 32)
	rand.Read(digest) // never fails
	_, got := c.get(ctx, digest)
	c.clock.answered(time.Now())
	u := newUpdate(digest).has(digestName, true).set(attemptName, number(1))
	_, updated := c.client.UpdateItem(ctx, u.input(c.opts.table()), c.calls)
	if _, refused := isConditional(updated); refused {
		updated = nil
	}
	return errors.Join(got, updated) // which name their calls
}

// askClock reports what is known of the clock.
func (c *check) askClock(context.Context) error {
	if c.unready {
		return nil
	}
	if c.opts.skew() < 6*time.Second {
		c.unsafe("client", "Skew", c.opts.skew().String(), "clocks of processes are not told apart well enough for it")
	}
	if !c.clock.isDated() {
		c.unsafe(c.opts.table(), "Date", "missing", "nothing is known of the clock of this machine")
	}
	return c.clock.fault()
}
