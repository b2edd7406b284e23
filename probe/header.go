package probe

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// messageFields are header fields of a single message or connection. Their values may differ in a replay: fields of RFC 9110
// and 9112, tracing, rate limits, and fields of proxies. Set-Cookie belongs to the session of a client.
var messageFields = []string{
	"Age", "Alt-Svc", "Connection", "Content-Length", "Date", "Expires", "Keep-Alive", "Server-Timing", "Set-Cookie",
	"Transfer-Encoding", "Via",
	"Correlation-Id", "Request-Id", "X-Correlation-Id", "X-Request-Id", "X-Amzn-Requestid", "X-Amzn-Trace-Id", "X-Trace-Id",
	"Traceparent", "Tracestate", "X-B3-Traceid", "X-Response-Time", "X-Runtime", "Cf-Ray", "Report-To", "Nel",
	"X-Process-Time", "X-Served-By", "X-Timer", "X-Amz-Cf-Id", "X-Amz-Cf-Pop", "X-Cloud-Trace-Context", "X-Ms-Request-Id",
	"X-Envoy-Upstream-Service-Time", "X-Kong-Request-Id", "X-Kong-Proxy-Latency", "X-Kong-Upstream-Latency",
	"Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset",
	"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Used",
}

// compareHeaders returns the name of the marker, or "none", and the first forbidden difference between the headers. A marker
// is a field whose name tells of a replay, and whose value differs.
func (t *trial) compareHeaders(first, replay http.Header) (marker, difference string) {
	marker = "none"
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(sortedNames(first), sortedNames(replay)))))
	for _, name := range names {
		isEqual := slices.Equal(first[name], replay[name])
		switch {
		case slices.Contains(messageFields, name), slices.ContainsFunc(t.service.Varies, equalName(name)):
		case isMarker(name):
			if !isEqual {
				marker = name
			}
		case !isEqual && difference == "":
			difference = fmt.Sprintf("%s is %q at first, and %q in the replay", name, first[name], replay[name])
		}
	}
	return marker, difference
}

func equalName(name string) func(string) bool {
	return func(other string) bool { return strings.EqualFold(name, other) }
}

// isMarker reports whether the name of a header field tells of a replay. The words are from the names of known services.
func isMarker(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"replay", "idempoten", "cache", "duplicate"} {
		if strings.Contains(name, part) && name != "cache-control" {
			return true
		}
	}
	return false
}

// problem is a problem of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
}

// parseProblem returns the problem in an answer.
func parseProblem(header http.Header, body []byte) (problem, bool) {
	var parsed problem
	mediaType, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || mediaType != "application/problem+json" {
		return problem{}, false
	}
	return parsed, json.Unmarshal(body, &parsed) == nil
}
