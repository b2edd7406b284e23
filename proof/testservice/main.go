package testservice

import (
	"flag"
	"runtime/debug"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and fails if the tests leave goroutines behind, except the goroutines of ignored.
//
// Main runs more tests in parallel than the machine has processors, because most tests wait for something. With the
// race detector Main runs fewer tests in parallel, because real clients and servers would exceed their deadlines on the
// slower machine.
func Main(m *testing.M, ignored ...goleak.Option) {
	parallel := "16"
	if UnderRace() {
		parallel = "4"
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	// A pool of go-redis sleeps for another second if a server is unreachable when the pool is closed.
	dial := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	goleak.VerifyTestMain(m, append(ignored, dial)...)
}

// UnderRace reports whether this program was built with the race detector.
func UnderRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
