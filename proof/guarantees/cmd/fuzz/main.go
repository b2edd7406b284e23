// Command fuzz runs all fuzz targets of the workspace in turn, and counts the executions of each target.
//
//	go run ./proof/guarantees/cmd/fuzz            # what CI runs: about 90 seconds on two processors
//	go run ./proof/guarantees/cmd/fuzz -each 10m  # the long form
//	go run ./proof/guarantees/cmd/fuzz -only FuzzFields,FuzzResponse -each 1m
//
// Command fuzz prints "count <target> executions <n>" for each target, and fails if a target fails. The testing package saves
// the failing input as a seed, so go test runs this input from then on. The build cache keeps the other interesting inputs, and
// the next run starts from them; "go clean -fuzzcache" deletes them. The seeds in testdata/fuzz were chosen from these inputs
// (see testdata/README.md).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	each := flag.Duration("each", 6*time.Second, "how long each target is run")
	only := flag.String("only", "", "names of the targets to run, separated by commas")
	workers := flag.Int("parallel", min(2, runtime.NumCPU()), "how many processes run a target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runTargets(ctx, *only, budget{*each, *workers}); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// runTargets builds and fuzzes the targets that only names, and returns an error with the names of the failed targets.
// runTargets builds and fuzzes the targets that only names, and returns an error with the names of the failed targets.
func runTargets(ctx context.Context, only string, b budget) error {
	began := time.Now()
	dir, err := os.MkdirTemp("", "fuzz")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	targets, err := buildTargets(ctx, dir)
	if err != nil {
		return err
	}
	if targets, err = chooseTargets(targets, only); err != nil {
		return err
	}
	fmt.Printf("%d targets built in %.0f s\n", len(targets), time.Since(began).Seconds())
	var failed []string
	for i, t := range targets {
		fmt.Printf("%2d/%d %s\n", i+1, len(targets), t)
		executions, err := t.fuzzTarget(ctx, b)
		fmt.Printf("count %s executions %d\n", t.name, executions)
		if err != nil {
			fmt.Println(err)
			failed = append(failed, t.name)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Printf("%d targets in %.0f s\n", len(targets), time.Since(began).Seconds())
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(failed, ", "))
	}
	return nil
}

// chooseTargets returns the targets whose names are in only, a list separated by commas, and all targets if only is empty.
func chooseTargets(targets []target, only string) ([]target, error) {
	if only == "" {
		return targets, nil
	}
	var chosen []target
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(targets, func(t target) bool { return t.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no target %q", name)
		}
		chosen = append(chosen, targets[i])
	}
	return chosen, nil
}
