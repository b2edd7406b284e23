package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// profile is where the processor time of a path goes.
type profile struct {
	subject bm.Subject
	path    bm.Path
	top     string // as pprof prints it
}

func (p profile) title() string { return fmt.Sprintf("%s, %s", p.subject.Name, p.path) }

// profile takes profiles of every path that has a goal. In memory that many operations are enough for one.
func (r *results) profile(b *bm.Backends, operations int) error {
	for _, p := range []struct {
		subject  bm.Subject
		workers  int
		slowdown int // fewer operations are as many samples
	}{
		{bm.Memory, 1, 1}, {bm.Redis, 16, 10}, {bm.RedisPipeline, 64, 10}, {bm.Postgres, 16, 50},
	} {
		for _, path := range []bm.Path{bm.First, bm.Replay} {
			s := bm.Scenario{Path: path, Work: bm.Small, Workers: p.workers, Batch: operations / p.slowdown}
			top, err := top(b, p.subject, s)
			if err != nil {
				return err
			}
			r.profiles = append(r.profiles, profile{p.subject, path, top})
		}
	}
	return nil
}

// harness is what a profile does not show.
const harness = `^(sync\.\(\*WaitGroup\)|main\.|runtime\.main$|.*/benchmark\.)`

// top returns the functions that most of the time of a batch is spent in.
func top(b *bm.Backends, subject bm.Subject, s bm.Scenario) (string, error) {
	dir, err := os.MkdirTemp("", "profile")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "cpu.out")
	file, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := s.Profile(b, subject, file); err != nil {
		return "", err
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-cum", "-nodecount=40", "-hide="+harness, name).Output()
	_, table, _ := strings.Cut(string(out), "Showing nodes")
	return "Showing nodes" + table, err
}

// profilesDocument returns the profiles as Markdown.
func (r *results) profilesDocument() string {
	d := &document{}
	d.paragraph("# Processor profiles")
	d.paragraph("Written by `go run ./benchmark/cmd/report`, along with the [figures](README.md): for each path the " +
		"functions under which most of the time is spent, requests of 256 B and answers of 200 B. In Redis and " +
		"PostgreSQL the time is that of the process of the service, with 16 workers (with the pipelining client 64). " +
		"To look into one further:")
	d.paragraph("    go test ./benchmark -run '^$' -bench Request/memory/first -cpuprofile cpu.out\n" +
		"    go tool pprof -http : cpu.out")
	for _, p := range r.profiles {
		d.paragraph("## %s", p.title())
		d.paragraph("```\n%s```", p.top)
	}
	return d.String()
}
