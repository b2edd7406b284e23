// Command prove runs all proofs (programs and tests that try to break the promises of this repository), and prints the counts of
// each proof.
//
//	go run ./proof/guarantees/cmd/prove            # all proofs, with the usual amounts
//	go run ./proof/guarantees/cmd/prove -times 20  # twenty times the amounts, where a proof can be repeated: for hours
//	go run ./proof/guarantees/cmd/prove -ci        # what CI has time for: a part of some proofs
//	go run ./proof/guarantees/cmd/prove -only death,soak
//	go run ./proof/guarantees/cmd/prove -write     # also writes the counts into proof/guarantees/last_run.tsv
//
// Run prove within the repository. prove fails if a proof fails, and prints the output of the failed proof.
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
	flag.IntVar(&opts.repetitions, "times", 1, "how many times as much is done as usual")
	flag.BoolVar(&opts.isCI, "ci", false, "run what CI has time for: a part of some proofs")
	flag.IntVar(&opts.parallelProofs, "parallel", 1, "how many proofs run at a time")
	flag.StringVar(&opts.onlyNames, "only", "", "names of the proofs to run, separated by commas")
	flag.BoolVar(&opts.writesTable, "write", false, "write the counts into proof/guarantees/last_run.tsv, unless something fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := runProofs(ctx, opts); err != nil {
		fmt.Fprintln(os.Stderr, "prove:", err)
		os.Exit(1)
	}
}

type options struct {
	repetitions, parallelProofs int
	isCI, writesTable           bool
	onlyNames                   string
}

// runProofs runs the chosen proofs, prints the table of their results, and writes the table into its file if opts says so.
func runProofs(ctx context.Context, opts options) error {
	if opts.isCI && (opts.writesTable || opts.repetitions != 1) {
		return errors.New("-ci has amounts of its own, which are not written down")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	chosen, err := chooseProofs(opts)
	if err != nil {
		return err
	}
	results := runAll(ctx, root, chosen, opts)
	fmt.Println()
	fmt.Print(formatTable(results))
	for _, r := range results {
		err = errors.Join(err, r.err)
	}
	if err != nil || !opts.writesTable {
		return err
	}
	return writeTable(root, results)
}

// chooseProofs returns the proofs that opts names, and all proofs, or all of CI, if opts names none.
func chooseProofs(opts options) (chosen []proof, err error) {
	if opts.onlyNames == "" {
		for _, p := range allProofs {
			if !opts.isCI || p.ciArgs != nil {
				chosen = append(chosen, p)
			}
		}
		return chosen, nil
	}
	for name := range strings.SplitSeq(opts.onlyNames, ",") {
		i := slices.IndexFunc(allProofs, func(p proof) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no proof %q", name)
		}
		if opts.isCI && allProofs[i].ciArgs == nil {
			return nil, fmt.Errorf("the proof %q is not one of CI", name)
		}
		chosen = append(chosen, allProofs[i])
	}
	return chosen, nil
}

// runAll runs o.parallelProofs proofs at a time, and the proofs with runsBeside in addition.
func runAll(ctx context.Context, root string, chosen []proof, o options) (results []*result) {
	var running sync.WaitGroup
	defer running.Wait()
	turns := make(chan struct{}, max(1, o.parallelProofs))
	for _, p := range chosen {
		r := &result{proof: p}
		results = append(results, r)
		if p.runsBeside {
			running.Go(func() { r.runProof(ctx, root, o) })
			continue
		}
		turns <- struct{}{}
		running.Go(func() {
			r.runProof(ctx, root, o)
			<-turns
		})
	}
	return results
}

// findRoot returns the directory of the go.work file.
func findRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOWORK").Output()
	file := strings.TrimSpace(string(out))
	if err != nil || file == "" || file == "off" {
		return "", errors.New("not within the workspace of the repository")
	}
	return strings.TrimSuffix(file, "go.work"), nil
}
