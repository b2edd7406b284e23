// Command steps compares what a step costs with a write by hand that promises as much, on each store, and writes a table.
//
//	go run ./proof/benchmark/cmd/steps [-rounds n] [-out file]
//
// It starts private servers, so redis-server, PostgreSQL and MariaDB have to be installed. Nothing else should run on the
// machine. A run takes about a minute.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

func main() {
	log.SetFlags(log.Ltime)
	rounds := flag.Int("rounds", 15, "rounds of each comparison")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results", "steps.md"), "file of the table")
	flag.Parse()
	page, err := measure(*rounds)
	if err == nil {
		err = os.WriteFile(*out, []byte(page), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// batch is of how many operations the steps are measured at a time, one after the other.
const batch = 400

const head = `# A step, beside a write by hand

Operations have three steps, whose results have 200 bytes each. A write by hand stores as many bytes, in one statement or
script, if the operation has the token of the attempt, and keeps a result that is there already. Processor time of client and
server together: the median of the ratios, with their quartiles, of %d rounds of %d operations. The table is written by
` + "`go run ./proof/benchmark/cmd/steps`" + `.

| store | write by hand | a write | a step | ratio |
|---|---|--:|--:|--:|
`

// measure returns the page.
func measure(rounds int) (string, error) {
	all, end, err := bm.OpenSteppings()
	if err != nil {
		return "", err
	}
	defer end()
	var page strings.Builder
	fmt.Fprintf(&page, head, rounds, batch)
	for _, s := range all {
		compared, err := bm.Compare(rounds, s.Batches(batch))
		if err != nil {
			return "", err
		}
		ratio := compared.Ratio(0, 1, bm.Processor)
		step, write := compared.Median(0, bm.Processor), compared.Median(1, bm.Processor)
		row := fmt.Sprintf("| %s | %s | %.1f µs | %.1f µs | **%.2f** (%.2f-%.2f) |\n", s.Name, s.By,
			float64(write.Nanoseconds())/1000, float64(step.Nanoseconds())/1000, ratio.Median, ratio.Low, ratio.High)
		log.Print(row)
		page.WriteString(row)
	}
	return page.String(), nil
}
