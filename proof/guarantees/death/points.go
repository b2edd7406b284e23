package death

import "time"

// Point is a place in the course of a request at which a request can make its server kill itself.
type Point string

// The points, in the order in which a request reaches them.
const (
	Reading        Point = "reading the body" // the server has read a part of the body
	Claiming       Point = "before the claim"
	Claimed        Point = "after the claim"
	BeforeEffect   Point = "before the effect"          // the provider has charged
	RenewingBefore Point = "renewing before the effect" // before the first renewal of the lease
	InTransaction  Point = "in the transaction"         // after the effect, before the commit
	AfterEffect    Point = "after the effect"
	RenewedAfter   Point = "renewed after the effect" // after a renewal of the lease
	Completing     Point = "before completion"
	Completed      Point = "after completion"
	Answering      Point = "before the answer"
	HalfAnswered   Point = "half of the answer"
	Answered       Point = "after the answer" // the client has the whole answer
	Replaying      Point = "before the replay"
	HalfReplayed   Point = "half of the replay"
	Replayed       Point = "after the replay" // the client has the whole replay
	AtRandom       Point = "at random"        // after the time in HeaderAfter, unless the request has ended before
)

// The header fields of a request that kills its server, and of an answer.
const (
	HeaderDie        = "Die"        // names the point
	HeaderAfter      = "Die-After"  // has a duration, for AtRandom
	HeaderUnharmed   = "Unharmed"   // delays every death until this request is answered
	HeaderUnrecorded = "Unrecorded" // marks an answer that was not recorded, for example because the attempt outlived its lease
)

// Lease is the lease of the servers. A dead server blocks a key until its lease ends.
const Lease = 400 * time.Millisecond

// The files that a server inherits.
const (
	ListenerFD = 3 // the listener: connections wait in its queue while a server dies and the next server starts
	LedgerFD   = 4 // the file with a line for every effect outside of the database
)

// Config configures a server, by the environment variable ConfigVariable.
type Config struct {
	Store       string // "postgres" or "redis"
	Rows        bool   // a step in a transaction writes the effect as a row
	Refuse      bool   // refuses abandoned operations instead of executing them again
	Postgres    string // the URL
	Redis       string // the address
	Password    string // of Redis
	Connections int32  // the maximum, to PostgreSQL
	Reckless    bool   // writes the row outside of the transaction: a bug that the tests must notice
}

// ConfigVariable is the environment variable with the Config of a server, as JSON.
const ConfigVariable = "DEATH_CONFIG"
