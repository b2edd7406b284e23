// Command dashboard draws the Grafana dashboard of otelidempotency as one SVG, without Grafana. The command runs a shop
// under load on a private Redis, which pauses once and crashes once. A private Prometheus scrapes the shop, and the command
// draws the numbers that Prometheus returns for each panel.
//
//	go run ./examples/telemetry/dashboard -o docs/dashboard.svg
//
// The command needs the programs redis-server and prometheus.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/telemetry/board"
	"github.com/idempotency-go/idempotency/examples/telemetry/traffic"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

const (
	monitoringDir = "adapters/otelidempotency/monitoring/"
	job           = "shop"
)

func main() {
	duration := flag.Duration("for", 2*time.Minute, "how long the shop is under load")
	output := flag.String("o", "dashboard.svg", "the file to draw into")
	flag.Parse()
	panels, err := board.LoadPanels(monitoringDir + "grafana.json")
	demo.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), *duration+time.Minute)
	defer cancel()

	server, err := servertest.StartRedis()
	demo.Check(err)
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	redis.SetLogger(discardLogger{})
	defer client.Close()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	run, err := traffic.Open(traffic.Scenario{
		Store: idempotency.NewRedisStore(client, idempotency.RedisOptions{}),
		Options: idempotency.Options{
			Lease: 2 * time.Second, StoreTimeout: 300 * time.Millisecond, Wait: 100 * time.Millisecond,
		},
	}, noop.NewTracerProvider())
	demo.Check(err)
	rules, err := os.ReadFile(monitoringDir + "alerts.yml")
	demo.Check(err)
	scraper, err := servertest.StartPrometheus(map[string]string{
		"prometheus.yml": board.ScrapeConfig(map[string]string{job: run.Shop.Addr}, time.Second), "alerts.yml": string(rules),
	})
	demo.Check(err)
	defer scraper.Close()
	prometheus, err := board.Connect(scraper.Addr())
	demo.Check(err)

	begin, err := prometheus.AwaitScrape(ctx, job, time.Now())
	demo.Check(err)
	load := traffic.LoadTest{Duration: *duration, Clients: 6, Events: []traffic.Event{
		{At: .25, Do: server.Pause},
		{At: .32, Do: func() error { server.Resume(); return nil }},
		{At: .55, Do: func() error { return run.LoseLeases(ctx, 5) }},
		{At: .75, Do: server.Restart},
	}}
	demo.Check(load.Play(ctx, run))
	end, err := prometheus.AwaitScrape(ctx, job, time.Now())
	demo.Check(err)
	drawn, err := queryPanels(ctx, prometheus, panels, begin, end)
	demo.Check(err)
	demo.Check(os.WriteFile(*output, drawPanels(drawn), 0o644))

	ledger := run.Ledger()
	fmt.Println("clients have seen", ledger.Requests)
	fmt.Printf("requests: %d, shown by the dashboard: %.0f\n", ledger.Sum(), drawn[0].total)
	if math.Round(drawn[0].total) != float64(ledger.Sum()) {
		log.Fatal("this is broken")
	}
	demo.Check(run.Shop.Close(ctx))
}

// discardLogger drops the messages of the Redis client, because the command breaks connections on purpose.
type discardLogger struct{}

func (discardLogger) Printf(context.Context, string, ...any) {}
