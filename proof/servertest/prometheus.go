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

// StartPrometheus starts a Prometheus with files in its directory. The file prometheus.yml is the configuration, and
// may refer to other files, such as rules. The server needs no password, because the server has only figures. Crash
// uses SIGKILL. The error wraps [exec.ErrNotFound] if this machine lacks Prometheus.
func StartPrometheus(files map[string]string) (*Server, error) {
	s, owner, err := newServer("prometheus", []string{"prometheus", "nobody"}, func(path, dir string, port int) *exec.Cmd {
		return exec.Command(path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
			"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:"+strconv.Itoa(port))
	})
	if err != nil {
		return nil, err
	}
	if err := s.fillAndStart(func() error { return writeFiles(s.dir, files, owner) }); err != nil {
		return nil, err
	}
	return s, nil
}

// writeFiles creates files that only owner can read.
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

// Prometheus starts a Prometheus for the duration of the test. See [StartPrometheus] and [Require].
func Prometheus(t testing.TB, files map[string]string) *Server {
	t.Helper()
	s, err := StartPrometheus(files)
	Require(t, err)
	t.Cleanup(s.Close)
	return s
}
