package testservice

import (
	"flag"
	"runtime/debug"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package, and fails if they leave goroutines behind.
//
// Most tests wait for something: many more of them than processors run at a time. With the race detector there are fewer:
// it makes the machine so slow that real clients and servers would exceed their deadlines.
func Main(m *testing.M, ignored ...goleak.Option) {
	atATime := "16"
	if UnderRace() {
		atATime = "4"
	}
	if err := flag.Set("test.parallel", atATime); err != nil {
		panic(err)
	}
	// A pool of go-redis that is closed while a server cannot be reached sleeps a second more.
	dial := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	goleak.VerifyTestMain(m, append(ignored, dial)...)
}

// UnderRace reports whether the race detector watches this program.
func UnderRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
