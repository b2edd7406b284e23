// Command soak runs every store under a small load, with faults. It fails if a store breaks a promise, or if a measured series
// grows.
//
//	go run ./proof/guarantees/cmd/soak -for 8h -plot soak.svg
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/idempotency-go/idempotency/proof/guarantees/soak"
)

func main() {
	opts := soak.Options{Progress: os.Stdout}
	flag.DurationVar(&opts.For, "for", 5*time.Minute, "how long it runs")
	flag.DurationVar(&opts.Faults, "faults", 20*time.Second, "how long it is from one fault to the next")
	flag.IntVar(&opts.Clients, "clients", 3, "how many clients each store has")
	flag.BoolVar(&opts.NoJanitor, "no-janitor", false, "leave expired rows where they are: this must fail")
	plot := flag.String("plot", "", "the file to draw what was measured into, as SVG")
	flag.Parse()
	if err := runSoak(opts, *plot); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runSoak prints the counts and the series of a soak run, and draws the series into the file plot unless plot is empty.
// runSoak prints the counts and the series of a soak run, and draws the series into the file plot unless plot is empty.
func runSoak(opts soak.Options, plot string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	result, err := soak.Run(ctx, opts)
	if err != nil {
		return err
	}
	fmt.Println("count soak requests", result.Requests)
	fmt.Println("count soak payments", result.Payments)
	fmt.Println("count soak payments answered", result.Answered)
	fmt.Println("count soak faults", result.Faults)
	for _, broken := range result.Broken {
		fmt.Println(broken)
	}
	grown := 0
	for _, series := range result.Series {
		fmt.Println(series)
		if series.Grows() {
			grown++
		}
	}
	if plot != "" {
		if err := drawPlot(plot, result.Series); err != nil {
			return err
		}
	}
	if grown+len(result.Broken) > 0 {
		return fmt.Errorf("soak: %d promises were broken, and %d things grow", len(result.Broken), grown)
	}
	return nil
}

// drawPlot writes series to file, as SVG.
// drawPlot writes series to file, as SVG.
func drawPlot(file string, series []soak.Series) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := soak.Plot(out, series); err != nil {
		return err
	}
	return out.Close()
}
