// Command release tests that users can get all modules of the workspace, and tags the modules. .ci/release runs the command:
//
//	.ci/release list            # the directories of the published modules, and of the modules that are never published
//	.ci/release api             # writes the exported names of each published library into the folder api
//	.ci/release set v0.1.0      # sets the version of the published modules in every go.mod
//	.ci/release check [v0.1.0]  # uses each module as a user does; the default is the version in the go.mod files
//	.ci/release tag v0.1.0      # checks the release, and makes the tags; a person pushes the tags
//
// An importer ignores the replace directives of a module, so a go.mod needs both: a replace for development, and a require
// with the released version. "go install" refuses a command with a replace in go.mod. Therefore the tag of a command points
// to a separate commit on top of the released commit, without the replace directives.
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
	if err := runCommand(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func runCommand(ctx context.Context, args []string) error {
	w, err := openWorkspace(".")
	if err != nil {
		return err
	}
	args = append(args, "", "")
	switch name, version := args[0], args[1]; name {
	case "list":
		w.printModules()
		return nil
	case "api":
		return w.writeAPI(ctx)
	case "set":
		return w.setVersion(ctx, version)
	case "check":
		return w.checkRelease(ctx, version)
	case "tag":
		return w.tagRelease(ctx, version)
	}
	return errors.New("usage: release list | api | set VERSION | check [VERSION] | tag VERSION")
}

// runProgram runs a program in dir, with env and the variables of this process, and returns the standard output. The error
// contains the standard error of the program.
func runProgram(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(text)), nil
}
