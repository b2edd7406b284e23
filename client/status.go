package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ErrNoStatusURL is returned by [Transport.AskStatus] for an answer without an address to ask at.
var ErrNoStatusURL = errors.New("idempotency: the answer has no address to ask at")

// KeyStatus is what a server tells about a key. Unknown times are zero.
type KeyStatus struct {
	// State tells what the same request with the same key would get: the handler's answer ("never-seen", "unfinished"),
	// the stored answer ("done"), or a refusal ("running", "not-kept", "outcome-unknown").
	State string `json:"state"`

	// Instance identifies the operation, as in problems and logs of the server.
	Instance string `json:"instance"`

	// Status is the status code of the answer if the operation is completed, and zero otherwise.
	Status int `json:"status"`

	Began     time.Time `json:"began"`     // of the first attempt
	Completed time.Time `json:"completed"` // of the operation
	KeptUntil time.Time `json:"keptUntil"` // the server knows the key until then
}

// AskStatus asks the server what became of the operation that resp is about. A refusal such as outcome-unknown or
// not-replayable has the member statusUrl for this purpose. The question is a GET request with the header of resp.Request,
// so with the same key and credentials, and changes nothing at the server. Transport retries the question as it retries
// other requests, within ctx.
//
// AskStatus reads the problem in the body of resp, and the caller can read the body from its start afterwards. The caller
// still has to close the body. AskStatus returns these errors:
//
//   - [ErrNoStatusURL], wrapped: resp is no problem with a statusUrl, its body was read before or takes longer than a
//     second, which closes the body, or the statusUrl has another host or scheme than the request.
//   - [*Error], wrapped: there is no answer to the question.
//   - Another error: the status of the answer is not 200, or its body is no JSON of the expected form.
func (t *Transport) AskStatus(ctx context.Context, resp *http.Response) (KeyStatus, error) {
	address, err := findStatusURL(resp)
	if err != nil {
		return KeyStatus{}, err
	}
	question, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return KeyStatus{}, err
	}
	question.Host = resp.Request.Host
	for name, values := range resp.Request.Header {
		// Fields about the body stay away, and net/http only decompresses an answer if it has asked for that itself.
		if !strings.HasPrefix(name, "Content-") && name != "Expect" && name != "Accept-Encoding" {
			question.Header[name] = values
		}
	}
	answer, err := t.RoundTrip(question)
	if err != nil {
		return KeyStatus{}, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return KeyStatus{}, fmt.Errorf("idempotency: the question was answered with status %d", answer.StatusCode)
	}
	var status KeyStatus
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxProblemBody)).Decode(&status); err != nil {
		return KeyStatus{}, fmt.Errorf("idempotency: the answer to the question cannot be read: %w", err)
	}
	return status, nil
}

// findStatusURL returns the statusUrl of resp, resolved against the URL of the request.
func findStatusURL(resp *http.Response) (*url.URL, error) {
	var problem struct{ StatusURL string }
	if err := json.Unmarshal(peekProblem(resp), &problem); err != nil || problem.StatusURL == "" || resp.Request == nil {
		return nil, ErrNoStatusURL
	}
	asked := resp.Request.URL
	address, err := asked.Parse(problem.StatusURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoStatusURL, err)
	}
	if address.Scheme != asked.Scheme || !strings.EqualFold(address.Host, asked.Host) {
		return nil, fmt.Errorf("%w: key and credentials must not go to %s://%s", ErrNoStatusURL, address.Scheme, address.Host)
	}
	return address, nil
}
