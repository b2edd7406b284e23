package network_test

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Tests wait most of the time: all stores are tried at once, unless -parallel says otherwise.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	redis.SetLogger(silent{})
	os.Exit(m.Run())
}

// silent keeps the client of Redis from saying what the tests do to it.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
