package servertest

import (
	"bytes"
	"encoding/json"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
)

// DynamoDB starts a server on loopback for an emulator of DynamoDB. The caller closes the server. The emulator is
// server.NewServer of github.com/truora/minidyn, which is not a dependency of this module. The server adds missing
// features:
//
//   - Calls run one at a time.
//   - The REMOVE of an update removes attributes.
//   - Time to Live is reported as disabled, because the emulator never deletes items.
func DynamoDB(emulator http.Handler) *httptest.Server {
	return httptest.NewServer(DynamoDBHandler(emulator))
}

// DynamoDBHandler returns the handler of the server of [DynamoDB].
func DynamoDBHandler(emulator http.Handler) http.Handler { return &dynamoDB{emulator: emulator} }

type dynamoDB struct {
	mu       sync.Mutex
	emulator http.Handler
}

// ServeHTTP implements [http.Handler].
func (d *dynamoDB) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // an incomplete request has no effect
	}
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	status, answer := d.handleCall(call, request)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	sum := crc32.ChecksumIEEE(answer)
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(sum), 10)) // the SDK logs a warning without the checksum
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// handleCall runs a call of the API, one call at a time.
func (d *dynamoDB) handleCall(call string, request []byte) (status int, answer []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(call, "TimeToLive") {
		return http.StatusOK, []byte(`{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}`)
	}
	reply := d.askEmulator(call, request)
	if call == "UpdateItem" && reply.Code == http.StatusOK {
		d.removeAttributes(request)
	}
	return reply.Code, reply.Body.Bytes()
}

// askEmulator sends a call to the emulator.
func (d *dynamoDB) askEmulator(call string, request []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(request))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+call)
	w := httptest.NewRecorder()
	d.emulator.ServeHTTP(w, r)
	return w
}

// removeAttributes removes the attributes named by the REMOVE of an update.
func (d *dynamoDB) removeAttributes(update []byte) {
	type attributes map[string]any
	var asked struct {
		TableName, UpdateExpression string
		Key                         attributes
	}
	_ = json.Unmarshal(update, &asked)
	_, names, found := strings.Cut(asked.UpdateExpression, " REMOVE ")
	if !found {
		return
	}
	get, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Key": asked.Key})
	var got struct{ Item attributes }
	_ = json.Unmarshal(d.askEmulator("GetItem", get).Body.Bytes(), &got)
	for name := range strings.SplitSeq(names, ", ") {
		delete(got.Item, name)
	}
	put, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Item": got.Item})
	d.askEmulator("PutItem", put)
}
