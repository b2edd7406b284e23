package pgxstore

import (
	"context"
	"fmt"
	"math"
	"time"
)

// mayKeep returns an error if nobody would look for a record on the day on which it expires, or there may be no partition
// for it. No handler is to run then.
func (t *Table) mayKeep(ttl time.Duration) error {
	days := int(math.Ceil(ttl.Hours() / 24))
	if !t.opts.divided() || days <= t.opts.PartitionDays {
		return nil
	}
	return fmt.Errorf("pgxstore: PartitionDays is %d, too few for records that are kept for %s: set it to %d, and call Maintain",
		t.opts.PartitionDays, ttl, days)
}

const callMaintain = "call Maintain every day"

// hasDay returns an error if there is no partition for a record that expires in ttl.
func (t *Table) hasDay(ctx context.Context, q querier, ttl time.Duration) error {
	now, partitions, err := t.partitions(ctx, q)
	if err == nil && !has(partitions, dayOf(now.Add(ttl)), attached) {
		err = t.lacksDay()
	}
	return err
}

func (t *Table) lacksDay() error {
	return t.unready(callMaintain, "table %s has no partition for the day on which the record would expire", t.opts.name(""))
}
