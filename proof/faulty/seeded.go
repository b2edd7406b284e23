//go:build unix

package faulty

import (
	"net/http"
	"time"
)

// The ways of services that differ from the correct one in more than a line.

// checkThenSet looks for a record, runs the handler if there is none, and stores the answer after that.
func (s *service) checkThenSet(w http.ResponseWriter, r *http.Request, op operation) {
	var stored *record
	_ = s.store.updateRecord(op.name, func(found *record) *record {
		stored = found
		return found
	})
	if stored != nil {
		s.replayAnswer(w, r, stored.Answer)
		return
	}
	answer := s.runHandler(r.Context(), r, op, op.owner)
	s.storeAnswer(op, answer)
	answer.send(w, nil)
}

// claimInProcess claims a key for this process: other instances look for a complete record only.
func (s *service) claimInProcess(op operation) (found *record, err error) {
	err = s.store.updateRecord(op.name, func(stored *record) *record {
		if stored != nil && stored.Answer != nil {
			found = stored
		}
		return stored
	})
	if found != nil || err != nil {
		return found, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if _, isRunning := s.running[op.name]; isRunning {
		return &record{Fingerprint: op.fingerprint}, nil
	}
	s.running[op.name] = nil
	return nil, nil
}

// shareAnswer lets every request with the key of a running request wait for the answer of that one.
func (s *service) shareAnswer(w http.ResponseWriter, r *http.Request, op operation) {
	s.mutex.Lock()
	shared, isRunning := s.running[op.name]
	if !isRunning {
		shared = make(chan *storedAnswer, 1)
		s.running[op.name] = shared
	}
	s.mutex.Unlock()
	if isRunning {
		answer := <-shared
		shared <- answer
		s.replayAnswer(w, r, answer)
		return
	}
	answer := s.runHandler(r.Context(), r, op, op.owner)
	shared <- answer
	answer.send(w, nil)
}

// claimBeforeBody claims the key for a content that is not known yet. A body that breaks off leaves the claim for ever.
func (s *service) claimBeforeBody(w http.ResponseWriter, op *operation) bool {
	stored, err := s.claimKey(*op)
	if err != nil || stored != nil && stored.Answer == nil {
		writeProblem(w, http.StatusConflict, "the first request is running")
		return false
	}
	if stored == nil {
		s.keepClaim(*op)
	}
	return true
}

// streamAndRecord sends the answer in pieces, and stores the pieces that were sent when the client left.
func (s *service) streamAndRecord(w http.ResponseWriter, r *http.Request, op operation, answer *storedAnswer) {
	sent := 0
	controller := http.NewResponseController(w)
	first := *answer
	first.Body = nil
	first.send(w, nil)
	const piece = 16 << 10
	for sent < len(answer.Body) && r.Context().Err() == nil {
		written, err := w.Write(answer.Body[sent:min(sent+piece, len(answer.Body))])
		sent += written
		if err != nil || controller.Flush() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	part := *answer
	part.Body = answer.Body[:sent]
	s.storeAnswer(op, &part)
}

// sendAndRecord sends the answer, and stores it unless the client has left meanwhile.
func (s *service) sendAndRecord(w http.ResponseWriter, r *http.Request, op operation, answer *storedAnswer) {
	answer.send(w, nil)
	_ = http.NewResponseController(w).Flush()
	select {
	case <-time.After(50 * time.Millisecond):
		s.storeAnswer(op, answer)
	case <-r.Context().Done():
		_ = s.store.updateRecord(op.name, func(*record) *record { return nil })
	}
}
