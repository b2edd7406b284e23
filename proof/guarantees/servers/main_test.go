package servers_test

import (
	"flag"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

// Most of the time servers and clients wait, so that more tests go on at a time than there are processors, unless -parallel
// says otherwise. What go-redis says of servers that are down is of no interest.
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
