package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPIIsTheListThatIsCheckedIn(t *testing.T) {
	t.Parallel()
	w, err := openWorkspace("../..")
	require.NoError(t, err)
	var files []string
	for _, m := range w.libraries {
		files = append(files, w.listFile(m))
		t.Run(m.dir, func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(w.listFile(m))
			require.NoError(t, err, ".ci/release api writes it")
			have, err := w.listExports(t.Context(), m)
			require.NoError(t, err)
			require.Equal(t, string(want), have, "if the change is meant: .ci/release api")
		})
	}
	lists, err := filepath.Glob(filepath.Join(w.rootDir, listFolder, "*"))
	require.NoError(t, err)
	require.ElementsMatch(t, files, lists, "a list for each published library, and no other")
}

func TestAPIOfAPackage(t *testing.T) {
	t.Parallel()
	const source = `// Package shop has one of each kind.
package shop

import (
	"errors"
	"io"
)

const Most, hidden = 3, 4

type Kind string

const Plain Kind = "plain"

var ErrClosed, errHidden = errors.New("closed"), errors.New("hidden")

type Alias = io.Reader

type base struct{ Size int }

func (b *base) Grow(by int) {}

type Shop struct {
	base
	Name  string ` + "`json:\"name\"`" + `
	owner string
}

func (s Shop) Open(door func(n int) error) (io.Reader, error) { return nil, nil }

func (s *Shop) close() {}

type Store interface {
	io.Closer
	Begin(kind ...Kind)
	sealed()
}

func New[T any](of T) *Shop { return nil }

func helper() {}
`
	want := `package example.com/shop
const Most untyped int = 3
const Plain Kind = "plain"
func New[T any](of T) *Shop
method (*Shop) Grow(by int)
method (Shop) Open(door func(n int) error) (io.Reader, error)
type Alias = io.Reader
type Kind string
type Shop struct
type Shop struct, Name string json:"name"
type Store interface{Begin(kind ...Kind); sealed(); io.Closer}
var ErrClosed error
`
	w := newWorkspace(t, map[string]string{
		"go.mod":           goModRequiring("example.com/shop"),
		"shop.go":          source,
		"internal/own.go":  "package internal\n\nfunc Hidden() {}\n",
		"program/main.go":  "package main\n\nfunc Run() {}\n\nfunc main() {}\n",
		"shop_test.go":     "package shop\n\nfunc Tested() {}\n",
		"cmd/tool/go.mod":  goModRequiring("example.com/shop/cmd/tool", "example.com/shop v0.1.0"),
		"cmd/tool/main.go": "package main\n\nfunc main() {}\n",
	})
	have, err := w.listExports(t.Context(), w.libraries[0])
	require.NoError(t, err)
	require.Equal(t, want, have)
}
