// Package redisscript contains the Lua scripts that change a record within Redis, each in one atomic step. Script
// record.lua describes the form of a record. In Go, package recordline reads and writes the same form.
package redisscript

import (
	_ "embed" // for the sources of the scripts

	"github.com/idempotency-go/idempotency/internal/redisconn"
)

//go:embed record.lua
var record string

//go:embed index.lua
var index string

//go:embed counted.lua
var counted string

//go:embed claim.lua
var claim string

//go:embed extend.lua
var extend string

//go:embed swap.lua
var swap string

//go:embed complete.lua
var complete string

//go:embed release.lua
var release string

//go:embed inspected.lua
var inspected string

//go:embed forget.lua
var forget string

//go:embed resolve.lua
var resolve string

//go:embed remaining.lua
var remaining string

//go:embed checkpoint.lua
var checkpoint string

//go:embed checkpoints.lua
var checkpoints string

// These are the scripts of the store. The source of each script describes its arguments. KEYS[1] is the record, and
// the hash of the steps is the last key if the script has the hash. A script without the hash runs on an operation
// without steps, or during the move of a slot, when the steps are out of reach.
var (
	Claim = redisconn.NewScript(record + claim).With(1)
	// ClaimCounted also has the index of the user as a key, so that a Cluster refuses the script.
	ClaimCounted = redisconn.NewScript(record + index + counted + claim).WithRequired(2)

	Extend   = redisconn.NewScript(record + extend)
	Complete = redisconn.NewScript(swap + record + complete)
	Release  = redisconn.NewScript(record + index + release)
	Forget   = redisconn.NewScript(record + index + inspected + forget).With(1)
	Resolve  = redisconn.NewScript(record + index + inspected + resolve).WithRequired(1)

	Remaining = redisconn.NewScript(remaining)

	Checkpoint  = redisconn.NewScript(record + checkpoint).WithRequired(1)
	Checkpoints = redisconn.NewScript(record + checkpoints).WithRequired(1)
)
