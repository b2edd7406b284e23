package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed testdata/size
var programs embed.FS

// sizes are programs in testdata/size, with the modules that they need beside net/http.
var sizes = []struct {
	program, says string
	needs         []string
}{
	{"bare", "net/http alone", nil},
	{"memory", "`NewMemoryStore`", []string{""}},
	{"redis", "`NewRedisStore`", []string{""}},
	{"pgxstore", "`pgxstore.New`", []string{"", "/pgxstore"}},
	{"sqlitestore", "`sqlitestore.Open`", []string{"", "/sqlitestore"}},
	{"dynamodbstore", "`dynamodbstore.New`", []string{"", "/dynamodbstore"}},
}

// size prints what users add to a program of theirs, as a table for the documentation.
func (w *workspace) size(ctx context.Context) error {
	version, err := w.required()
	if err != nil {
		return err
	}
	s, err := w.stage(ctx, version)
	if err != nil {
		return err
	}
	defer s.close()
	fmt.Println("| program with | MiB | MiB without symbols | modules linked | lines of go.sum |")
	fmt.Println("|---|---:|---:|---:|---:|")
	for _, of := range sizes {
		row, err := s.measure(ctx, of.program, of.needs)
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %s |\n", of.says, row)
	}
	return nil
}

func (s *stage) measure(ctx context.Context, program string, needs []string) (string, error) {
	text, err := programs.ReadFile("testdata/size/" + program + ".go")
	if err != nil {
		return "", err
	}
	var uses []apiPackage
	for _, need := range needs {
		uses = append(uses, apiPackage{path: s.root + need})
	}
	dir, err := s.build(ctx, program, string(text), uses)
	if err != nil {
		return "", err
	}
	whole, err := mebibytes(dir)
	if err != nil {
		return "", err
	}
	here := command{dir: dir, env: s.user}
	if _, err := output(ctx, here, "go", "build", "-o", "program", "-ldflags=-s -w", "."); err != nil {
		return "", err
	}
	stripped, err := mebibytes(dir)
	if err != nil {
		return "", err
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s | %s | %d | %d", whole, stripped, len(info.Deps), sumLines(dir)), nil
}

func mebibytes(dir string) (string, error) {
	info, err := os.Stat(filepath.Join(dir, "program"))
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f", float64(info.Size())/(1<<20)), nil
}

// sumLines counts the lines of go.sum. A program that requires nothing has none.
func sumLines(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return 0
	}
	return bytes.Count(text, []byte("\n"))
}
