package probe

import (
	"bytes"
	"compress/gzip"
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
	switch {
	case first.answer == nil || first.answer.status >= http.StatusInternalServerError:
		return t.failOrEnd([]*exchange{first}, "the service answered with %s", first.describe())
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

// checkLargeBody appends a megabyte of spaces to a JSON body. Spaces after a JSON text have no meaning (RFC 8259, section 2).
func checkLargeBody(t *trial) error {
	r, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	mediaType, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	if mediaType != "application/json" && !strings.HasSuffix(mediaType, "+json") {
		return notMade("the body of Service.Request is not JSON, so the probe cannot make it larger")
	}
	const megabyte = 1 << 20
	r.body = append(r.body, bytes.Repeat([]byte(" "), megabyte)...)
	r.paddingBytes = megabyte
	return t.judgeBody("large-body", r, r)
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
	return nil
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
	second := t.client.send(t.ctx, t.client.http2Transport, r, t.instance(0))
	if second.answer == nil {
		return notMade("the service does not speak HTTP/2")
	}
	if err := t.requireReplay(first, second); err != nil {
		return err
	}
	return t.requireEffects(before, 1, first, second)
}

func checkStream(t *trial) error {
	r, _, err := t.newRequest(t.service.Stream)
	if err != nil {
		return err
	}
	first, err := t.execute(r)
	if err != nil {
		return err
	}
	if err := t.requireReplay(first, t.send(r)); err != nil {
		return err
	}
	cutRequest, _, err := t.newRequest(t.service.Stream)
	if err != nil {
		return err
	}
	point := cutPoint{description: "closed the connection after the first byte of the answer", readsFirstByte: true,
		findEnd: func(encoded []byte) int { return len(encoded) }}
	cut := t.client.sendAndCut(t.ctx, cutRequest, t.instance(0), point)
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
	return t.requireSameAnswer(retry.exchange, t.send(cutRequest))
}
