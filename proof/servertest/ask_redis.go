//go:build unix

package servertest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// awaitReplies sends question to each server, repeatedly until isWanted returns true for the reply. The text what
// describes the wanted state in errors.
func awaitReplies(servers []*Server, question, what string, isWanted func(reply string) bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for _, s := range servers {
		for {
			reply, err := askRedis(s, question)
			if err != nil {
				return err
			}
			if isWanted(reply) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("waited %v for %s:\n%s", patience, what, reply)
			}
			<-tick.C
		}
	}
	return nil
}

// askRedis sends a command to a Redis server, and returns the reply, which must be a string or a number.
func askRedis(s *Server, command string) (string, error) {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\n%s\r\n", redisPassword, command); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	if _, err := readReply(r); err != nil {
		return "", err
	}
	return readReply(r)
}

func readReply(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, line := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '+', ':':
		return line, nil
	case '$':
		n, err := strconv.Atoi(line)
		if err != nil || n < 0 {
			return "", err
		}
		bulk := make([]byte, n)
		_, err = io.ReadFull(r, bulk)
		return string(bulk), err
	default:
		return "", errors.New(line)
	}
}
