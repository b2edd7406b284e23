// Package natsserver starts a nats-server with JetStream in the process of an example.
package natsserver

import (
	"log"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
)

// Start starts a nats-server on a free port of loopback, with its files in a temporary directory. The function stop ends the
// server and removes the directory.
func Start() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "nats")
	demo.Check(err)
	started, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, JetStream: true, StoreDir: dir, SyncAlways: true,
	})
	demo.Check(err)
	started.Start()
	if !started.ReadyForConnections(10 * time.Second) {
		log.Fatal("the nats-server does not start")
	}
	return started.ClientURL(), func() {
		started.Shutdown()
		started.WaitForShutdown()
		demo.Check(os.RemoveAll(dir))
	}
}
