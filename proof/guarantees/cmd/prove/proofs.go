package main

import (
	"strconv"
	"time"
)

// proof is a command that tries to break promises, and counts its attempts.
type proof struct {
	name       string
	summary    string                   // what the proof tries, for the table
	newCommand func(o options) []string // returns the command for o.repetitions times the usual amounts
	ciArgs     []string                 // additional arguments for CI, which has little time; nil: CI leaves the proof out
	runsBeside bool                     // other proofs run at the same time, because this one hardly needs the processor
}

// goTest returns the newCommand of a package whose tests have the flag -times, with additional arguments.
func goTest(pkg string, args ...string) func(options) []string {
	return func(o options) []string {
		limit := time.Duration(o.repetitions) * 10 * time.Minute
		command := []string{"go", "test", "-json", "-count=1", "-timeout=" + limit.String(), pkg}
		return append(append(command, args...), "-times="+strconv.Itoa(o.repetitions))
	}
}

var allProofs = []proof{
	{
		name: "soak", runsBeside: true,
		summary: "the stores in memory, Redis and PostgreSQL under a small load, with a fault now and then: nothing grows",
		newCommand: func(o options) []string {
			runTime := time.Duration(o.repetitions) * 5 * time.Minute
			soak := []string{"go", "run", "./proof/guarantees/cmd/soak", "-for", runTime.String()}
			if o.writesTable {
				soak = append(soak, "-plot", plotPath)
			}
			return soak
		},
	},
	{
		name: "servers", newCommand: goTest("./proof/guarantees/servers", "-skip=TestPatroni"),
		ciArgs:  []string{"-times=0.1", "-skip=TestPatroni|TestGalera"}, // the last value of a flag counts
		summary: "Redis, PostgreSQL, PgBouncer and the nodes of clusters killed, emptied, replaced, cut off",
	},
	{
		name: "patroni", runsBeside: true,
		summary:    "PostgreSQL under Patroni, behind PgBouncer, that fails over under load; two versions of a service meanwhile",
		newCommand: goTest("./proof/guarantees/servers", "-timeout=1h", "-parallel=3", "-run=TestPatroni"),
	},
	{
		name: "explore", newCommand: goTest("./proof/guarantees/explore"), ciArgs: []string{"-times=0.1"},
		summary: "every order of requests, store calls, faults, crashes and timers, within bounds",
	},
	{
		// One fleet at a time takes no longer than two. On a slow machine, clients of two fleets waited minutes for an answer.
		name: "death", newCommand: goTest("./proof/guarantees/death", "-parallel=1"), ciArgs: []string{"-times=0.03"},
		summary: "servers killed by SIGKILL, at named points and at random",
	},
	{
		name: "steps", newCommand: goTest("./proof/guarantees/steps", "-timeout=1h"), ciArgs: []string{"-times=0.02"},
		summary: "processes killed at random, and at every point, in steps and between rows; slow providers beside a pool of four",
	},
	{
		name: "network", newCommand: goTest("./proof/guarantees/network"),
		summary: "every message between a store and its server lost, held or delayed; owners cut off",
	},
	{
		name: "clocks", newCommand: goTest("./proof/guarantees/clocks"),
		summary: "clocks that jump or differ, and processes that stand still beyond their lease",
	},
	{
		name: "linearizable", newCommand: goTest("./proof/guarantees", "-limit=1h"),
		summary: "recorded histories of the stores in memory, Redis, PostgreSQL (with rows) and DynamoDB, explained by a model",
	},
	{
		name:    "fuzz",
		summary: "random input to whatever decodes or compares bytes",
		newCommand: func(o options) []string {
			fuzzTime := time.Duration(o.repetitions) * 6 * time.Second
			return []string{"go", "run", "./proof/guarantees/cmd/fuzz", "-each", fuzzTime.String()}
		},
	},
	{
		name:    "wire",
		summary: "requests as raw bytes and as frames, and clients that hang up",
		newCommand: func(options) []string {
			return []string{"go", "test", "-json", "-count=1", "./proof/wire"}
		},
	},
	{
		name:    "valkey",
		summary: "all tests of the Redis store, histories and faults included, on Valkey",
		newCommand: func(options) []string {
			return []string{
				"env", "IDEMPOTENCY_REDIS=valkey-server", "go", "test", "-json", "-count=1", "-timeout=20m", "-run=Redis",
				".", "./proof/redistest", "./proof/guarantees", "./proof/guarantees/network", "./proof/guarantees/servers",
			}
		},
	},
	{
		name:    "dynamodb",
		summary: "the suites on an emulated DynamoDB, in each way to reach it, and processes killed at random",
		newCommand: func(o options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=" + (time.Duration(o.repetitions) * 20 * time.Minute).String(),
				"./stores/dynamodbstore", "-thorough", "-deaths=" + strconv.Itoa(1000*o.repetitions),
			}
		},
	},
	{
		name:    "settings",
		summary: "every step of the stores in PostgreSQL and MariaDB, with each value of each setting of a session",
		newCommand: func(options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=30m", "-run=TestEverySetting|TestEncodings",
				"./stores/pgxstore", "./stores/mysqlstore", "-thorough",
			}
		},
	},
	{
		name:    "proxy",
		summary: "the proxy between clients and a service in Python killed at random, and started again",
		newCommand: func(o options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=" + (time.Duration(o.repetitions) * 20 * time.Minute).String(),
				"-run=TestProxyIsKilled", "./cmd/idempotency-proxy", "-deaths=" + strconv.Itoa(2000*o.repetitions),
			}
		},
	},
	{
		name:    "tools",
		summary: "servers of MCP tools killed at every point of a call, over HTTP and over stdio, with two servers on one store",
		newCommand: func(o options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=" + (time.Duration(o.repetitions) * 20 * time.Minute).String(),
				"-parallel=4", "-run=TestServersOfToolsAreKilled", "./adapters/mcpidempotency",
				"-deaths=" + strconv.Itoa(400*o.repetitions),
			}
		},
	},
	{
		// Six services at a time, because a busy machine renews leases late, and then an outcome may be unknown.
		name: "probe", newCommand: goTest("./proof/guarantees/probe", "-parallel=6"), ciArgs: []string{"-times=0.02"},
		summary: "the probe against services that are correct: on each store, by hand, behind the proxy, the checkout",
	},
	{
		name:       "mutants",
		summary:    "bugs put into the library, each of which a test must find",
		newCommand: func(options) []string { return []string{"go", "run", "./proof/mutants"} },
	},
	{
		name:       "tests",
		summary:    "all other tests of all modules, with the race detector",
		newCommand: func(options) []string { return []string{"go", "test", "-race", "-shuffle=on", "-json", "work"} },
	},
}
