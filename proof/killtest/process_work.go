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

// Request is the claim request of all processes, except for the fingerprint. The lease is shorter than the life of
// most processes.
var Request = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: 200 * time.Millisecond, TTL: time.Hour, TakeOver: true,
}

// Work executes an operation or gets a replay of the answer, and reports the outcome on standard output.
type Work func(key idempotency.Key) error

// RunProcess works with eight goroutines until the process is killed, or until the parent process ends. All processes
// use the 200 keys of the last second. RunProcess reports an error of start or of the work as a line, which becomes a
// fault of the test.
func RunProcess(start func() (Work, error)) {
	go endWithParent()
	work, err := start()
	reportFailure(err)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for {
				reportFailure(work(recentKey()))
			}
		})
	}
	workers.Wait()
}

// SayAnswered reports the answer of key. The answer must be a single word.
func SayAnswered(key idempotency.Key, answer []byte) {
	fmt.Printf("answered %s %s\n", key.ID, answer)
}

// endWithParent ends the process when standard input ends, which the parent process holds open.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// reportFailure reports an error and waits for the end of the process. A nil err has no effect.
func reportFailure(err error) {
	if err != nil {
		fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		select {}
	}
}

func recentKey() idempotency.Key { return keyAt(time.Now().Add(-rand.N(time.Second))) }

// keyAt returns the key of a time. A new key begins every five milliseconds.
func keyAt(at time.Time) idempotency.Key { return keyOf(strconv.FormatInt(at.UnixMilli()/5, 10)) }

func keyOf(id string) idempotency.Key {
	return idempotency.Key{User: "user 42", Endpoint: "POST /payments", ID: id}
}
