package webhook

// UnverifiedLimit returns how many bytes of unverified bodies rc holds at most.
func (rc *Receiver) UnverifiedLimit() int64 { return rc.unverifiedBudget.Total }
