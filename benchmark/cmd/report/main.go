// Command report runs all measurements, prints them, and writes them as Markdown with plots.
//
//	go run ./benchmark/cmd/report [-quick] [-only expression] [-rounds n] [-largest n] [-out directory] [-readme file]
//
// It starts private servers, so redis-server and PostgreSQL have to be installed. Nothing else should run on the
// machine: a full run takes about a quarter of an hour, a quick one two or three minutes. A full run also updates the
// figures in the README.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	log.SetFlags(log.Ltime)
	quick := flag.Bool("quick", false, "measure little: a first impression")
	only := flag.String("only", "", "print the sections that match this regular expression, and write nothing")
	rounds := flag.Int("rounds", 0, "rounds of each comparison (default 40, or 5 with -quick)")
	largest := flag.Int("largest", 0, "records to which the stores grow (default 5000000, or 100000 with -quick)")
	out := flag.String("out", filepath.Join("docs", "benchmarks"), "directory for the report; empty: print it only")
	readme := flag.String("readme", "README.md", "file whose figures a full run updates; empty: none")
	flag.Parse()
	sections, err := regexp.Compile(*only)
	if err != nil {
		log.Fatal(err)
	}

	amount := full
	if *quick {
		amount = little
	}
	amount.rounds = cmp.Or(*rounds, amount.rounds)
	amount.largest = max(10_000, cmp.Or(*largest, amount.largest))
	r, err := measure(context.Background(), amount, sections)
	if err != nil {
		log.Fatal(err)
	}
	doc := r.document(amount, *quick)
	fmt.Print(doc)
	if *out == "" || *only != "" {
		return
	}
	if err := write(*out, doc, r); err != nil {
		log.Fatal(err)
	}
	if *quick || *readme == "" {
		return
	}
	if err := updateSection(*readme, r.section(filepath.ToSlash(*out))); err != nil {
		log.Fatal(err)
	}
}

// write writes the document and its plots.
func write(dir, doc string, r *results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := r.plots()
	files["README.md"] = doc
	files["profiles.md"] = r.profilesDocument()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
