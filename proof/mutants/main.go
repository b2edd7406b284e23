// Command mutants shows that the tests can fail. It puts one bug at a time into the library, and runs the test that must
// notice it. The files of the repository stay as they are: the compiler reads a changed copy in place of one of them.
//
//	go run ./proof/mutants                      # all, which takes some minutes
//	go run ./proof/mutants -only redis-no-fence # one, or several with commas
//
// Before that it runs the same tests on the unchanged library: they must pass, and none may be skipped. It fails if a mutant
// survives or does not compile, or if its file does not have the text that it replaces exactly once.
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
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	if err := applicable(root, chosen); err != nil {
		return err
	}
	began := time.Now()
	if err := baseline(ctx, root, chosen); err != nil {
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

// choose returns the mutants with these names, or all.
func choose(only string) ([]mutant, error) {
	if only == "" {
		return all, nil
	}
	var chosen []mutant
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutant %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// applicable reports every mutant whose text is not there, before the first one runs.
func applicable(root string, mutants []mutant) error {
	var faults []error
	for _, m := range mutants {
		_, err := m.mutated(root)
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// killAll runs every mutant, some at a time, and returns what has not been killed.
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
			err := m.kill(ctx, root)
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

// findRoot returns the directory of the workspace.
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
