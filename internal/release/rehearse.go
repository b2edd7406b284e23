package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency/internal/servertest"
)

// rehearsalFile is a program that users could have written. It fails if what it uses does not work.
const rehearsalFile = "internal/release/testdata/rehearsal/main.go"

// databaseVariable tells the program an empty PostgreSQL, if it asks for one.
const databaseVariable = "DATABASE_URL"

// rehearse builds the program of the rehearsal with the staged modules, and runs it.
func (s *stage) rehearse(ctx context.Context) error {
	began := time.Now()
	program, err := os.ReadFile(filepath.Join(s.workspace.dir, rehearsalFile))
	if err != nil {
		return err
	}
	uses, err := s.usedBy(program)
	if err != nil {
		return err
	}
	dir, err := s.build(ctx, "rehearsal", string(program), uses)
	if err != nil {
		return err
	}
	here := command{dir: dir}
	if bytes.Contains(program, []byte(databaseVariable)) {
		db, err := servertest.StartPostgres()
		if err != nil {
			return err
		}
		defer db.Close()
		here.env = []string{databaseVariable + "=" + db.URL()}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := output(ctx, here, filepath.Join(dir, "program")); err != nil {
		return err
	}
	fmt.Printf("rehearsal with %d packages: %.0f s\n", len(uses), time.Since(began).Seconds())
	return nil
}

// usedBy returns those of our packages that a program imports.
func (s *stage) usedBy(program []byte) ([]apiPackage, error) {
	file, err := parser.ParseFile(token.NewFileSet(), rehearsalFile, program, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var uses []apiPackage
	for _, spec := range file.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if name == s.root || strings.HasPrefix(name, s.root+"/") {
			uses = append(uses, apiPackage{path: name})
		}
	}
	if len(uses) == 0 {
		return nil, errors.New(rehearsalFile + " uses none of the modules")
	}
	return uses, nil
}
