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

// DynamoDB serves an emulator of DynamoDB on loopback, until it is closed. The emulator is server.NewServer of
// github.com/truora/minidyn, which is no dependency of this module. What that leaves out is done here: it does one thing at
// a time, removes what REMOVE of an update names, and says of Time to Live that it is off, as nothing is ever deleted.
func DynamoDB(emulator http.Handler) *httptest.Server {
	return httptest.NewServer(DynamoDBHandler(emulator))
}

// DynamoDBHandler is [DynamoDB] without a network.
func DynamoDBHandler(emulator http.Handler) http.Handler { return &dynamoDB{emulator: emulator} }

type dynamoDB struct {
	mu       sync.Mutex
	emulator http.Handler
}

// ServeHTTP implements [http.Handler].
func (d *dynamoDB) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // a request that is cut has no effect
	}
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	status, answer := d.work(call, request)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(answer)), 10)) // the SDK warns without
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// work does one thing at a time.
func (d *dynamoDB) work(call string, request []byte) (status int, answer []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if strings.HasSuffix(call, "TimeToLive") {
		return http.StatusOK, []byte(`{"TimeToLiveDescription":{"TimeToLiveStatus":"DISABLED"}}`)
	}
	reply := d.ask(call, request)
	if call == "UpdateItem" && reply.Code == http.StatusOK {
		d.remove(request)
	}
	return reply.Code, reply.Body.Bytes()
}

// ask asks the emulator.
func (d *dynamoDB) ask(call string, request []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(request))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+call)
	w := httptest.NewRecorder()
	d.emulator.ServeHTTP(w, r)
	return w
}

// remove does what REMOVE of an update says.
func (d *dynamoDB) remove(update []byte) {
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
	_ = json.Unmarshal(d.ask("GetItem", get).Body.Bytes(), &got)
	for name := range strings.SplitSeq(names, ", ") {
		delete(got.Item, name)
	}
	put, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Item": got.Item})
	d.ask("PutItem", put)
}
