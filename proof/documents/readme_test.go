package documents_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// The commands of the README, for the time before the first release, make a program that uses the root module and a
// store. The versions of the other modules come from the workspace, so the test downloads nothing.
func TestReadmeInstallsFromAClone(t *testing.T) {
	t.Parallel()
	_, typed, found := strings.Cut(readFile(t, "README.md"), "No version has been released yet.")
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
	// "go mod tidy" would download the tests of all dependencies, so the test lists the imports instead.
	require.Equal(t, []string{"go", "mod", "tidy"}, commands[len(commands)-1])
	commands[len(commands)-1] = []string{"go", "list", "-mod=mod", "-deps", "."}
	for _, words := range commands {
		command := exec.CommandContext(t.Context(), words[0], words[1:]...)
		command.Dir, command.Env = shop, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
		out, err := command.CombinedOutput()
		require.NoError(t, err, "%s\n%s", words, out)
	}
}

// The README's handler comes from a program whose service is killed in a test, and the snippets about stores come
// from examples.
func TestSnippetsAreCompiled(t *testing.T) {
	t.Parallel()
	examples := readExamples(t, ".") + readExamples(t, "*") + readExamples(t, "stores/*") + readExamples(t, "adapters/*")
	for page, code := range map[string]string{
		"README.md": readFile(t, "examples/payment/service.go"), "docs/stores.md": examples,
	} {
		snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readFile(t, page), -1)
		require.NotEmpty(t, snippets, page)
		for _, snippet := range snippets {
			require.Contains(t, removeIndentation(code), "\n"+removeIndentation(snippet[1]), page)
		}
	}
}

// The README leaves the description of options to comments, so each field of Options and RunnerOptions has a
// comment.
func TestEveryOptionIsDescribed(t *testing.T) {
	t.Parallel()
	require.Contains(t, readFile(t, "README.md"), "(options.go)")
	for _, option := range reflect.VisibleFields(reflect.TypeFor[idempotency.Options]()) {
		require.Regexp(t, `\n\t// `+option.Name+` .*\n(\t//.*\n)*\t`+option.Name+` `, readFile(t, "options.go"))
	}
}

// The commands of the README name existing programs, targets and scripts. CI runs these, or their own tests do.
func TestReadmeCommandsAreThere(t *testing.T) {
	t.Parallel()
	readme := readFile(t, "README.md")
	programs := regexp.MustCompile(`go run (\./[\w./-]+)`).FindAllStringSubmatch(readme, -1)
	require.NotEmpty(t, programs)
	for _, program := range programs {
		require.FileExists(t, filepath.Join(program[1], "main.go"))
	}
	for _, target := range regexp.MustCompile("\\bmake (\\w+)[`\n]").FindAllStringSubmatch(readme, -1) {
		require.Contains(t, readFile(t, "Makefile"), "\n"+target[1]+":")
	}
	for _, script := range regexp.MustCompile("`(\\.ci/\\w+)").FindAllStringSubmatch(readme, -1) {
		require.FileExists(t, script[1])
	}
}

// "make cover" writes the badge of the README, and fails if a package is below the figure.
func TestReadmeShowsTheCoverage(t *testing.T) {
	t.Parallel()
	require.Contains(t, readFile(t, "README.md"), "](docs/coverage.svg)")
	written := regexp.MustCompile(`coverage (\d+) %`).FindStringSubmatch(readFile(t, "docs/coverage.svg"))
	require.Len(t, written, 2)
	figure, err := strconv.Atoi(written[1])
	require.NoError(t, err)
	require.GreaterOrEqual(t, figure, 80)
}
