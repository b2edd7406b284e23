package death

import "time"

// Point is a place in the course of a request at which a server can be told to kill itself.
type Point string

// The points, in the order in which a request comes by.
const (
	Reading        Point = "reading the body" // half of it
	Claiming       Point = "before the claim"
	Claimed        Point = "after the claim"
	BeforeEffect   Point = "before the effect"          // the provider has charged
	RenewingBefore Point = "renewing before the effect" // the lease, which was not renewed yet
	InTransaction  Point = "in the transaction"         // that has the effect, and is not committed yet
	AfterEffect    Point = "after the effect"
	RenewedAfter   Point = "renewed after the effect" // the lease, which was renewed
	Completing     Point = "before completion"
	Completed      Point = "after completion"
	Answering      Point = "before the answer"
	HalfAnswered   Point = "half of the answer"
	Answered       Point = "after the answer" // the client has all of it
	Replaying      Point = "before the replay"
	HalfReplayed   Point = "half of the replay"
	Replayed       Point = "after the replay" // the client has all of it
	AtRandom       Point = "at random"        // after the time in HeaderAfter, if the request is not over by then
)

// The fields of a request that wants the server to die, and of an answer.
const (
	HeaderDie        = "Die"        // names the point
	HeaderAfter      = "Die-After"  // is a duration, for AtRandom
	HeaderUnharmed   = "Unharmed"   // delays every death until this request is answered
	HeaderUnrecorded = "Unrecorded" // says that the attempt was not recorded in time: it has outlived its lease, say
)

// Lease is how long a key stays blocked by a server that has died.
const Lease = 400 * time.Millisecond

// The files that a server inherits.
const (
	ListenerFD = 3 // what it listens on: connections wait there while one server dies and the next one starts
	LedgerFD   = 4 // has a line for every effect outside of the database
)

// Config is what a server is told, in an environment variable by the same name.
type Config struct {
	Store       string // "postgres" or "redis"
	Rows        bool   // the effect is a row, which a step in a transaction writes
	Refuse      bool   // what is abandoned, instead of doing it again
	Postgres    string // the URL
	Redis       string // the address
	Password    string // of Redis
	Connections int32  // to PostgreSQL, at most
	Reckless    bool   // the row is written outside of the transaction: a bug, which has to be noticed
}

// ConfigVariable is the name of the environment variable. Its value is JSON.
const ConfigVariable = "DEATH_CONFIG"
