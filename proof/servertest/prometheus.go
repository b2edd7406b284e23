//go:build unix

package servertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// StartPrometheus starts a Prometheus. The files are put into its directory: prometheus.yml is its configuration, and may
// name others, such as those of rules. It asks for no password, since it has nothing but figures. Crash is SIGKILL. The
// error wraps [exec.ErrNotFound] if this machine does not have the program.
func StartPrometheus(files map[string]string) (*Server, error) {
	s, owner, err := newServer("prometheus", []string{"prometheus", "nobody"}, func(path, dir string, port int) *exec.Cmd {
		return exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+strconv.Itoa(port))
	})
	if err != nil {
		return nil, err
	}
	if err := s.startWith(func() error { return writeFiles(s.dir, files, owner) }); err != nil {
		return nil, err
	}
	return s, nil
}

// writeFiles makes files that only their owner can read.
func writeFiles(dir string, files map[string]string, owner *syscall.Credential) error {
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		if owner == nil {
			continue
		}
		if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return nil
}

// Prometheus starts a Prometheus as [StartPrometheus] does, for the duration of the test. See [Require].
func Prometheus(t testing.TB, files map[string]string) *Server {
	t.Helper()
	s, err := StartPrometheus(files)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}
