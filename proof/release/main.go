// Command release tags all modules of the workspace at once, and tests beforehand that users can have them. .ci/release runs it:
//
//	.ci/release list            # the directories of the modules that are published, and of those that never are
//	.ci/release api             # writes what each published library exports into the folder api
//	.ci/release set v0.1.0      # makes every go.mod require that version of the published modules
//	.ci/release check [v0.1.0]  # does what a user of each module does; by default with the version that go.mod requires
//	.ci/release tag v0.1.0      # checks everything, and makes the tags; it pushes nothing
//
// An importer ignores the replace directives of a module, so a go.mod needs both: a replace for development, and a require of
// the version that is released with it. "go install" refuses a command whose go.mod has a replace. So a command is tagged at
// a commit of its own, on top of the released one, which removes them.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	w, err := open(".")
	if err != nil {
		return err
	}
	args = append(args, "", "")
	switch name, version := args[0], args[1]; name {
	case "list":
		w.list()
		return nil
	case "api":
		return w.writeAPI(ctx)
	case "set":
		return w.set(ctx, version)
	case "check":
		return w.check(ctx, version)
	case "tag":
		return w.tag(ctx, version)
	}
	return errors.New("usage: release list | api | set VERSION | check [VERSION] | tag VERSION")
}

// output runs a program in dir, with env beside the variables of this process, and returns what it prints. Its complaints are
// in the error.
func output(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	run := exec.CommandContext(ctx, name, args...)
	run.Dir, run.Env = dir, append(os.Environ(), env...)
	var complaints bytes.Buffer
	run.Stderr = &complaints
	text, err := run.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, complaints.String())
	}
	return strings.TrimSpace(string(text)), nil
}
