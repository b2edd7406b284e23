package probe

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
)

// judgeBody sends two forms of the same request. The service may refuse the request with a 4xx.
func (t *trial) judgeBody(decision string, firstForm, secondForm *request) error {
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	first := t.send(firstForm)
	for tries := 1; tries < 3 && first.answer == nil; tries++ {
		first = t.send(firstForm)
	}
	switch {
	case first.answer == nil && first.paddingBytes > 0 && t.ctx.Err() == nil && !errors.Is(first.err, errTooManyRequests):
		return notMade("the service closed the connection before the answer could be read, which may be a refusal: %v", first.err)
	case first.answer == nil || first.answer.status >= http.StatusInternalServerError:
		return t.failOrEnd([]*exchange{first}, "the request got %s", first.describe())
	case !first.answer.isSuccess():
		if err := t.requireEffects(before, 0, first); err != nil {
			return err
		}
		return t.decide(decision, statusText(first), first)
	}
	second := t.send(secondForm)
	if err := t.requireReplay(first, second); err != nil {
		return err
	}
	if err := t.requireEffects(before, 1, first, second); err != nil {
		return err
	}
	return t.decide(decision, "executed", first, second)
}

// checkLargeBody puts a megabyte of spaces before a JSON body. Spaces before a JSON text have no meaning (RFC 8259, section 2).
// With Service.Other, two large contents differ at their end.
func checkLargeBody(t *trial) error {
	r, key, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	mediaType, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	if mediaType != "application/json" && !strings.HasSuffix(mediaType, "+json") {
		return notMade("the body of Service.Request is not JSON, so the probe cannot make it larger")
	}
	r.addPadding()
	if err := t.judgeBody("large-body", r, r); err != nil || t.known.decisions["large-body"] != "executed" {
		return err
	}
	if t.service.Other == nil || t.known.failedChecks["other-content"] { // which finds a service that compares no contents
		return nil
	}
	other, err := t.service.newRequest(t.service.Other, key)
	if err != nil || other.isSameOperation(r) || len(other.body) == 0 {
		return err
	}
	other.addPadding()
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	first, made := t.send(r), t.send(other)
	if first.answer == nil {
		return t.failOrEnd([]*exchange{first}, "the retry got %s", first.describe())
	}
	differing := stray{decisionName: "other-content", senderText: "a large content that differs at its end"}
	return t.judgeStray(differing, first, made, before)
}

// addPadding puts a megabyte of spaces before the body.
func (r *request) addPadding() {
	const megabyte = 1 << 20
	r.body = append(bytes.Repeat([]byte(" "), megabyte), r.body...)
	r.paddingBytes = megabyte
}

func checkChunkedBody(t *trial) error {
	r, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	if len(r.body) == 0 {
		return notMade("Service.Request has no body")
	}
	chunked := r.clone()
	chunked.isChunked = true
	return t.judgeBody("chunked-body", chunked, r)
}

// checkCompressedBody compresses the body. Services that do not know gzip must refuse it with 415, and most answer 400.
func checkCompressedBody(t *trial) error {
	r, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	if len(r.body) == 0 {
		return notMade("Service.Request has no body")
	}
	if r.header.Get("Content-Encoding") != "" {
		return notMade("the body of Service.Request is compressed already")
	}
	r.body = compress(r.body)
	r.header.Set("Content-Encoding", "gzip")
	return t.judgeBody("compressed-body", r, r)
}

func compress(data []byte) []byte {
	var compressed bytes.Buffer
	writer := gzip.NewWriter(&compressed)
	_, _ = writer.Write(data) // a bytes.Buffer returns no error
	_ = writer.Close()
	return compressed.Bytes()
}

// checkCompressedAnswer accepts gzip at first, and no coding at the retry.
func checkCompressedAnswer(t *trial) error {
	r, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	accepting, refusing := r.clone(), r.clone()
	accepting.header.Set("Accept-Encoding", "gzip")
	refusing.header.Set("Accept-Encoding", "identity")
	first, err := t.execute(accepting)
	if err != nil {
		return err
	}
	second := t.send(refusing)
	both := []*exchange{first, second}
	switch {
	case second.answer == nil || second.answer.status != first.answer.status:
		return t.failOrEnd(both, "the retry got %s, and the first request %s", second.describe(), first.describe())
	case second.answer.header.Get("Content-Encoding") != "" && t.compressesAlways(refusing):
		return notMade("the service compresses every answer, also for clients that accept no compression")
	case second.answer.header.Get("Content-Encoding") != "":
		return fail(both, "the retry accepts no compression, and got Content-Encoding: %s", second.answer.header.Get("Content-Encoding"))
	}
	content, err := decodeBody(first.answer)
	if err != nil {
		return fail(both, "the first answer is not what its Content-Encoding says: %v", err)
	}
	if !bytes.Equal(content, second.answer.body) {
		return fail(both, "the retry got another content")
	}
	if first.answer.header.Get("Content-Encoding") == "" {
		t.note("the service compressed no answer")
	}
	return nil
}

// compressesAlways reports whether the service compresses the answer to a first request that accepts no compression.
func (t *trial) compressesAlways(refusing *request) bool {
	r, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return false
	}
	r.header.Set("Accept-Encoding", refusing.header.Get("Accept-Encoding"))
	made := t.send(r)
	return made.answer != nil && made.answer.header.Get("Content-Encoding") != ""
}

// decodeBody returns the body of an answer without compression.
func decodeBody(got *answer) ([]byte, error) {
	if got.header.Get("Content-Encoding") != "gzip" {
		return got.body, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(got.body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

func checkHTTP2(t *trial) error {
	r, first, before, err := t.executeCounted()
	if err != nil {
		return err
	}
	second := t.sendWith(t.client.http2Transport, 0, r)
	switch {
	case errors.Is(second.err, errTooManyRequests):
		return second.err
	case second.answer == nil:
		return notMade("the service does not speak HTTP/2")
	}
	if err := t.requireReplay(first, second); err != nil {
		return err
	}
	return t.requireEffects(before, 1, first, second)
}

func checkStream(t *trial) error {
	r, before, err := t.newCountedRequest(t.service.Stream)
	if err != nil {
		return err
	}
	first, err := t.execute(r)
	if err != nil {
		return err
	}
	effectsOfOne, _, err := t.effectsSince(before) // a stream may have no effect
	if err != nil {
		return err
	}
	replay := t.send(r)
	if err := t.requireReplay(first, replay); err != nil {
		return err
	}
	if err := t.requireEffects(before, effectsOfOne, first, replay); err != nil {
		return err
	}
	cutRequest, before, err := t.newCountedRequest(t.service.Stream)
	if err != nil {
		return err
	}
	cut := t.client.sendAndCut(t.ctx, cutRequest, t.instance(0), cutInAnswer)
	if cut.err != nil {
		return t.failOrEnd([]*exchange{cut}, "the request got %s", cut.describe())
	}
	retry, err := t.retryUntilAnswered(0, cutRequest)
	if err != nil {
		return withExchange(cut, err)
	}
	if len(retry.answer.body) < len(first.answer.body)/2 {
		return fail([]*exchange{first, cut, retry.exchange},
			"the retry got a part of the answer: %d bytes, where another operation got %d",
			len(retry.answer.body), len(first.answer.body))
	}
	again := t.send(cutRequest)
	if err := t.requireSameAnswer(retry.exchange, again); err != nil {
		return err
	}
	return t.requireEffects(before, effectsOfOne, cut, retry.exchange, again)
}
