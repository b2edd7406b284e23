// Command prove runs all proofs: programs and tests that try to break the promises of this repository. It prints what each
// has done.
//
//	go run ./proof/guarantees/cmd/prove            # all, at least once
//	go run ./proof/guarantees/cmd/prove -times 20  # twenty times as much of what can be done more often, for hours
//	go run ./proof/guarantees/cmd/prove -ci        # a part of some: what CI has time for
//	go run ./proof/guarantees/cmd/prove -only death,soak
//	go run ./proof/guarantees/cmd/prove -write     # also writes the counts into proof/guarantees/README.md
//
// Run it within the repository. It fails if a proof fails, and prints the output of that proof.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
)

func main() {
	var opts options
	flag.IntVar(&opts.times, "times", 1, "how many times as much is done as usual")
	flag.BoolVar(&opts.ci, "ci", false, "run what CI has time for: a part of some proofs")
	flag.IntVar(&opts.parallel, "parallel", 1, "how many proofs run at a time")
	flag.StringVar(&opts.only, "only", "", "names of the proofs to run, separated by commas")
	flag.BoolVar(&opts.write, "write", false, "write the counts into proof/guarantees/README.md, unless something fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
}

type options struct {
	times, parallel int
	ci, write       bool
	only            string
}

func run(ctx context.Context, opts options) error {
	if opts.ci && (opts.write || opts.times != 1) {
		return errors.New("-ci has amounts of its own, which are not written down")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	chosen, err := choose(opts)
	if err != nil {
		return err
	}
	results := runAll(ctx, root, chosen, opts)
	fmt.Println()
	fmt.Print(table(results))
	for _, r := range results {
		err = errors.Join(err, r.err)
	}
	if err != nil || !opts.write {
		return err
	}
	return writePage(root, results)
}

// choose returns the proofs that are asked for.
func choose(opts options) (chosen []proof, err error) {
	if opts.only == "" {
		for _, p := range all {
			if !opts.ci || p.ci != nil {
				chosen = append(chosen, p)
			}
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(opts.only, ",") {
		i := slices.IndexFunc(all, func(p proof) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no proof %q", name)
		}
		if opts.ci && all[i].ci == nil {
			return nil, fmt.Errorf("the proof %q is not one of CI", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// runAll runs the proofs, so many at a time, and beside them those that hardly need the processor.
func runAll(ctx context.Context, root string, chosen []proof, o options) (results []*result) {
	var running sync.WaitGroup
	defer running.Wait()
	turns := make(chan struct{}, max(1, o.parallel))
	for _, p := range chosen {
		r := &result{proof: p}
		results = append(results, r)
		if p.beside {
			running.Go(func() { r.run(ctx, root, o) })
			continue
		}
		turns <- struct{}{}
		running.Go(func() {
			r.run(ctx, root, o)
			<-turns
		})
	}
	return results
}

// findRoot returns the directory of the workspace.
func findRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOWORK").Output()
	file := strings.TrimSpace(string(out))
	if err != nil || file == "" || file == "off" {
		return "", errors.New("not within the workspace of the repository")
	}
	return strings.TrimSuffix(file, "go.work"), nil
}
