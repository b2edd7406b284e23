package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// platforms are those that the commands are published for.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// cyclonedx writes the list of the modules in a program.
const cyclonedx = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// binaries makes what is published of a command, in a new directory: the program for each platform, as
// "CGO_ENABLED=0 go install -trimpath -ldflags='-s -w'" makes it with the same Go on any machine; beside each, the list of its
// modules (CycloneDX); and their sums.
func (w *workspace) binaries(ctx context.Context, version, command, dir string) error {
	s, m, err := w.stageCommand(ctx, version, command)
	if err != nil {
		return err
	}
	defer s.close()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	for _, platform := range platforms {
		file, err := s.compile(ctx, m, platform, dir)
		if err != nil {
			return err
		}
		if _, err := output(ctx, outside(dir), "go", "run", cyclonedx, "bin", "-json", "-noserial", "-output", file+".cdx.json", file); err != nil {
			return err
		}
		fmt.Println(filepath.Base(file))
	}
	return writeSums(dir)
}

// outside runs a tool outside of every module.
func outside(dir string) command {
	return command{dir: dir, env: []string{"GOWORK=off", "GOFLAGS=-mod=mod", "GOOS=", "GOARCH="}}
}

// stageCommand makes a stage, and finds a command in it.
func (w *workspace) stageCommand(ctx context.Context, version, dir string) (*stage, *module, error) {
	if err := validVersion(version); err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(w.published, func(m *module) bool { return m.command() && m.dir == path.Clean(dir) })
	if i < 0 {
		return nil, nil, fmt.Errorf("%q is no command of the workspace, such as cmd/idempotency", dir)
	}
	s, err := w.stage(ctx, version)
	if err != nil {
		return nil, nil, err
	}
	return s, w.published[i], nil
}

// compile makes the program of a command for a platform, and returns its file.
func (s *stage) compile(ctx context.Context, m *module, platform, dir string) (string, error) {
	system, processor, _ := strings.Cut(platform, "/")
	// Whoever has GOBIN cannot install for another platform.
	here := command{dir: s.dir, env: append(slices.Clone(s.user), "GOBIN=", "GOPATH="+filepath.Join(s.dir, "go"),
		"CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor)}
	if _, err := output(ctx, here, "go", "install", "-ldflags=-s -w", m.path()+"@"+s.version); err != nil {
		return "", err
	}
	name, suffix := path.Base(m.dir), ""
	if system == "windows" {
		suffix = ".exe"
	}
	built := filepath.Join(s.dir, "go", "bin", system+"_"+processor, name+suffix)
	if platform == runtime.GOOS+"/"+runtime.GOARCH {
		built = filepath.Join(s.dir, "go", "bin", name+suffix)
	}
	program, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, strings.Join([]string{name, s.version, system, processor}, "_")+suffix)
	return file, os.WriteFile(file, program, 0o777)
}

// writeSums writes SHA256SUMS, as sha256sum --check reads it.
func writeSums(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), filepath.Base(file))
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o666)
}
