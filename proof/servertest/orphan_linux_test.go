package servertest_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// TestMain also runs this program as the process that starts servers and is killed in TestServersEndWithTheirProcess.
func TestMain(m *testing.M) {
	if os.Getenv("SERVERTEST_OWNER") == "" {
		os.Exit(m.Run())
	}
	if err := ownServers(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// ownServers starts three servers, pauses one server, prints the directory and the processes, and waits for the kill.
func ownServers() error {
	s, err := servertest.StartRedis()
	if err != nil {
		return err
	}
	db, err := servertest.StartPostgres()
	if err != nil {
		return err
	}
	m, err := servertest.StartMariaDB()
	if err != nil {
		return err
	}
	if err := db.Pause(); err != nil {
		return err
	}
	fmt.Println(filepath.Dir(db.Dir()), slices.Concat(db.Processes(), m.Processes(), s.Processes()))
	select {}
}

func TestServersEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	servertest.Redis(t) // skips the test if Redis is missing
	servertest.Postgres(t)
	servertest.MariaDB(t)
	test, err := os.Executable()
	check(t, err)
	owner := exec.Command(test)
	owner.Env = append(os.Environ(), "SERVERTEST_OWNER=1")
	out, err := owner.StdoutPipe()
	check(t, err)
	check(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	check(t, err)
	dir, list, ok := strings.Cut(strings.TrimSpace(line), " [")
	processes := strings.Fields(strings.TrimSuffix(list, "]"))
	if !ok || len(processes) < 5 {
		t.Fatalf("got %q, want a directory and the processes of Redis, MariaDB and PostgreSQL", line)
	}
	for _, process := range processes {
		if ended(process) {
			t.Errorf("process %s does not run", process)
		}
	}

	check(t, owner.Process.Kill())
	_ = owner.Wait() // reports the kill
	for _, process := range processes {
		eventually(t, "the end of process "+process, func() bool { return ended(process) })
	}
	eventually(t, "the removal of "+dir, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
}

// ended reports whether a process is gone, or is a zombie that its new parent has not reaped yet.
func ended(process string) bool {
	stat, err := os.ReadFile("/proc/" + process + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ")
}
