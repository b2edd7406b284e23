//go:build unix

package servertest

import (
	"os/exec"
	"strconv"
)

// startEtcd starts an etcd with one member. Only the etcd user root can read and write. A crash of the machine loses
// the data.
func startEtcd() (*Server, error) {
	s, _, err := newServer("etcd", []string{"etcd", "nobody"}, func(path, dir string, port int) *exec.Cmd {
		clients, peers := "http://127.0.0.1:"+strconv.Itoa(port), "http://127.0.0.1:"+strconv.Itoa(secondPort(port))
		return exec.Command(path, "--data-dir="+dataDir(dir), "--unsafe-no-fsync", "--bcrypt-cost=4",
			"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
			"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers)
	})
	if err != nil {
		return nil, err
	}
	if err := s.fillAndStart(func() error { return nil }); err != nil {
		return nil, err
	}
	for _, step := range [][2]string{
		{"user/add", `{"name": "root", "password": "` + patroniPassword + `"}`},
		{"role/add", `{"name": "root"}`},
		{"user/grant", `{"user": "root", "role": "root"}`},
		{"enable", "{}"},
	} {
		if _, err := askHTTP("POST", "http://"+s.Addr()+"/v3/auth/"+step[0], step[1]); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}
