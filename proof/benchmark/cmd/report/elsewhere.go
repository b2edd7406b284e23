package main

// measuredElsewhere says how the figures of [elsewhere] were made, none of which a run makes.
const measuredElsewhere = "The module proxy does not serve these libraries, so they are no dependency of this " +
	"module, and no run measures them. They ran from snapshots of their sources with the same work on 2026-11-20, on " +
	"another machine (2 vCPU AMD EPYC, Go 1.26.8, Redis 7.0.15), in batches that took turns with the least. Times are " +
	"relative to the least in memory of that run, which sent an answer before it was stored."

// elsewhere are figures of a first execution / a replay.
var elsewhere = [][]string{
	{"bright-room/idem a543c4e", "2.2", "2.7", "4.5", "16 / 9", "4 / 3", "fingerprint, scope, lease, token"},
	{"AnandSundar/go-idempotency e8f45fd", "3.9", "5.7", "6.6", "24 / 20", "4 / 3",
		"lease, token; a changed body executes again"},
	{"repenguin22/idemlease v1.1.0", "4", "5.2", "175", "44 / 44", "2 / 1",
		"renewal of the lease, headers beyond its list"},
	{"faustbrian/go-idempotency 26ee779", "5.2", "12.3", "refused", "37 / 37", "2 / 1",
		"renewal of the lease, headers beyond its list, answers over 700 KiB"},
}

// idemleaseInRedis compares the only one of them that has a lease and a fingerprint, and uses go-redis.
const idemleaseInRedis = "On Redis, repenguin22/idemlease v1.1.0 took 1.10 to 1.20 times the processor time of the " +
	"least for a first execution and 1.5 to 1.7 times for a replay: client and server together, 16 workers, seven runs; " +
	"on Valkey 8.1 1.14 times for a first execution. On 2026-11-22 it ran in turns with this library, from a snapshot of " +
	"its sources (8d95425), 6,000 requests a batch, 11 rounds: 1.39 times the least against 1.20 for a first execution " +
	"on Redis 7.0, 1.37 against 1.00 on Valkey 8.1; 2.4 against 1.8 and 1.6 for a replay. The least of those runs is not " +
	"that of this report. On 2026-11-25 it ran over HTTP as above, in turns with this library, 11 rounds, with the fields of " +
	"the answer in its list: 1.17 times the least against 1.13 for a first execution in memory, and 1.11 against 1.05 for a " +
	"replay; on Redis 1.11 against 1.13, and 1.25 against 1.16."
