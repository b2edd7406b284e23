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

// PatroniCluster is two PostgreSQL servers, of which Patroni makes one the primary, and an etcd. A primary whose
// PostgreSQL has crashed is replaced at once; one whose Patroni is silent, after 20 seconds: Patroni allows no less.
type PatroniCluster struct {
	etcd        *Server
	nodes       []*Database // the process of each is a Patroni
	follow      string      // the script that each Patroni calls when its server has another role
	synchronous bool
}

// patroniPassword is asked for by etcd, and by Patroni of those who change something.
var patroniPassword = rand.Text()

// StartPatroni starts a cluster, of which the standby is synchronous or not. The error wraps [exec.ErrNotFound] if this
// machine does not have PostgreSQL, Patroni or etcd.
func StartPatroni(synchronous bool) (_ *PatroniCluster, err error) {
	c := &PatroniCluster{synchronous: synchronous}
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
	c.follow = filepath.Join(dir, "follow")
	for i := range 2 {
		node, err := c.startNode(inst, program, nodeName(i))
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, node)
		if err := c.await("a primary", func() bool { return c.Primary() != nil }); err != nil {
			return nil, err
		}
	}
	return c, c.AwaitStandby()
}

// startNode starts a Patroni. The first one finds a database that was never used, the second one makes a copy of it.
func (c *PatroniCluster) startNode(inst installation, program, name string) (*Database, error) {
	dir, err := newDir(inst.owner)
	if err != nil {
		return nil, err
	}
	node := &Database{&Server{dir: dir, abort: syscall.SIGTERM, command: func(dir string, port int) *exec.Cmd {
		cmd := inst.command("sh", "-c", `cat >patroni.json && exec "$0" patroni.json`, program)
		cmd.Dir = dir
		cmd.Stdin = strings.NewReader(c.config(inst, name, dir, port))
		return cmd
	}}}
	return node, node.startWith(func() error {
		if len(c.nodes) > 0 {
			return nil
		}
		return inst.copyTemplate(dataDir(dir))
	})
}

func nodeName(i int) string { return "node" + strconv.Itoa(i) }

// config returns what a Patroni is told.
func (c *PatroniCluster) config(inst installation, name, dir string, port int) string {
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
			"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "primary_start_timeout": 0, "synchronous_mode": c.synchronous,
			"postgresql": object{"use_pg_rewind": true, "use_slots": false},
		}},
		"postgresql": object{
			"listen": addr, "connect_address": addr, "data_dir": dataDir(dir), "bin_dir": inst.bin,
			"pgpass": filepath.Join(dir, "pgpass"), "parameters": parameters,
			"authentication": object{"superuser": superuser, "replication": superuser},
			"basebackup":     []any{object{"checkpoint": "fast"}, "no-sync"},
			"callbacks":      object{"on_role_change": fmt.Sprintf("sh %s %d", c.follow, port)},
		},
	})
	return string(text)
}

func restAddr(port int) string { return "127.0.0.1:" + strconv.Itoa(secondPort(port)) }

// restURL returns where the Patroni of a node is asked. It contains the password.
func restURL(node *Database) string {
	return "http://root:" + patroniPassword + "@" + restAddr(node.port)
}

// Patroni starts a cluster as [StartPatroni] does, for the duration of the test. See [Require].
func Patroni(t testing.TB, synchronous bool) *PatroniCluster {
	t.Helper()
	c, err := StartPatroni(synchronous)
	Require(t, err)
	t.Cleanup(c.Close)
	return c
}

// Nodes returns both servers.
func (c *PatroniCluster) Nodes() []*Database { return c.nodes }

// Primary returns the server that can be written to, or nil if there is none now.
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

// AwaitPrimary waits until there is another primary than old.
func (c *PatroniCluster) AwaitPrimary(old *Database) error {
	return c.await("another primary", func() bool {
		primary := c.Primary()
		return primary != nil && primary != old
	})
}

// AwaitStandby waits until there is a standby that follows the primary, and may take over.
func (c *PatroniCluster) AwaitStandby() error {
	role := map[bool]string{false: "replica", true: "sync_standby"}[c.synchronous]
	return c.await("a standby", func() bool {
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

// Switchover orders that the standby takes over, though nothing is wrong with the primary.
func (c *PatroniCluster) Switchover(primary *Database) error {
	leader := fmt.Sprintf(`{"leader": "%s"}`, nodeName(slices.Index(c.nodes, primary)))
	_, err := askHTTP("POST", restURL(primary)+"/switchover", leader)
	return err
}

// CrashPostgres kills the PostgreSQL of a node, and leaves its Patroni to find out.
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

// Crash kills all of a node, as the loss of its machine would. Restart starts it again.
func (c *PatroniCluster) Crash(node *Database) {
	if node.process != nil { // nil: it could not be started again
		node.Resume()
		_ = node.process.cmd.Process.Kill() // fails if it has ended already
	}
	_ = c.CrashPostgres(node) // fails if it does not run
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
	if c.follow != "" {
		_ = os.RemoveAll(filepath.Dir(c.follow))
	}
}

// PgBouncer starts a PgBouncer in front of the primary, for the duration of the test: a Patroni whose server has become
// the primary sends it there. The settings are as for [StartPgBouncer].
func (c *PatroniCluster) PgBouncer(t testing.TB, settings ...string) *Pooler {
	t.Helper()
	primary := c.Primary()
	if primary == nil {
		t.Fatal("there is no primary")
	}
	b := PgBouncer(t, primary, settings...)
	script := `case "$3" in primary | master) cd '` + b.dir + `' && printf '` + strings.ReplaceAll(target, "%d", "%s") +
		`' "$1" >target.ini && kill -HUP "$(cat pid)" ;; esac` + "\n"
	if err := os.WriteFile(c.follow, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return b
}

func (c *PatroniCluster) await(what string, happened func() bool) error {
	for deadline := time.Now().Add(2 * patience); !happened(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %v for %s", 2*patience, what)
		}
	}
	return nil
}

// askHTTP returns what etcd or a Patroni answers.
func askHTTP(method, url, body string) ([]byte, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Close = true
	client := http.Client{Timeout: 5 * time.Second} // a Patroni that is paused does not answer
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
