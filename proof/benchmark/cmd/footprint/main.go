// Command footprint measures how much room the records of each store take, and writes a table of it.
//
//	go run ./proof/benchmark/cmd/footprint [-records n] [-out file]
//
// It starts private servers, so redis-server, PostgreSQL and MariaDB have to be installed. A run takes some minutes.
// Sizes do not depend on what else runs on the machine.
package main

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/benchmark/internal/kept"
)

// workers is how many requests are under way at once.
const workers = 16

// answers are the sizes of the answers that are stored, in bytes.
var answers = []int{200, 4 << 10}

func main() {
	log.SetFlags(log.Ltime)
	records := flag.Int("records", 50_000, "records of each measurement")
	out := flag.String("out", filepath.Join("proof", "benchmark", "results", "footprint.md"), "file of the table")
	flag.Parse()
	page, err := measure(*records)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*out, []byte(page), 0o644); err != nil {
		log.Fatal(err)
	}
}

// mostEmulated is enough where the bytes of each record are counted.
const mostEmulated = 500

// measure returns the page.
func measure(records int) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, text, humanize.Comma(int64(records)), min(records, mostEmulated), runtime.GOARCH)
	for _, s := range kept.All {
		records := records
		if s.Emulated {
			records = min(records, mostEmulated)
		}
		name := s.Name
		if s.Room != name {
			name += ": " + s.Room
		}
		fmt.Fprintf(&b, "| %s |", name)
		for _, answer := range answers {
			used, err := footprint(s, records, answer)
			if err != nil {
				return "", fmt.Errorf("%s: %w", s.Name, err)
			}
			each := float64(used) / float64(records)
			log.Printf("%s, answers of %d B: %.0f B a record", s.Name, answer, each)
			fmt.Fprintf(&b, " %s | %.2f GB |", humanize.Comma(int64(each+0.5)), each/1000) // a million times each, in 1e9 bytes
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// footprint returns how many bytes the store takes for records with answers of some size.
func footprint(s kept.Subject, records, answer int) (int64, error) {
	target, err := s.Open(2 * workers)
	if err != nil {
		return 0, err
	}
	defer target.Close()
	before, err := target.Size()
	if err != nil {
		return 0, err
	}
	if err := fill(target.Store, records, answer); err != nil {
		return 0, err
	}
	after, err := target.Size()
	return after - before, err
}

// fill executes requests with a key each, and verifies by a retry of the first and the last one that they are kept.
func fill(store idempotency.Store, records, answer int) error {
	body := make([]byte, answer) // no database can compress it
	_, _ = rand.Read(body)
	user := func(r *http.Request) (string, error) { return r.Header.Get("User"), nil }
	idem, err := idempotency.New(store, user, idempotency.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	handler := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/payments/"+uuid.NewString())
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}))
	keys := make(chan string)
	var lost sync.Map
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for key := range keys {
				w := send(handler, key)
				for w.Header().Get("Retry-After") != "" { // the disk is busy; a retry is safe
					w = send(handler, key)
				}
				if w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "" {
					lost.Store(key, w.Body.String())
				}
			}
		})
	}
	var ends []string
	for i := range records {
		key := uuid.NewString()
		if i == 0 || i == records-1 {
			ends = append(ends, key)
		}
		keys <- key
	}
	close(keys)
	all.Wait()
	lost.Range(func(key, answer any) bool {
		err = fmt.Errorf("key %s: %s", key, answer)
		return false
	})
	for _, key := range ends {
		if send(handler, key).Header().Get("Idempotent-Replayed") != "true" {
			err = errors.Join(err, errors.New("a record is not kept"))
		}
	}
	return err
}

func send(handler http.Handler, key string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/v1/payments", strings.NewReader(strings.Repeat("y", 256)))
	r.Header.Set("User", "account-"+key[:8])
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

const text = `# How much room records take

This page is written by

    go run ./proof/benchmark/cmd/footprint

It executes %s requests of 256 B (%d in DynamoDB, whose emulator is slow), each with a key of its own, a UUID, and asks the store afterwards how much more it takes
than before. An answer has two fields of header, ` + "`Content-Type` and `Location`" + `, and random bytes that no database can
compress. *Memory* is that of the process or of Redis. *Disk* is what tables, indexes and files take, without the log of the
database. *Bill* is what DynamoDB stores by its rules: names and values of an item, and 100 B. Machine: %s.

| store | a record with an answer of 200 B | a million of them | a record with an answer of 4 KiB | a million of them |
|---|---:|---:|---:|---:|
`
