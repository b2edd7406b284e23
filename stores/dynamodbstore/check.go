package dynamodbstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Check returns everything that would break the guarantees of the store, or keep the store from working, as joined errors.
// Call Check when the program starts. [idempotency.Findings] returns the findings one by one.
//
// Some findings are an [*idempotency.UnsafeSetting], for you to weigh:
//
//   - a global table with eventual consistency: two Regions execute the same operation;
//   - Time to Live is disabled, or uses a different attribute: expired items stay for ever;
//   - replies without a Date: the store cannot check the clock of this machine;
//   - a Skew below six seconds;
//   - a client without the calls DescribeTable and DescribeTimeToLive, or without the permission for either call: Check
//     cannot read the settings of the table.
//
// Any other error means that the options have faults, a request failed, the clock of this machine is wrong, or the store does
// not work, for example because the table is missing or has a different key, or because a permission is missing.
func (s *Store) Check(ctx context.Context) error {
	if s.optionFaults != nil {
		return errors.Join(s.optionFaults)
	}
	c := &tableCheck{Store: s}
	for _, runCheck := range []func(context.Context) error{c.checkTable, c.checkCalls, c.checkClock} {
		if err := runCheck(ctx); err != nil {
			c.findings = append(c.findings, wrapError("check", err))
		}
	}
	return errors.Join(c.findings...)
}

// tableCheck collects the findings of a call of Check.
type tableCheck struct {
	*Store
	isUnready bool // the table is missing or different
	findings  []error
}

func (c *tableCheck) addUnsafe(node, setting, value, risk string) {
	c.findings = append(c.findings, &idempotency.UnsafeSetting{Node: node, Setting: setting, Value: value, Risk: risk})
}

// checkTable checks status, key and replicas of the table.
func (c *tableCheck) checkTable(ctx context.Context) error {
	const unreadTable = "Check cannot read the keys, the replicas and the Time to Live of the table"
	client, ok := c.client.(describer)
	if !ok {
		c.addUnsafe("client", "DescribeTable", "missing", unreadTable)
		return nil
	}
	table, err := describeTable(ctx, client, c.opts)
	switch {
	case hasCode(err, "AccessDeniedException"):
		c.addUnsafe("client", "dynamodb:DescribeTable", "denied", unreadTable)
		return nil
	case err != nil:
		c.isUnready = hasCode(err, "ResourceNotFoundException")
		return err
	case !isUsable(table.TableStatus):
		c.isUnready = true
		return fmt.Errorf("the table is %s", table.TableStatus)
	}
	if err := checkKeySchema(table); err != nil {
		c.isUnready = true
		return err
	}
	if len(table.Replicas) > 0 && table.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		c.addUnsafe(c.opts.tableName(), "MultiRegionConsistency", "EVENTUAL",
			"two Regions execute the same operation, and the record of one Region is lost")
	}
	return c.checkTimeToLive(ctx, client)
}

// checkTimeToLive checks that the service deletes expired items.
func (c *tableCheck) checkTimeToLive(ctx context.Context, client describer) error {
	name, isEnabled, err := describeTimeToLive(ctx, client, c.opts)
	const setting = "TimeToLive"
	switch {
	case hasCode(err, "AccessDeniedException"):
		c.addUnsafe("client", "dynamodb:DescribeTimeToLive", "denied",
			"Check cannot tell whether the service deletes expired items")
	case err != nil:
		return err
	case !isEnabled:
		c.addUnsafe(c.opts.tableName(), setting, "DISABLED",
			"expired items stay in the table, and cost money, until you delete them")
	case name != attrRemoveAt:
		c.addUnsafe(c.opts.tableName(), setting, name, "expired items stay in the table: the attribute must be "+attrRemoveAt)
	}
	return nil
}

// checkCalls makes the calls of a claim with a random operation. Without a record, the calls change nothing.
func (c *tableCheck) checkCalls(ctx context.Context) error {
	if c.isUnready {
		return nil
	}
	operation := uuid.New()
	_, readErr := c.readItem(ctx, operation)
	c.clock.noteReply(time.Now())
	u := newUpdate(operation).requireAttribute(attrOperation).set(attrAttempt, numberValue(1))
	_, updateErr := c.client.UpdateItem(ctx, u.buildInput(c.opts.tableName()), c.callOptions)
	if _, refused := asFailedCondition(updateErr); refused {
		updateErr = nil
	}
	return errors.Join(readErr, updateErr) // the errors name their calls
}

// checkClock checks Skew, and the clock of this machine.
func (c *tableCheck) checkClock(context.Context) error {
	if c.isUnready {
		return nil
	}
	if c.opts.skewOrDefault() < 6*time.Second {
		c.addUnsafe("client", "Skew", c.opts.skewOrDefault().String(), "clocks that differ by more than Skew may go unnoticed")
	}
	if !c.clock.hasSeenDate() {
		c.addUnsafe(c.opts.tableName(), "Date", "missing", "the store cannot check the clock of this machine")
	}
	return c.clock.checkDifference()
}
