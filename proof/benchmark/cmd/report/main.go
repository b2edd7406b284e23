// Command report measures what the library costs, and writes it beside the limits.
//
//	go run ./proof/benchmark/cmd/report [-quick] [-only expression] [-rounds n] [-out directory]
//
// It starts private servers, so redis-server and PostgreSQL have to be installed; valkey-server need not be. Nothing
// else should run on the machine: a full run takes about four minutes. It writes README.md into the directory, and the plot
// of it.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	log.SetFlags(log.Ltime)
	quick := flag.Bool("quick", false, "few rounds and few records: print a first impression, and write nothing")
	only := flag.String("only", "", "print the limits that match this regular expression, and write nothing")
	rounds := flag.Int("rounds", 0, "rounds of each comparison (default 21, or 3 with -quick)")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results"), "directory of the report")
	flag.Parse()
	expression, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}

	records, atLeast := 1_000_000, 21
	if *quick {
		records, atLeast = 100_000, 3
	}
	r, err := measure(expression, cmp.Or(*rounds, atLeast), records)
	if err != nil {
		log.Fatal(err)
	}
	report := r.document()
	if *quick || *only != "" {
		fmt.Print(report)
		return
	}
	for name, content := range map[string]string{"README.md": report, plotName: r.plot()} {
		if err := os.WriteFile(filepath.Join(*out, name), []byte(content), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
