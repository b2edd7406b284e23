package documents_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// What the README has a user type, until a version is released, makes a program that uses the root module and a store. The
// other modules have the versions that the workspace has, so that nothing is downloaded.
func TestReadmeInstallsFromAClone(t *testing.T) {
	t.Parallel()
	_, typed, found := strings.Cut(read(t, "README.md"), "No version has been released yet.")
	if !found {
		t.Skip("a version is released")
	}
	_, typed, _ = strings.Cut(typed, "\n```\n")
	typed, _, _ = strings.Cut(typed, "\n```")
	clone, typed, _ := strings.Cut(typed, "\n")
	require.Equal(t, "git clone https://github.com/idempotency-go/idempotency ../idempotency", clone)
	shop := filepath.Join(t.TempDir(), "shop")
	require.NoError(t, os.Mkdir(shop, 0o700))
	require.NoError(t, os.Symlink(root, filepath.Join(shop, "..", "idempotency")))

	const module = "github.com/idempotency-go/idempotency"
	program := "package main\n\nfunc main() {}\n"
	var edits []string
	for _, replaced := range regexp.MustCompile(`-replace (\S+)=`).FindAllStringSubmatch(typed, -1) {
		program = strings.Replace(program, "\n\n", "\n\nimport _ \""+replaced[1]+"\"\n", 1)
		command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}-require={{.Path}}@{{.Version}}{{end}}{{end}}", replaced[1])
		out, err := command.Output()
		require.NoError(t, err)
		edits = append(edits, strings.Fields(string(out))...)
	}
	require.Contains(t, program, `"`+module+`"`)
	require.Contains(t, program, `"`+module+`/stores/pgxstore"`)
	require.NoError(t, os.WriteFile(filepath.Join(shop, "main.go"), []byte(program), 0o600))
	commands := [][]string{{"go", "mod", "init", "example.com/shop"}, append([]string{"go", "mod", "edit"}, edits...)}
	for line := range strings.Lines(typed) {
		commands = append(commands, strings.Fields(line))
	}
	// The last one would download the tests of all dependencies. This one finds what is imported in the same way.
	require.Equal(t, []string{"go", "mod", "tidy"}, commands[len(commands)-1])
	commands[len(commands)-1] = []string{"go", "list", "-mod=mod", "-deps", "."}
	for _, words := range commands {
		command := exec.CommandContext(t.Context(), words[0], words[1:]...)
		command.Dir, command.Env = shop, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s\n%s", words, out)
	}
}

// The handler of the README is that of a program whose service is killed, and the snippets about stores are examples.
func TestSnippetsAreCompiled(t *testing.T) {
	t.Parallel()
	examples := examplesIn(t, ".") + examplesIn(t, "*") + examplesIn(t, "stores/*") + examplesIn(t, "adapters/*")
	for page, code := range map[string]string{
		"README.md": read(t, "examples/payment/service.go"), "docs/stores.md": examples,
	} {
		snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(read(t, page), -1)
		require.NotEmpty(t, snippets, page)
		for _, snippet := range snippets {
			require.Contains(t, unindented(code), "\n"+unindented(snippet[1]), page)
		}
	}
}

// The README leaves the options to their comments: each field has one, in Options or in RunnerOptions.
func TestEveryOptionIsDescribed(t *testing.T) {
	t.Parallel()
	require.Contains(t, read(t, "README.md"), "(options.go)")
	for _, option := range reflect.VisibleFields(reflect.TypeFor[idempotency.Options]()) {
		require.Regexp(t, `\n\t// `+option.Name+` .*\n(\t//.*\n)*\t`+option.Name+` `, read(t, "options.go"))
	}
}

// The commands of the README name programs, targets and scripts that are there. CI runs them, or their tests do.
func TestReadmeCommandsAreThere(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	programs := regexp.MustCompile(`go run (\./[\w./-]+)`).FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		require.FileExists(t, filepath.Join(program[1], "main.go"))
	}
	for _, target := range regexp.MustCompile("\\bmake (\\w+)[`\n]").FindAllStringSubmatch(readme, -1) {
		require.Contains(t, read(t, "Makefile"), "\n"+target[1]+":")
	}
	for _, script := range regexp.MustCompile("`(\\.ci/\\w+)").FindAllStringSubmatch(readme, -1) {
		require.FileExists(t, script[1])
	}
}
