// Command mutants shows that the tests of the library can fail. The command puts one bug at a time into the library, and
// runs the test that must notice the bug. The files of the repository stay unchanged, because the compiler reads a
// changed copy in place of the file.
//
//	go run ./proof/mutants                      # all mutants, which takes some minutes
//	go run ./proof/mutants -only redis-no-fence # one mutant, or several separated by commas
//
// First, the command runs the same tests on the unchanged library, where every test must run and pass. The command fails
// if a mutant survives or does not compile, or unless the file has the replaced text exactly once.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	only := flag.String("only", "", "names of the mutants to run, separated by commas")
	parallel := flag.Int("parallel", 2, "how many mutants run at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string, parallel int) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	chosen, err := chooseMutants(only)
	if err != nil {
		return err
	}
	if err := checkApplicable(root, chosen); err != nil {
		return err
	}
	began := time.Now()
	if err := checkBaseline(ctx, root, chosen); err != nil {
		return err
	}
	fmt.Printf("the tests pass without a mutant, in %.0f s\n", time.Since(began).Seconds())
	if err := killAll(ctx, root, chosen, max(1, parallel)); err != nil {
		return err
	}
	fmt.Printf("%d mutants, all killed, in %.0f s\n", len(chosen), time.Since(began).Seconds())
	fmt.Println("count mutants killed", len(chosen))
	return nil
}

// chooseMutants returns the mutants that only names, or all mutants if only is empty.
func chooseMutants(only string) ([]mutant, error) {
	if only == "" {
		return allMutants, nil
	}
	var chosen []mutant
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(allMutants, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		chosen = append(chosen, allMutants[i])
	}
	return chosen, nil
}

// checkApplicable returns an error for every mutant whose file lacks the replaced text, before the first mutant runs.
func checkApplicable(root string, mutants []mutant) error {
	var faults []error
	for _, m := range mutants {
		_, err := m.applyBug(root)
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// killAll runs every mutant, up to parallel at a time, and returns the errors of the surviving mutants.
func killAll(ctx context.Context, root string, mutants []mutant, parallel int) error {
	var (
		mu     sync.Mutex
		group  sync.WaitGroup
		done   int
		faults []error
	)
	slots := make(chan struct{}, parallel)
	for _, m := range mutants {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			err := m.requireKilled(ctx, root)
			mu.Lock()
			defer mu.Unlock()
			done++
			verdict := "killed"
			if err != nil {
				verdict = "ALIVE"
				faults = append(faults, fmt.Errorf("%s: %w", m.name, err))
			}
			fmt.Printf("%2d/%d  %-6s  %4.1f s  %-32s  %s\n", done, len(mutants), verdict, time.Since(began).Seconds(), m.name, m.test)
		})
	}
	group.Wait()
	return errors.Join(faults...)
}

// findRoot returns the directory that has the file go.work: the working directory, or a directory above.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.work in this directory or above it")
		}
		dir = parent
	}
}
