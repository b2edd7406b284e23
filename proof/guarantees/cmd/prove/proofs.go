package main

import (
	"strconv"
	"time"
)

// proof is a command that tries to break promises, and counts what it has tried.
type proof struct {
	name    string
	what    string                   // that is proved
	command func(o options) []string // that does so many times as much as usual
	ci      []string                 // more arguments in CI, which has little time; without any, CI leaves it out
	beside  bool                     // it hardly needs the processor, so others run at the same time
}

// goTest returns the command for tests of a package that know the flag -times, and some that need more arguments.
func goTest(pkg string, args ...string) func(options) []string {
	return func(o options) []string {
		limit := time.Duration(o.times) * 10 * time.Minute
		command := []string{"go", "test", "-json", "-count=1", "-timeout=" + limit.String(), pkg}
		return append(append(command, args...), "-times="+strconv.Itoa(o.times))
	}
}

var all = []proof{
	{
		name: "soak", beside: true,
		what: "the stores in memory, Redis and PostgreSQL under a small load, with a fault now and then: nothing grows",
		command: func(o options) []string {
			soak := []string{"go", "run", "./proof/guarantees/cmd/soak", "-for", (time.Duration(o.times) * 5 * time.Minute).String()}
			if o.write {
				soak = append(soak, "-plot", plot)
			}
			return soak
		},
	},
	{
		name: "servers", command: goTest("./proof/guarantees/servers", "-skip=TestPatroni"),
		ci:   []string{"-times=0.1", "-skip=TestPatroni|TestGalera"}, // of a flag, the last one counts
		what: "Redis, PostgreSQL, PgBouncer and the nodes of clusters killed, emptied, replaced, cut off",
	},
	{
		name: "patroni", beside: true,
		what:    "PostgreSQL under Patroni, behind PgBouncer, that fails over under load; two versions of a service meanwhile",
		command: goTest("./proof/guarantees/servers", "-timeout=1h", "-parallel=3", "-run=TestPatroni"),
	},
	{
		name: "explore", command: goTest("./proof/guarantees/explore"), ci: []string{"-times=0.1"},
		what: "every order of requests, store calls, faults, crashes and timers, within bounds",
	},
	{
		// One fleet at a time takes no longer, and starves nobody: on a slow machine, two had clients without an answer for minutes.
		name: "death", command: goTest("./proof/guarantees/death", "-parallel=1"), ci: []string{"-times=0.03"},
		what: "servers killed by SIGKILL, at named points and at random",
	},
	{
		name: "steps", command: goTest("./proof/guarantees/steps", "-timeout=1h"), ci: []string{"-times=0.02"},
		what: "processes killed at random, and at every point, in steps and between rows; slow providers beside a pool of four",
	},
	{
		name: "network", command: goTest("./proof/guarantees/network"),
		what: "every message between a store and its server lost, held or delayed; owners cut off",
	},
	{
		name: "clocks", command: goTest("./proof/guarantees/clocks"),
		what: "clocks that jump or differ, and processes that stand still beyond their lease",
	},
	{
		name: "linearizable", command: goTest("./proof/guarantees", "-limit=1h"),
		what: "recorded histories of the stores in memory, Redis, PostgreSQL (with rows) and DynamoDB, explained by a model",
	},
	{
		name: "fuzz",
		what: "random input to whatever decodes or compares bytes",
		command: func(o options) []string {
			return []string{"go", "run", "./proof/guarantees/cmd/fuzz", "-each", (time.Duration(o.times) * 6 * time.Second).String()}
		},
	},
	{
		name: "wire",
		what: "requests as raw bytes and as frames, and clients that hang up",
		command: func(options) []string {
			return []string{"go", "test", "-json", "-count=1", "./proof/wire"}
		},
	},
	{
		name: "valkey",
		what: "all tests of the Redis store, histories and faults included, on Valkey",
		command: func(options) []string {
			return []string{
				"env", "IDEMPOTENCY_REDIS=valkey-server", "go", "test", "-json", "-count=1", "-timeout=20m", "-run=Redis",
				".", "./proof/redistest", "./proof/guarantees", "./proof/guarantees/network", "./proof/guarantees/servers",
			}
		},
	},
	{
		name: "dynamodb",
		what: "the suites on an emulated DynamoDB, in each way to reach it, and processes killed at random",
		command: func(o options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=" + (time.Duration(o.times) * 20 * time.Minute).String(),
				"./stores/dynamodbstore", "-thorough", "-deaths=" + strconv.Itoa(1000*o.times),
			}
		},
	},
	{
		name: "settings",
		what: "every step of the stores in PostgreSQL and MariaDB, with each value of each setting of a session",
		command: func(options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=30m", "-run=TestEverySetting|TestEncodings",
				"./stores/pgxstore", "./stores/mysqlstore", "-thorough",
			}
		},
	},
	{
		name: "proxy",
		what: "the proxy between clients and a service in Python killed at random, and started again",
		command: func(o options) []string {
			return []string{
				"go", "test", "-json", "-count=1", "-timeout=" + (time.Duration(o.times) * 20 * time.Minute).String(),
				"-run=TestProxyIsKilled", "./cmd/idempotency-proxy", "-deaths=" + strconv.Itoa(2000*o.times),
			}
		},
	},
	{
		name:    "mutants",
		what:    "bugs put into the library, each of which a test must find",
		command: func(options) []string { return []string{"go", "run", "./proof/mutants"} },
	},
	{
		name:    "tests",
		what:    "all other tests of all modules, with the race detector",
		command: func(options) []string { return []string{"go", "test", "-race", "-shuffle=on", "-json", "work"} },
	},
}
