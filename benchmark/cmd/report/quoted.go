package main

// quotedFrom says where the figures of [quoted] are from.
const quotedFrom = "Those marked as quoted are not imported here, because the module proxy did not serve them " +
	"where the comparison was made. They were run from snapshots of their sources with the same works and the same " +
	"method, on 2026-11-20 on another machine (2 vCPU AMD EPYC, Go 1.26.8); ratios are to the floor of that run."

// quoted are figures of libraries that this module does not import.
var quoted = []struct {
	name, version, lacks string
	hashes               bool    // the request, which finds out a key that is used for another one
	first, replay        float64 // time relative to the floor
	largeReplay          float64 // of 1 MiB; zero if it is refused
	allocs, roundTrips   string  // first / replay
}{
	{"bright-room/idem", "a543c4e", "fingerprint, scope, lease, token", false, 2.2, 2.7, 4.5, "16 / 9", "4 / 3"},
	{"AnandSundar/go-idempotency", "e8f45fd", "lease, token; a changed body executes again", true,
		3.9, 5.7, 6.6, "24 / 20", "4 / 3"},
	{"repenguin22/idemlease", "8d95425 (v1.1.0)", "renewal of the lease, headers beyond its list", true,
		4.0, 5.2, 175, "44 / 44", "2 / 1"},
	{"faustbrian/go-idempotency", "26ee779", "renewal of the lease, headers beyond its list, answers over 700 KiB", true,
		5.2, 12.3, 0, "37 / 37", "2 / 1"},
}
