//go:build unix

package servertest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// PatroniCluster consists of an etcd and two PostgreSQL servers, each with a Patroni. The Patronis make one server
// the primary. After a crash of the PostgreSQL of the primary, the standby takes over at once. If the Patroni of the
// primary is silent, the standby takes over after 20 seconds, the minimum of Patroni.
type PatroniCluster struct {
	etcd          *Server
	nodes         []*Database // the process of each node is a Patroni
	roleScript    string      // script that each Patroni calls after a change of role
	isSynchronous bool
}

// patroniPassword is the password of etcd, and of changes by the REST API of Patroni.
var patroniPassword = rand.Text()

// StartPatroni starts a cluster with a synchronous or an asynchronous standby. The error wraps [exec.ErrNotFound] if
// this machine lacks PostgreSQL, Patroni or etcd.
func StartPatroni(synchronous bool) (_ *PatroniCluster, err error) {
	c := &PatroniCluster{isSynchronous: synchronous}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	program, err := exec.LookPath("patroni")
	if err != nil {
		return nil, err
	}
	inst, err := ownInstallation()
	if err != nil {
		return nil, err
	}
	if c.etcd, err = startEtcd(); err != nil {
		return nil, err
	}
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	c.roleScript = filepath.Join(dir, "follow")
	for i := range 2 {
		node, err := c.startNode(inst, program, nodeName(i))
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
		if err := c.awaitCondition("a primary", func() bool { return c.Primary() != nil }); err != nil {
			return nil, err
		}
	}
	return c, c.AwaitStandby()
}

// startNode starts a Patroni. The first Patroni gets a copy of the template, and the second Patroni copies the first
// database.
func (c *PatroniCluster) startNode(inst installation, program, name string) (*Database, error) {
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	node := &Database{&Server{dir: dir, abortSignal: syscall.SIGTERM, newCommand: func(dir string, port int) *exec.Cmd {
		cmd := inst.newCommand("sh", "-c", `cat >patroni.json && exec "$0" patroni.json`, program)
		cmd.Dir = dir
		cmd.Stdin = strings.NewReader(c.configJSON(inst, name, dir, port))
		return cmd
	}}}
	return node, node.fillAndStart(func() error {
		if len(c.nodes) > 0 {
			return nil
		}
		return inst.copyTemplate(dataDir(dir))
	})
}

func nodeName(i int) string { return "node" + strconv.Itoa(i) }

// configJSON returns the configuration of a Patroni.
func (c *PatroniCluster) configJSON(inst installation, name, dir string, port int) string {
	type object = map[string]any
	addr, rest := "127.0.0.1:"+strconv.Itoa(port), restAddr(port)
	superuser := object{"username": "postgres", "password": postgresPassword}
	parameters := object{"unix_socket_directories": dir, "fsync": "off", "wal_retrieve_retry_interval": "100ms"}
	text, _ := json.Marshal(object{ // never fails
		"scope": "test", "name": name,
		"etcd3": object{"host": c.etcd.Addr(), "username": "root", "password": patroniPassword},
		"restapi": object{"listen": rest, "connect_address": rest,
			"authentication": object{"username": "root", "password": patroniPassword}},
		"bootstrap": object{"dcs": object{
			"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "primary_start_timeout": 0, "synchronous_mode": c.isSynchronous,
			"postgresql": object{"use_pg_rewind": true, "use_slots": false},
		}},
		"postgresql": object{
			"listen": addr, "connect_address": addr, "data_dir": dataDir(dir), "bin_dir": inst.binDir,
			"pgpass": filepath.Join(dir, "pgpass"), "parameters": parameters,
			"authentication": object{"superuser": superuser, "replication": superuser},
			"basebackup":     []any{object{"checkpoint": "fast"}, "no-sync"},
			"callbacks":      object{"on_role_change": fmt.Sprintf("sh %s %d", c.roleScript, port)},
		},
	})
	return string(text)
}

func restAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(secondPort(port)) }

// restURL returns the URL of the REST API of a node. The URL contains the password.
func restURL(node *Database) string {
	return "http://root:" + patroniPassword + "@" + restAddr(node.port)
}

// Patroni starts a cluster for the duration of the test. See [StartPatroni] and [Require].
func Patroni(t testing.TB, synchronous bool) *PatroniCluster {
	t.Helper()
	c, err := StartPatroni(synchronous)
	Require(t, err)
	t.Cleanup(c.Close)
	return c
}

// Nodes returns both servers.
func (c *PatroniCluster) Nodes() []*Database { return c.nodes }

// Primary returns the primary, or nil if the cluster currently has no primary.
func (c *PatroniCluster) Primary() *Database {
	i := slices.IndexFunc(c.nodes, func(node *Database) bool {
		_, err := askHTTP("GET", restURL(node)+"/primary", "")
		return err == nil
	})
	if i < 0 {
		return nil
	}
	return c.nodes[i]
}

// AwaitPrimary waits until the cluster has a primary that is not old.
func (c *PatroniCluster) AwaitPrimary(old *Database) error {
	return c.awaitCondition("another primary", func() bool {
		primary := c.Primary()
		return primary != nil && primary != old
	})
}

// AwaitStandby waits until a standby follows the primary and may take over.
func (c *PatroniCluster) AwaitStandby() error {
	role := map[bool]string{false: "replica", true: "sync_standby"}[c.isSynchronous]
	return c.awaitCondition("a standby", func() bool {
		var told struct {
			Members []struct {
				Role, State string
				Timeline    int
			}
		}
		said, err := askHTTP("GET", restURL(c.nodes[0])+"/cluster", "")
		if err != nil || json.Unmarshal(said, &told) != nil || len(told.Members) < len(c.nodes) {
			return false
		}
		lines := map[string]int{}
		for _, member := range told.Members {
			if member.State == "running" || member.State == "streaming" {
				lines[member.Role] = member.Timeline
			}
		}
		return lines["leader"] > 0 && lines["leader"] == lines[role]
	})
}

// Switchover makes the standby take over from a healthy primary.
func (c *PatroniCluster) Switchover(primary *Database) error {
	leader := fmt.Sprintf(`{"leader": "%s"}`, nodeName(slices.Index(c.nodes, primary)))
	_, err := askHTTP("POST", restURL(primary)+"/switchover", leader)
	return err
}

// CrashPostgres kills the PostgreSQL of a node without telling the Patroni of the node.
func (c *PatroniCluster) CrashPostgres(node *Database) error {
	file, err := os.ReadFile(filepath.Join(dataDir(node.dir), "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(file), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Crash kills all processes of a node, like a loss of the machine. Restart starts the node again.
func (c *PatroniCluster) Crash(node *Database) {
	if node.process != nil { // nil: the last Restart failed
		node.Resume()
		_ = node.process.cmd.Process.Kill() // fails if the process has ended before
	}
	_ = c.CrashPostgres(node) // fails if PostgreSQL is not running
	node.Server.Crash()
}

// Close ends all servers and removes their directories.
func (c *PatroniCluster) Close() {
	for _, node := range c.nodes {
		c.Crash(node)
		node.Close()
	}
	if c.etcd != nil {
		c.etcd.Close()
	}
	if c.roleScript != "" {
		_ = os.RemoveAll(filepath.Dir(c.roleScript))
	}
}

// PgBouncer starts a PgBouncer in front of the primary, for the duration of the test. After a change of the primary,
// the Patroni of the new primary redirects the PgBouncer. The settings are the settings of [StartPgBouncer].
func (c *PatroniCluster) PgBouncer(t testing.TB, settings ...string) *Pooler {
	t.Helper()
	primary := c.Primary()
	if primary == nil {
		t.Fatal("there is no primary")
	}
	b := PgBouncer(t, primary, settings...)
	script := `case "$3" in primary | master) cd '` + b.dir + `' && printf '` + strings.ReplaceAll(targetFile, "%d", "%s") +
		`' "$1" >target.ini && kill -HUP "$(cat pid)" ;; esac` + "\n"
	if err := os.WriteFile(c.roleScript, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

// awaitCondition waits until happened returns true. The text what describes the condition in errors.
func (c *PatroniCluster) awaitCondition(what string, happened func() bool) error {
	for deadline := time.Now().Add(2 * patience); !happened(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", 2*patience, what)
		}
	}
	return nil
}

// askHTTP sends a request to etcd or a Patroni, and returns the body of the answer. A status other than 2xx is an
// error.
func askHTTP(method, url, body string) ([]byte, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Close = true
	client := http.Client{Timeout: 5 * time.Second} // a paused Patroni does not answer
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s: %s", r.URL.Redacted(), resp.Status, said)
	}
	return said, err
}
