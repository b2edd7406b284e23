// Package redisscript has what Redis itself does with a record, in one atomic step each. The form of a record is in
// record.lua. In Go, store_redis.go of the root knows it.
package redisscript

import (
	_ "embed" // the scripts

	"github.com/idempotency-go/idempotency/internal/redisconn"
)

//go:embed record.lua
var record string

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

// The scripts of the store. Each says in its source what its arguments are. KEYS[1] is the record. The last of the others
// is that of the steps; without it, there are none, or they are out of reach for a while.
var (
	Claim    = redisconn.NewScript(record + claim).With(1)
	Extend   = redisconn.NewScript(record + extend)
	Complete = redisconn.NewScript(swap + record + complete)
	Release  = redisconn.NewScript(record + release)
	Forget   = redisconn.NewScript(record + inspected + forget).With(1)
	Resolve  = redisconn.NewScript(record + inspected + resolve).WithRequired(1)

	Remaining = redisconn.NewScript(remaining)

	Checkpoint  = redisconn.NewScript(record + checkpoint).WithRequired(1)
	Checkpoints = redisconn.NewScript(record + checkpoints).WithRequired(1)
)
