//go:build unix

package servertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// StartCommand starts a server as the others are started.
func StartCommand(command func(dir string, port int) *exec.Cmd) (*Server, error) {
	dir, err := newDir(nil)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, abort: syscall.SIGKILL, command: command}
	return s, s.start()
}

// Ask sends one command to a Redis server.
var Ask = ask

// Dir returns the directory of the server.
func (s *Server) Dir() string { return s.dir }

// Args returns the arguments that the server was started with. It may hide them later.
func (s *Server) Args() []string { return s.process.cmd.Args }

// Psql returns a command that runs the client that came with the server. It finds the password in its environment.
func Psql(addr string, args ...string) *exec.Cmd {
	inst, _ := ownInstallation()
	cmd := exec.Command(filepath.Join(inst.bin, "psql"), args...)
	host, port, _ := net.SplitHostPort(addr)
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+port, "PGUSER=postgres", "PGDATABASE=postgres",
		"PGPASSWORD="+postgresPassword, "PGSSLMODE=disable")
	return cmd
}

// MariaClient returns a command that runs the client that came with the server. It finds the password in its
// environment.
func MariaClient(addr string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(addr)
	own := []string{"--no-defaults", "--skip-column-names", "--batch", "--host=" + host, "--port=" + port, "--user=root"}
	cmd := exec.Command("mariadb", append(own, args...)...)
	cmd.Env = append(os.Environ(), "MYSQL_PWD="+mariaPassword)
	return cmd
}

// MariaPassword is that of all MariaDB servers.
var MariaPassword = mariaPassword

// PostgresPassword is that of all databases.
var PostgresPassword = postgresPassword

// PatroniPassword is that of every Patroni and its etcd.
var PatroniPassword = patroniPassword

// SecretFile returns the name of the file that holds it.
func SecretFile() string {
	inst, _ := ownInstallation()
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(inst.template), "secret*"))
	return strings.Join(names, " ")
}

// MariaFile returns the name of the file that made the users of all MariaDB servers.
func MariaFile() string {
	inst, _ := ownMariaDB()
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(inst.template), "secret*"))
	return strings.Join(names, " ")
}

// RedisCommand starts a redis-server with a password.
func RedisCommand(dir string, port int) *exec.Cmd { return redisCommand("redis-server", dir, port) }

// Sentinels returns the servers that watch the others.
func (s *Sentinel) Sentinels() []*Server { return s.sentinels }

// Servers returns the processes of a cluster: Patroni's, and etcd.
func (c *PatroniCluster) Servers() []*Server {
	return []*Server{c.nodes[0].Server, c.nodes[1].Server, c.etcd}
}

// URLs returns where the cluster could be changed.
func (c *PatroniCluster) URLs() []string {
	return []string{
		"http://" + restAddr(c.nodes[0].port) + "/restart", "http://" + c.etcd.Addr() + "/v3/auth/disable",
		"http://" + c.etcd.Addr() + "/v3/kv/range",
	}
}
