//go:build unix

package faulty

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// lease is how long a claim lasts. The service renews the lease while its handler runs.
const lease = 400 * time.Millisecond

// service is the payment service.
type service struct {
	fault          Fault
	store          *store
	instance       string // for FingerprintPerProcess
	mutex          sync.Mutex
	runningAnswers map[string]chan *storedAnswer // by key, for SharesRunningAnswer
}

// New returns the service with fault. The instances and processes of one service have the same directory.
//
//   - POST /payments charges {"amount": n, "takes": "10ms"}, and refuses an amount of 0 with 400.
//   - PUT /payments does the same.
//   - POST /statements charges too, and streams a long answer.
//   - POST /failures answers 503.
//
// The user is the value of Authorization.
func New(directory string, fault Fault) http.Handler {
	s := &service{fault: fault, store: &store{directory: directory}, runningAnswers: make(map[string]chan *storedAnswer),
		instance: uuid.NewString()}
	if fault == RecordsPerProcess {
		s.store.inMemory = make(map[string]*record)
	}
	return s
}

// payment is the content of a request.
type payment struct {
	Amount int    `json:"amount"`
	Takes  string `json:"takes"`
}

// operation is a request on its way through the service.
type operation struct {
	clientKey   string
	recordName  string // of the record
	fingerprint string
	ownerToken  string
	requestBody []byte
}

func (s *service) has(fault Fault) bool { return s.fault == fault }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	op := operation{ownerToken: uuid.NewString()}
	var isRefused bool
	if op.clientKey, isRefused = s.readKey(w, r); isRefused {
		return
	}
	user := r.Header.Get("Authorization")
	if s.has(KeyWithoutUser) {
		user = ""
	}
	route := r.Method + " " + r.URL.Path
	if s.has(KeyWithoutPath) {
		route = ""
	}
	op.recordName = digest(user, route, op.clientKey)
	if s.has(ActsBeforeBody) {
		_ = s.store.chargeOnce(op.ownerToken)
	}
	if s.has(ClaimsBeforeBody) && !s.claimBeforeBody(w, &op) {
		return
	}
	var err error
	if op.requestBody, err = s.readBody(r); err != nil {
		writeProblem(w, http.StatusUnsupportedMediaType, "the body cannot be read")
		return
	}
	op.fingerprint = s.fingerprintContent(r, op.requestBody)
	if s.has(IgnoresKey) {
		op.recordName = op.fingerprint
	}
	if s.has(ActsBeforeClaim) {
		_ = s.store.chargeOnce(op.ownerToken)
	}
	switch {
	case op.clientKey == "" && !s.has(EmptyKeyIsKey), s.has(SkipsLargeBodies) && len(op.requestBody) > 1<<20:
		s.runHandler(r.Context(), r, op, op.ownerToken).send(w, nil)
	case s.has(ChecksThenSets):
		s.checkThenSet(w, r, op)
	case s.has(SharesRunningAnswer):
		s.shareAnswer(w, r, op)
	default:
		s.serveProtected(w, r, op)
	}
}

// readKey returns the key, or refuses the request.
func (s *service) readKey(w http.ResponseWriter, r *http.Request) (key string, isRefused bool) {
	header := "Idempotency-Key"
	if s.has(IgnoresHeader) {
		header = "X-Idempotency-Key"
	}
	keys := r.Header.Values(header)
	switch {
	case len(keys) == 0 && s.has(PanicsWithoutKey):
		http.Error(w, "panic: index out of range", http.StatusInternalServerError)
		return "", true
	case len(keys) == 0, len(keys) > 1 && s.has(SkipsTwoKeys):
		return "", false
	case len(keys) > 1:
		writeProblem(w, http.StatusBadRequest, "several keys")
		return "", true
	}
	key = keys[0]
	if s.has(FailsOnQuotes) && strings.HasPrefix(key, `"`) || s.has(FailsOnUnicode) && strings.ContainsFunc(key, isUnicode) {
		http.Error(w, "invalid byte sequence", http.StatusInternalServerError)
		return "", true
	}
	key = strings.Trim(key, `"`)
	switch {
	case s.has(FoldsKeys):
		key = strings.ToLower(key)
	case s.has(CutsKeys):
		key = key[:min(len(key), 255)]
	case s.has(EmptyKeyIsKey) && key == "":
		return "", false
	}
	if key == "" || len(key) > 255 || strings.ContainsFunc(key, isUnicode) {
		writeProblem(w, http.StatusBadRequest, "a key has 1 to 255 visible ASCII characters")
		return "", true
	}
	return key, false
}

func isUnicode(r rune) bool { return r < ' ' || r > '~' }

// readBody reads the whole body before the key is claimed, because an incomplete request must have no effect.
func (s *service) readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 8<<20))
	if err != nil || r.Header.Get("Content-Encoding") != "gzip" {
		return body, err
	}
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

// fingerprintContent returns a digest of the content.
func (s *service) fingerprintContent(r *http.Request, body []byte) string {
	switch {
	case s.has(NoFingerprint):
		return ""
	case s.has(FingerprintWithLength):
		return digest(string(body), fmt.Sprint(r.ContentLength))
	case s.has(FingerprintWithTracing):
		return digest(string(body), r.Header.Get("Traceparent"))
	case s.has(FingerprintOfBegin):
		return digest(string(body[:min(len(body), 1<<16)]))
	case s.has(FingerprintPerProcess):
		return digest(string(body)) + s.instance
	case s.has(FingerprintWithVersion):
		return digest(string(body), r.Proto)
	}
	return digest(string(body))
}

func digest(parts ...string) string {
	hash := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(hash, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// serveProtected claims the key, runs the handler, stores its answer, and sends it.
func (s *service) serveProtected(w http.ResponseWriter, r *http.Request, op operation) {
	stored, err := s.claimKey(op)
	switch {
	case err != nil:
		writeProblem(w, http.StatusServiceUnavailable, "the store has failed")
		return
	case stored != nil && s.has(FingerprintPerProcess) && stored.Answer != nil && !strings.HasSuffix(stored.Fingerprint, s.instance):
		s.replayAnswer(w, r, stored.Answer)
		return
	case stored != nil && stored.Fingerprint != op.fingerprint:
		writeProblem(w, http.StatusUnprocessableEntity, "the key belongs to another content")
		return
	case stored != nil && stored.Answer != nil:
		if s.has(RunsHandlerAgain) {
			s.runHandler(r.Context(), r, op, uuid.NewString())
		}
		s.replayAnswer(w, r, stored.Answer)
		return
	case stored != nil && s.has(AnswersEmpty):
		return
	case stored != nil && s.has(FailsOnDuplicate):
		http.Error(w, "duplicate key value violates unique constraint", http.StatusInternalServerError)
		return
	case stored != nil && s.has(ReleasedByDuplicate):
		_ = s.store.updateRecord(op.recordName, func(*record) *record { return nil })
		writeProblem(w, http.StatusConflict, "the first request is running")
		return
	case stored != nil && s.has(RefusesWith400):
		writeProblem(w, http.StatusBadRequest, "the request was sent already")
		return
	case stored != nil:
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusConflict, "the first request is running")
		return
	}
	s.executeRequest(w, r, op)
}

// executeRequest runs the handler with a renewed lease, and settles the claim.
func (s *service) executeRequest(w http.ResponseWriter, r *http.Request, op operation) {
	ctx := context.WithoutCancel(r.Context())
	if s.has(EndsWithClient) || s.has(ClaimLeftByClient) {
		ctx = r.Context()
	}
	if s.has(FreedByClient) {
		stop := context.AfterFunc(r.Context(), func() { _ = s.store.updateRecord(op.recordName, func(*record) *record { return nil }) })
		defer stop()
	}
	stopRenewing := s.renewLease(op)
	defer stopRenewing()
	id := op.ownerToken
	if s.has(None) || s.has(LocksForEver) || s.has(RecordsBeforeEffect) {
		id = digest(op.recordName) // the provider acts once for each ID, so that a second execution does no harm
	}
	if s.has(RecordsBeforeEffect) {
		s.storeAnswer(op, &storedAnswer{Status: http.StatusCreated, Body: []byte(id)})
	}
	answer := s.runHandler(ctx, r, op, id)
	stopRenewing()
	if s.has(ClaimLeftByClient) && ctx.Err() != nil {
		s.keepClaim(op)
		return
	}
	s.settleClaim(w, r, op, answer)
}

// settleClaim stores the answer or releases the claim, and then sends the answer.
func (s *service) settleClaim(w http.ResponseWriter, r *http.Request, op operation, answer *storedAnswer) {
	isFailure := answer.Status >= http.StatusInternalServerError
	switch {
	case isFailure && s.has(BlockedByFailure), answer.Status == http.StatusBadRequest && s.has(BlockedByInvalid):
		s.keepClaim(op)
	case s.has(RecordsAfterAnswer):
		answer.send(w, nil)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(20 * time.Millisecond)
		s.storeAnswer(op, answer)
		return
	case s.has(RecordsReadAnswers):
		s.sendAndRecord(w, r, op, answer)
		return
	case s.has(RecordsSentPart) && len(answer.Body) > 1<<16:
		s.streamAndRecord(w, r, op, answer)
		return
	case s.has(StoresFailure), s.has(EndsWithClient), !isFailure && answer.Status != http.StatusBadRequest:
		s.storeAnswer(op, s.withEncoding(r, answer))
	default:
		_ = s.store.updateRecord(op.recordName, func(*record) *record { return nil })
	}
	s.withEncoding(r, answer).send(w, nil)
}

// claimKey claims the key of op, and returns nil, or the record that keeps op from running the handler.
func (s *service) claimKey(op operation) (found *record, err error) {
	name := op.recordName
	if s.has(LocksPerProcess) {
		return s.claimInProcess(op)
	}
	err = s.store.updateRecord(name, func(stored *record) *record {
		isExpired := stored != nil && (stored.Answer == nil && !s.has(LocksForEver) && time.Now().After(stored.LeaseEnd) ||
			s.has(ForgetsSoon) && stored.Answer != nil && time.Since(stored.Stored) > lease+100*time.Millisecond)
		if stored != nil && !isExpired && stored.Owner != op.ownerToken {
			found = stored
			return stored
		}
		return &record{Fingerprint: op.fingerprint, Owner: op.ownerToken, LeaseEnd: time.Now().Add(lease)}
	})
	return found, err
}

// renewLease renews the lease of op until stop is called.
func (s *service) renewLease(op operation) (stop func()) {
	if s.has(LeaseNotRenewed) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ticker := time.NewTicker(lease / 4)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				_ = s.store.updateRecord(op.recordName, func(stored *record) *record {
					if stored != nil && stored.Owner == op.ownerToken && stored.Answer == nil {
						stored.LeaseEnd = time.Now().Add(lease)
					}
					return stored
				})
			}
		}
	}()
	return cancel
}

// storeAnswer stores the answer.
func (s *service) storeAnswer(op operation, answer *storedAnswer) {
	if s.has(SkipsLargeAnswers) && len(answer.Body) > 1<<16 {
		_ = s.store.updateRecord(op.recordName, func(*record) *record { return nil })
		return
	}
	_ = s.store.updateRecord(op.recordName, func(stored *record) *record {
		if stored != nil && stored.Owner != op.ownerToken {
			return stored // the lease has ended, and another request has the claim
		}
		return &record{Fingerprint: op.fingerprint, Owner: op.ownerToken, Stored: time.Now(), Answer: answer}
	})
}

// keepClaim makes the claim of op last for ever.
func (s *service) keepClaim(op operation) {
	_ = s.store.updateRecord(op.recordName, func(stored *record) *record {
		stored.LeaseEnd = time.Now().Add(time.Hour)
		return stored
	})
}

// runHandler is the handler: runHandler validates, waits, acts, and answers.
func (s *service) runHandler(ctx context.Context, r *http.Request, op operation, id string) *storedAnswer {
	var paid payment
	if err := json.Unmarshal(op.requestBody, &paid); err != nil || paid.Amount == 0 {
		return newProblem(http.StatusBadRequest, "an amount is missing")
	}
	if s.has(FailsOnCompressed) && r.Header.Get("Content-Encoding") != "" {
		return newProblem(http.StatusInternalServerError, "unexpected character")
	}
	duration, _ := time.ParseDuration(paid.Takes)
	select {
	case <-time.After(duration):
	case <-ctx.Done():
		return newProblem(http.StatusInternalServerError, "context canceled")
	}
	if r.URL.Path == "/failures" {
		if s.has(FreedAfterEffect) {
			_ = s.store.chargeOnce(id)
		}
		return newProblem(http.StatusServiceUnavailable, "the provider is away")
	}
	if !s.has(ActsBeforeBody) && !s.has(ActsBeforeClaim) {
		if err := s.store.chargeOnce(id); err != nil {
			return newProblem(http.StatusServiceUnavailable, "the provider has failed")
		}
	}
	time.Sleep(duration / 4) // the service also does something after the effect
	body := fmt.Sprintf("{\"payment\": %q,  \"amount\": %d, \"path\": %q}\n", id, paid.Amount, r.URL.Path)
	if r.URL.Path == "/statements" {
		body = strings.Repeat(body, 1+(1<<20)/len(body))
	}
	return &storedAnswer{Status: http.StatusCreated, Body: []byte(body), Header: http.Header{
		"Content-Type": {"application/json"}, "Location": {"/payments/" + id}, "Link": {"</terms>; rel=terms", "</help>; rel=help"}}}
}

// replayAnswer sends a stored answer again.
func (s *service) replayAnswer(w http.ResponseWriter, r *http.Request, answer *storedAnswer) {
	replayed := *s.withEncoding(r, answer)
	switch {
	case s.has(LosesHeaders):
		replayed.Header = http.Header{"Content-Type": replayed.Header["Content-Type"]}
	case s.has(JoinsValues):
		replayed.Header = maps.Clone(answer.Header)
		replayed.Header["Link"] = []string{strings.Join(answer.Header["Link"], ", ")}
	case s.has(RepeatsHeaders):
		replayed.Header = maps.Clone(answer.Header)
		replayed.Header["Content-Type"] = slices.Repeat(answer.Header["Content-Type"], 2)
	case s.has(LosesStatus):
		replayed.Status = http.StatusOK
	case s.has(ReencodesBody):
		var decoded any
		if json.Unmarshal(answer.Body, &decoded) == nil {
			replayed.Body, _ = json.Marshal(decoded)
		}
	}
	replayed.send(w, http.Header{"Idempotent-Replayed": {"true"}})
}

// withEncoding returns answer as the client of r accepts it. The record keeps the answer without compression.
func (s *service) withEncoding(r *http.Request, answer *storedAnswer) *storedAnswer {
	if !s.has(ReplaysCompressed) || answer.Header.Get("Content-Encoding") != "" || r.Header.Get("Accept-Encoding") != "gzip" {
		return answer
	}
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	_, _ = writer.Write(answer.Body)
	_ = writer.Close()
	header := maps.Clone(answer.Header)
	header["Content-Encoding"] = []string{"gzip"}
	return &storedAnswer{Status: answer.Status, Header: header, Body: compressed.Bytes()}
}

// send sends the answer with further header fields.
func (a *storedAnswer) send(w http.ResponseWriter, further http.Header) {
	maps.Copy(w.Header(), a.Header)
	maps.Copy(w.Header(), further)
	w.WriteHeader(cmp.Or(a.Status, http.StatusOK))
	_, _ = w.Write(a.Body)
}

func newProblem(status int, title string) *storedAnswer {
	body, _ := json.Marshal(map[string]any{"type": "about:blank", "title": title, "status": status})
	return &storedAnswer{Status: status, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: body}
}

func writeProblem(w http.ResponseWriter, status int, title string) {
	newProblem(status, title).send(w, nil)
}
