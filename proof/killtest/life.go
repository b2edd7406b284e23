package killtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Request is the request of all processes, but for its fingerprint. Its lease is shorter than most processes live.
var Request = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: 200 * time.Millisecond, TTL: time.Hour, TakeOver: true,
}

// Work executes an operation, or has its answer replayed, and says so.
type Work func(key idempotency.Key) error

// Live works with eight goroutines until the process is killed, or the one that has started it has ended. All processes
// work on the keys of the last second, of which there are 200. An error of start, or of the work that it returns, is
// said and becomes a fault.
func Live(start func() (Work, error)) {
	go endWithParent()
	work, err := start()
	fail(err)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				fail(work(keyOfNow()))
			}
		})
	}
	workers.Wait()
}

// SayAnswered says that a key has an answer, which is a word.
func SayAnswered(key idempotency.Key, answer []byte) {
	fmt.Printf("answered %s %s\n", key.ID, answer)
}

func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// fail says an error, and waits for the end.
func fail(err error) {
	if err != nil {
		fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		select {}
	}
}

func keyOfNow() idempotency.Key { return keyAt(time.Now().Add(-rand.N(time.Second))) }

// keyAt returns the key of a time. It changes every five milliseconds.
func keyAt(at time.Time) idempotency.Key { return keyOf(strconv.FormatInt(at.UnixMilli()/5, 10)) }

func keyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}
