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

// StartCommand starts a server with the given command.
func StartCommand(command func(dir string, port int) *exec.Cmd) (*Server, error) {
	dir, err := newDir(nil)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, abortSignal: syscall.SIGKILL, newCommand: command}
	return s, s.startOnRandomPort()
}

// Ask sends a command to a Redis server.
var Ask = askRedis

// Dir returns the directory of the server.
func (s *Server) Dir() string { return s.dir }

// Args returns the arguments of the command that started the server. The server may later hide its arguments.
func (s *Server) Args() []string { return s.process.cmd.Args }

// Psql returns a command for the psql of the installation. The environment of the command has the password.
func Psql(addr string, args ...string) *exec.Cmd {
	inst, _ := ownInstallation()
	cmd := exec.Command(filepath.Join(inst.binDir, "psql"), args...)
	host, port, _ := net.SplitHostPort(addr)
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+port, "PGUSER=postgres", "PGDATABASE=postgres",
		"PGPASSWORD="+postgresPassword, "PGSSLMODE=disable")
	return cmd
}

// MariaClient returns a command for the client mariadb. The environment of the command has the password.
func MariaClient(addr string, args ...string) *exec.Cmd {
	host, port, _ := net.SplitHostPort(addr)
	own := []string{"--no-defaults", "--skip-column-names", "--batch", "--host=" + host, "--port=" + port, "--user=root"}
	cmd := exec.Command("mariadb", append(own, args...)...)
	cmd.Env = append(os.Environ(), "MYSQL_PWD="+mariaPassword)
	return cmd
}

// MariaPassword is the password of all MariaDB servers.
var MariaPassword = mariaPassword

// PostgresPassword is the password of all PostgreSQL servers.
var PostgresPassword = postgresPassword

// PatroniPassword is the password of every Patroni and etcd.
var PatroniPassword = patroniPassword

// SecretFile returns the name of the file with the password of PostgreSQL.
func SecretFile() string {
	inst, _ := ownInstallation()
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(inst.templateDir), "secret*"))
	return strings.Join(names, " ")
}

// MariaFile returns the name of the SQL file that created the users of all MariaDB servers.
func MariaFile() string {
	inst, _ := ownMariaDB()
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(inst.templateDir), "secret*"))
	return strings.Join(names, " ")
}

// RedisCommand returns the command for a redis-server with a password.
func RedisCommand(dir string, port int) *exec.Cmd { return redisCommand("redis-server", dir, port) }

// Sentinels returns the sentinels.
func (s *Sentinel) Sentinels() []*Server { return s.sentinels }

// Servers returns the servers of a cluster: both Patronis and etcd.
func (c *PatroniCluster) Servers() []*Server {
	return []*Server{c.nodes[0].Server, c.nodes[1].Server, c.etcd}
}

// URLs returns the URLs of requests that change the cluster.
func (c *PatroniCluster) URLs() []string {
	return []string{
		"http://" + restAddr(c.nodes[0].port) + "/restart", "http://" + c.etcd.Addr() + "/v3/auth/disable",
		"http://" + c.etcd.Addr() + "/v3/kv/range",
	}
}
