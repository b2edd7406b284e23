// Command durable compares the stores that keep their records on a disk, and writes a table of them.
//
//	go run ./proof/benchmark/cmd/durable [-rounds n] [-out file]
//
// It starts private servers, so redis-server, PostgreSQL and MariaDB have to be installed. Nothing else should run on the
// machine: the page says how busy it was. A run takes some minutes.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// columns are what is measured of each store, and with how many requests at a time.
var columns = []struct {
	title    string
	scenario bm.Scenario
	requests int
}{
	{"first, 1 worker", bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 1}, 200},
	{"first, 16 workers", bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 16}, 1600},
	{"first, 64 workers", bm.Scenario{Path: bm.First, Work: bm.Small, Workers: 64}, 3200},
	{"replay, 16 workers", bm.Scenario{Path: bm.Replay, Work: bm.Small, Workers: 16}, 4800},
}

func main() {
	log.SetFlags(log.Ltime)
	rounds := flag.Int("rounds", 3, "rounds of each comparison")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results", "durable.md"), "file of the table")
	flag.Parse()
	page, err := measure(*rounds)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, []byte(page), 0o644); err != nil {
		log.Fatal(err)
	}
}

// measure returns the page.
func measure(rounds int) (string, error) {
	disk, err := bm.OpenDisk()
	if err != nil {
		return "", err
	}
	defer disk.Close()
	busy := load()
	var fsyncs []time.Duration
	rates := make([][]string, len(disk.Subjects))
	for _, column := range columns {
		fsync, err := disk.Fsync()
		if err != nil {
			return "", err
		}
		fsyncs = append(fsyncs, fsync)
		log.Printf("%s; an fsync takes %v", column.title, fsync)
		var contenders []bm.Contender
		for _, subject := range disk.Subjects {
			contenders = append(contenders, column.scenario.Contender(nil, subject, column.requests))
		}
		compared, err := bm.Compare(rounds, contenders)
		if err != nil {
			return "", err
		}
		for i := range disk.Subjects {
			rates[i] = append(rates[i], rate(compared.Median(i, bm.Elapsed)))
		}
	}
	return page(disk, rates, rounds, busy, fsyncs), nil
}

func page(disk *bm.Disk, rates [][]string, rounds int, busy string, fsyncs []time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, text, rounds, runtime.NumCPU(), busy, milliseconds(slices.Min(fsyncs)), milliseconds(slices.Max(fsyncs)))
	fmt.Fprint(&b, "| requests a second")
	for _, column := range columns {
		fmt.Fprint(&b, " | ", column.title)
	}
	fmt.Fprintf(&b, " |\n|%s\n", strings.Repeat("---|", 1+len(columns)))
	for i, subject := range disk.Subjects {
		fmt.Fprintf(&b, "| %s | %s |\n", subject.Name, strings.Join(rates[i], " | "))
	}
	return b.String()
}

const text = `# Stores on a disk

This page is written by

    go run ./proof/benchmark/cmd/durable

It compares the stores that keep their records on a disk, side by side. All servers and files are on one file system of one
machine. Every store waits for the disk before it acknowledges a record, except for SQLite with NORMAL: there a loss of power
may forget the last records.

*First* is a first execution, and *replay* a request that gets the stored answer. Each worker sends its next request when it
has an answer. Requests of 256 B go through the middleware, in this process, to a handler that only answers 200 B, or that
writes a row before: in a step by DoTx, or in a transaction of its own with a unique constraint. Beside these stands what one
writes by hand, the key, the row and the answer in one transaction. Each batch checks the answers, and how often the handler
ran. A figure is the median of %d batches, which took turns.

Machine: %d cores, which servers and workers share, with a load average of %s before the run. The disk keeps 4 KiB in %s to
%s ms (fsync: medians of probes in the same run). A slower disk costs those stores most whose steps do not share a wait for it.

`

// load returns how many processes wanted a core in the last minute, or "unknown".
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return cmp.Or(first, "unknown")
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()*1e3) }

// rate is how many operations of that duration happen in a second, with about three digits.
func rate(d time.Duration) string {
	n := time.Second.Nanoseconds() / max(1, d.Nanoseconds())
	for unit := int64(1000); unit >= 10; unit /= 10 {
		if n >= 100*unit {
			n = (n + unit/2) / unit * unit
			break
		}
	}
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%d,%03d", n/1000, n%1000)
}
