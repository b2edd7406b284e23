// Consumer reads a Redis stream with a consumer group, from the Redis at REDIS_ADDR or, if the variable is not set, from an
// embedded server. The worker is a child process that is killed twice at the worst moments, and started again. Each message
// takes effect once.
//
// A stream delivers each message at least once. After the second kill, a message is recorded but not acknowledged, so the
// worker answers it from the record. After the first kill, the effect of a message exists but is not recorded. The worker
// executes this message again, because no lease can prevent that. But the second attempt has the same operation ID, and the ID
// is a unique key of the effect, so the second attempt finds the effect of the first. The program ends with the line
//
//	20 messages, 22 tries, 21 executions, 20 effects
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

const messages = 20

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if stream := os.Getenv("STREAM"); stream != "" {
		newWorker(stream, os.Getenv("REDIS_ADDR")).consumeStream(ctx)
		return
	}

	addr := os.Getenv("REDIS_ADDR")
	if addr == "" {
		embedded, err := miniredis.Run()
		demo.Check(err)
		defer embedded.Close()
		go advanceClock(ctx, embedded)
		addr = embedded.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	stream := "payments-" + uuid.NewString()
	demo.Check(client.XGroupCreateMkStream(ctx, stream, group, "0").Err())
	for amount := range messages {
		demo.Check(client.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"amount", amount}}).Err())
	}

	runWorker(ctx, addr, stream, haltPoint{place: "effect exists, not recorded", amount: 6})
	runWorker(ctx, addr, stream, haltPoint{place: "recorded, not acknowledged", amount: 13})
	runWorker(ctx, addr, stream, haltPoint{})

	verdict := countResults(ctx, client, stream)
	fmt.Println(verdict)
	if verdict != "20 messages, 22 tries, 21 executions, 20 effects" {
		log.Fatal("this is broken")
	}
}

// advanceClock advances the clock of miniredis, which stands still by itself. Leases and records expire by this clock.
func advanceClock(ctx context.Context, embedded *miniredis.Miniredis) {
	const step = 50 * time.Millisecond
	for tick := time.Tick(step); ctx.Err() == nil; <-tick {
		embedded.FastForward(step)
	}
}

// runWorker runs a worker to its end or, if point is set, kills the worker at point.
func runWorker(ctx context.Context, addr, stream string, point haltPoint) {
	program, err := os.Executable()
	demo.Check(err)
	worker := exec.CommandContext(ctx, program)
	worker.Env = append(os.Environ(), "REDIS_ADDR="+addr, "STREAM="+stream, "HALT="+point.String())
	worker.Stderr = os.Stderr
	output, err := worker.StdoutPipe()
	demo.Check(err)
	demo.Check(worker.Start())

	halted := bufio.NewScanner(output).Scan()
	if halted {
		demo.Check(worker.Process.Kill())
	}
	err = worker.Wait()
	if halted != (point.place != "") || halted != (err != nil) {
		log.Fatalf("this is broken: the worker did not halt at %s: %v", point, err)
	}
	if halted {
		fmt.Println("worker killed at message", point)
	} else {
		fmt.Println("worker came to its end")
	}
}

// countResults returns a summary of the messages and their effects. countResults also removes the keys of the example from
// Redis, except for the records, because records expire.
func countResults(ctx context.Context, client *redis.Client, stream string) string {
	defer client.Del(ctx, stream, effectsKey(stream), stream+":tries", stream+":executions")
	pending, err := client.XPending(ctx, stream, group).Result()
	demo.Check(err)
	tries, err := client.Get(ctx, stream+":tries").Int()
	demo.Check(err)
	executions, err := client.Get(ctx, stream+":executions").Int()
	demo.Check(err)
	ledger, err := client.HVals(ctx, effectsKey(stream)).Result()
	demo.Check(err)
	distinct := make(map[string]bool)
	for _, message := range ledger {
		distinct[message] = true
	}
	if pending.Count != 0 || len(distinct) != len(ledger) {
		log.Fatalf("this is broken: %d messages pending, %d effects of %d messages",
			pending.Count, len(ledger), len(distinct))
	}
	return fmt.Sprintf("%d messages, %d tries, %d executions, %d effects", messages, tries, executions, len(ledger))
}
