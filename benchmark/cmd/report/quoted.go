package main

// quoted are figures of libraries that this module does not import, because the module proxy did not serve them where
// the comparison was made: they were run from snapshots of their sources, on 2026-11-20, with the same works and the
// same method, on another machine (2 vCPU AMD EPYC, Go 1.26.8). Times are relative to the floor of that run.
var quoted = []struct {
	name, version, lacks string
	first, replay        float64
	allocs               string
}{
	{"bright-room/idem", "a543c4e", "no fingerprint", 2.2, 2.7, "16 / 9"},
	{"AnandSundar/go-idempotency", "e8f45fd",
		"the fingerprint is a part of the key: a changed body executes again; no lease or token", 3.9, 5.7, "24 / 20"},
	{"repenguin22/idemlease", "8d95425 (v1.1.0)", "", 4.0, 5.2, "44 / 44"},
	{"faustbrian/go-idempotency", "26ee779", "refuses answers over 700 KiB", 5.2, 12.3, "37 / 37"},
}
