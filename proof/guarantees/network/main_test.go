package network_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// All stores are tested at once, because tests wait most of the time. The flag -parallel sets another number.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	redis.SetLogger(silentLogger{})
	os.Exit(m.Run())
}

// silentLogger discards the messages of the client of Redis about the faults of the tests.
type silentLogger struct{}

func (silentLogger) Printf(context.Context, string, ...any) {}
