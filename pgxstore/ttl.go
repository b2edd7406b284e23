package pgxstore

import (
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

// lacksDay says that there is no partition for a record.
func (t *Table) lacksDay() error {
	return t.unready(callMaintain, "table %s has no partition for the day on which the record would expire", t.opts.name(""))
}
