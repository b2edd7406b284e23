package cloud

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

	"github.com/truora/minidyn/server"
)

// dynamoDB is minidyn, with what a store needs beside it.
type dynamoDB struct {
	mu       sync.Mutex
	emulator http.Handler
}

func newDynamoDB() *dynamoDB { return &dynamoDB{emulator: server.NewServer()} }

func (d *dynamoDB) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	status, answer := d.work(call, body)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(answer)), 10))
	w.WriteHeader(status)
	_, _ = w.Write(answer)
}

// work does one thing at a time.
func (d *dynamoDB) work(call string, body []byte) (status int, answer []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if answer, ok := unknown[call]; ok {
		return http.StatusOK, []byte(answer)
	}
	reply := d.ask(call, body)
	if call == "UpdateItem" && reply.Code == http.StatusOK {
		d.remove(body)
	}
	return reply.Code, reply.Body.Bytes()
}

// unknown are the answers to what the emulator does not know.
var unknown = map[string]string{
	"UpdateTimeToLive":   `{}`,
	"DescribeTimeToLive": `{"TimeToLiveDescription": {"AttributeName": "remove_at", "TimeToLiveStatus": "ENABLED"}}`,
}

func (d *dynamoDB) ask(call string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	r.Header.Set("X-Amz-Target", "DynamoDB_20120810."+call)
	w := httptest.NewRecorder()
	d.emulator.ServeHTTP(w, r)
	return w
}

// remove does what REMOVE of an update says. The emulator leaves such attributes where they are.
func (d *dynamoDB) remove(update []byte) {
	var asked struct {
		TableName        string
		Key              json.RawMessage
		UpdateExpression string
	}
	_ = json.Unmarshal(update, &asked)
	_, names, found := strings.Cut(asked.UpdateExpression, " REMOVE ")
	if !found {
		return
	}
	get, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Key": asked.Key})
	var got struct{ Item map[string]json.RawMessage }
	_ = json.Unmarshal(d.ask("GetItem", get).Body.Bytes(), &got)
	for name := range strings.SplitSeq(names, ", ") {
		delete(got.Item, name)
	}
	put, _ := json.Marshal(map[string]any{"TableName": asked.TableName, "Item": got.Item})
	d.ask("PutItem", put)
}
