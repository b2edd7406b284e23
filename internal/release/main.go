// Command release makes a release, and tests beforehand that users can have it. .ci/release runs it:
//
//	.ci/release list            # the modules, in the order of their tags, and those that are never published
//	.ci/release api             # writes what each published module exports into its folder api/
//	.ci/release set v0.1.0      # has every go.mod require that version of the published modules
//	.ci/release check [v0.1.0]  # does what a user of each module does; by default with the version that go.mod requires
//	.ci/release tag v0.1.0      # checks everything, and makes the tags; it pushes nothing
//	.ci/release binaries v0.1.0 cmd/idempotency dist  # programs for each platform, with their modules and sums, in dist
//	.ci/release size            # what a user links and downloads
//
// The modules are those of go.work. An importer ignores the replace directives of a module, so a go.mod needs both: a
// replace for development, and a require of the version that is released with it. "go install" refuses a command whose
// go.mod has a replace. So a command is tagged at a commit of its own, on top of the released one, which removes them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	file, err := output(ctx, command{}, "go", "env", "GOWORK")
	if err != nil {
		return err
	}
	if file == "" || file == "off" {
		return errors.New("there is no go.work")
	}
	w, err := open(filepath.Dir(file))
	if err != nil {
		return err
	}
	args = append(args, "", "", "", "")
	name, version := args[0], args[1]
	switch name {
	case "list":
		return w.list()
	case "api":
		return w.writeAPI(ctx)
	case "set":
		return w.set(ctx, version)
	case "check":
		return w.check(ctx, version)
	case "tag":
		return w.tag(ctx, version)
	case "binaries":
		return w.binaries(ctx, version, args[2], args[3])
	case "size":
		return w.size(ctx)
	default:
		return errors.New("usage: release list | api | set VERSION | check [VERSION] | tag VERSION | " +
			"binaries VERSION COMMAND DIRECTORY | size")
	}
}
