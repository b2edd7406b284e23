// Consumer reads payments from a stream of NATS JetStream, which delivers each message at least once. The worker is a child
// process that is killed twice at the worst moments, and started again. Each payment takes effect once. The program runs by
// itself, because it starts a nats-server in its own process.
//
// After the first kill, the effect of a message exists but is not recorded. The worker executes this message again, because no
// lease can prevent that. But the second attempt has the same operation ID, and the ID is a unique key of the effect, so the
// second attempt finds the effect of the first. After the second kill, a message is recorded but not acknowledged, so the
// worker answers the message from the record. One execution fails, and its message is delivered again. One message has the ID
// of another payment, so no delivery can help. The program ends with the line
//
//	21 messages, 24 deliveries, 22 executions, 1 parked, 20 effects
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/natsserver"
)

const payments = 20

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if url := os.Getenv("WORKER_URL"); url != "" {
		newWorker(ctx, connect(url)).consumeStream(ctx)
		return
	}

	url, stop := natsserver.Start()
	defer stop()
	js := connect(url)
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{streamName}})
	demo.Check(err)
	for amount := range payments {
		publish(ctx, js, payment{fmt.Sprint("payment-", amount), amount})
	}
	publish(ctx, js, payment{"payment-2", 4200}) // another payment with an ID that was used

	printed := make(map[string]int)
	runWorker(ctx, url, haltPoint{place: "effect exists, not recorded", amount: 6}, printed)
	runWorker(ctx, url, haltPoint{place: "recorded, not acknowledged", amount: 13}, printed)
	runWorker(ctx, url, haltPoint{}, printed)

	verdict := fmt.Sprintf("%d messages, %d deliveries, %d executions, %d parked, %d effects", payments+1,
		printed["delivery"], printed["execution"], printed["parked"], countEffects(ctx, js))
	fmt.Println(verdict)
	if verdict != "21 messages, 24 deliveries, 22 executions, 1 parked, 20 effects" {
		log.Fatal("this is broken")
	}
}

// connect connects to a nats-server, with the settings that package natskv asks for.
func connect(url string) jetstream.JetStream {
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.PingInterval(5*time.Second))
	demo.Check(err)
	js, err := jetstream.New(conn)
	demo.Check(err)
	return js
}

func publish(ctx context.Context, js jetstream.JetStream, order payment) {
	message, err := json.Marshal(order)
	demo.Check(err)
	_, err = js.Publish(ctx, streamName, message)
	demo.Check(err)
}

// runWorker runs a worker to its end or, if point is set, kills the worker at point. Each line that the worker prints is
// counted in printed.
func runWorker(ctx context.Context, url string, point haltPoint, printed map[string]int) {
	program, err := os.Executable()
	demo.Check(err)
	worker := exec.CommandContext(ctx, program)
	worker.Env = append(os.Environ(), "WORKER_URL="+url, "HALT="+point.String())
	worker.Stderr = os.Stderr
	output, err := worker.StdoutPipe()
	demo.Check(err)
	demo.Check(worker.Start())

	halted := false
	for lines := bufio.NewScanner(output); lines.Scan(); {
		printed[lines.Text()]++
		if lines.Text() == halting {
			halted = true
			demo.Check(worker.Process.Kill())
		}
	}
	err = worker.Wait()
	if halted != (point.place != "") || halted != (err != nil) {
		log.Fatalf("this is broken: the worker did not halt at %s: %v", point, err)
	}
	if halted {
		fmt.Println("worker killed at payment", point)
	} else {
		fmt.Println("worker came to its end")
	}
}

// countEffects returns the number of effects, which must be of different payments.
func countEffects(ctx context.Context, js jetstream.JetStream) int {
	effects, err := js.KeyValue(ctx, effectsBucket)
	demo.Check(err)
	operations, err := effects.Keys(ctx)
	demo.Check(err)
	distinct := make(map[string]bool)
	for _, operation := range operations {
		effect, err := effects.Get(ctx, operation)
		demo.Check(err)
		distinct[string(effect.Value())] = true
	}
	if len(distinct) != len(operations) {
		log.Fatalf("this is broken: %d effects of %d payments", len(operations), len(distinct))
	}
	return len(operations)
}
