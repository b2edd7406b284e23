//go:build unix

package faulty

import (
	"net/http"
	"time"
)

// The faults that need more than a changed line.

// checkThenSet looks for a record, runs the handler if no record exists, and stores the answer afterwards.
func (s *service) checkThenSet(w http.ResponseWriter, r *http.Request, op operation) {
	var stored *record
	_ = s.store.updateRecord(op.recordName, func(found *record) *record {
		stored = found
		return found
	})
	if stored != nil {
		s.replayAnswer(w, r, stored.Answer)
		return
	}
	answer := s.runHandler(r.Context(), r, op, op.ownerToken)
	s.storeAnswer(op, answer)
	answer.send(w, nil)
}

// claimInProcess claims a key for this process: other instances look for a complete record only.
func (s *service) claimInProcess(op operation) (found *record, err error) {
	err = s.store.updateRecord(op.recordName, func(stored *record) *record {
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
	if _, isRunning := s.runningAnswers[op.recordName]; isRunning {
		return &record{Fingerprint: op.fingerprint}, nil
	}
	s.runningAnswers[op.recordName] = nil
	return nil, nil
}

// shareAnswer gives the answer of a running request to every request with the same key.
func (s *service) shareAnswer(w http.ResponseWriter, r *http.Request, op operation) {
	s.mutex.Lock()
	shared, isRunning := s.runningAnswers[op.recordName]
	if !isRunning {
		shared = make(chan *storedAnswer, 1)
		s.runningAnswers[op.recordName] = shared
	}
	s.mutex.Unlock()
	if isRunning {
		answer := <-shared
		shared <- answer
		s.replayAnswer(w, r, answer)
		return
	}
	answer := s.runHandler(r.Context(), r, op, op.ownerToken)
	shared <- answer
	answer.send(w, nil)
}

// claimBeforeBody claims the key before the content is known. An incomplete body leaves the claim for ever.
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

// streamAndRecord sends the answer in pieces. If the client leaves, streamAndRecord stores the pieces sent until then.
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
		_ = s.store.updateRecord(op.recordName, func(*record) *record { return nil })
	}
}
