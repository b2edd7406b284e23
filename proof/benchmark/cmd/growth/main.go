// Command growth measures how the cost of a request grows: with the number of records, with connections, with one key
// that everybody asks for, and with the masters of a Redis Cluster. It writes a page and its plots.
//
//	go run ./proof/benchmark/cmd/growth [-records n] [-out dir]
//
// It starts private servers, so redis-server, PostgreSQL and MariaDB have to be installed. Ten million records of each
// store, one store after the other, take up to 10 GB of memory, 20 GB of disk, and half an hour. Nothing else should run
// on the machine.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/idempotency-go/idempotency/proof/benchmark/internal/kept"
)

func main() {
	log.SetFlags(log.Ltime)
	records := flag.Int("records", 10_000_000, "the most records of a store")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results"), "folder of the page and its plots")
	flag.Parse()
	if err := run(*records, *out); err != nil {
		log.Fatal(err)
	}
}

// each measures the stores that are on a server or in a process of ours, one after the other.
func each[T any](measure func(kept.Subject) ([]T, error)) (all []T, err error) {
	for _, subject := range kept.All {
		if subject.Emulated {
			continue
		}
		measured, err := measure(subject)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", subject.Name, err)
		}
		all = append(all, measured...)
	}
	return all, nil
}

func run(records int, out string) error {
	sizes, err := each(func(s kept.Subject) ([]size, error) { return grow(s, records) })
	if err != nil {
		return err
	}
	connections, err := each(connect)
	if err != nil {
		return err
	}
	hot, err := each(warm)
	if err != nil {
		return err
	}
	masters, err := overMasters()
	if err != nil {
		return err
	}
	files := map[string]string{
		"growth.md":              page(sizes, connections, hot, masters),
		"growth-records.svg":     plotSizes(sizes),
		"growth-connections.svg": plotConnections(connections),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(out, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
