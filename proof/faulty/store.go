//go:build unix

package faulty

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// record is what is stored for a key. A record without Answer is a claim.
type record struct {
	Fingerprint string
	Owner       string
	LeaseEnd    time.Time
	Stored      time.Time
	Answer      *storedAnswer
}

type storedAnswer struct {
	Status int
	Header http.Header
	Body   []byte
}

// store keeps records and charges in a directory. A lock on a file of the directory makes each method atomic for all
// processes.
type store struct {
	directory string
	mutex     sync.Mutex         // for the goroutines of this process
	inMemory  map[string]*record // instead of files, for RecordsPerProcess
}

// updateRecord calls change with the record of name, or nil, and stores what change returns, or removes the record for nil.
func (s *store) updateRecord(name string, change func(*record) *record) error {
	unlock, err := s.lockDirectory()
	if err != nil {
		return err
	}
	defer unlock()
	if s.inMemory != nil {
		s.inMemory[name] = change(s.inMemory[name])
		return nil
	}
	path := filepath.Join(s.directory, name)
	stored, err := readRecord(path)
	if err != nil {
		return err
	}
	changed := change(stored)
	if changed == nil {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	encoded, err := json.Marshal(changed)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", encoded, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // a process that dies leaves the old record or the new one
}

func readRecord(path string) (*record, error) {
	encoded, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	stored := new(record)
	return stored, json.Unmarshal(encoded, stored)
}

// lockDirectory locks the directory.
func (s *store) lockDirectory() (unlock func(), err error) {
	s.mutex.Lock()
	file, err := os.OpenFile(filepath.Join(s.directory, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		s.mutex.Unlock()
		return nil, err
	}
	return func() {
		_ = file.Close() // ends the lock
		s.mutex.Unlock()
	}, nil
}

// chargeOnce is the effect. The provider acts once for each ID.
func (s *store) chargeOnce(id string) error {
	unlock, err := s.lockDirectory()
	if err != nil {
		return err
	}
	defer unlock()
	charges, err := readCharges(s.directory)
	if err != nil {
		return err
	}
	for _, charged := range charges {
		if charged == id {
			return nil
		}
	}
	file, err := os.OpenFile(chargesFile(s.directory), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(id + "\n")
	return errors.Join(err, file.Close())
}

func chargesFile(directory string) string { return filepath.Join(directory, "charges") }

func readCharges(directory string) ([]string, error) {
	text, err := os.ReadFile(chargesFile(directory))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(text)), err
}

// CountCharges returns how often the service with this directory acted.
func CountCharges(directory string) (int, error) {
	charges, err := readCharges(directory)
	return len(charges), err
}
