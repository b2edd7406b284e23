package servers_test

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// More tests than processors run at a time, unless -parallel sets another number, because servers and clients wait most of the
// time. The log of go-redis is disabled, because the messages are about stopped servers.
func TestMain(m *testing.M) {
	parallel := "4"
	flag.Parse()
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			parallel = f.Value.String()
		}
	})
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	logging.Disable()
	os.Exit(m.Run())
}
