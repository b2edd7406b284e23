package probe

// The sources of the demands.
const (
	sourceDraft   = "draft-ietf-httpapi-idempotency-key-header-07"
	sourceStripe  = "Stripe's API reference, Idempotent requests"
	sourceRFC9110 = "RFC 9110"
	sourceSense   = "common sense"
)

// decisionNames are the names that Service.Decided may have.
var decisionNames = []string{
	"marker", "while-running", "other-content", "other-route", "other-user", "after-death",
	"key-missing", "key-empty", "key-too-long", "key-twice", "key-not-ascii", "key-quoted",
	"incomplete-request", "invalid-request", "failed-request", "large-body", "chunked-body", "compressed-body",
}

// allChecks returns the checks in the order of a run: cheap checks first, deaths last.
func allChecks() []checkRun {
	return []checkRun{
		{runCheck: checkReplay, Check: Check{Name: "replay",
			Demands: "The same request again gets the same status, header and body, and the service acts once.",
			Source:  sourceDraft + ", section 2.6; " + sourceStripe}},
		{runCheck: checkReplayLater, Check: Check{Name: "replay-later",
			Demands: "The same request gets the same answer a second later.",
			Source:  sourceDraft + ", section 2.3"}},
		{runCheck: checkReplayElsewhere, needs: "URLs[1]", Check: Check{Name: "replay-elsewhere",
			Demands: "Another instance of the service gives the same answer, and does not act again.",
			Source:  sourceSense + ": a load balancer sends a retry anywhere"}},
		{runCheck: checkReplayAfterRestart, needs: "Kill", Check: Check{Name: "replay-after-restart",
			Demands: "The same request gets the same answer after the service was killed and started again.",
			Source:  sourceSense + ": clients retry because a server has died"}},
		{runCheck: checkAtOnce(2), Check: Check{Name: "at-once-2",
			Demands: "Of 2 equal requests at once, one is executed, and both get its answer in the end.",
			Source:  sourceDraft + ", section 2.6"}},
		{runCheck: checkAtOnce(20), Check: Check{Name: "at-once-20",
			Demands: "Of 20 equal requests at once, one is executed, and all get its answer in the end.",
			Source:  sourceDraft + ", section 2.6"}},
		{runCheck: checkAtOnce(100), Check: Check{Name: "at-once-100",
			Demands: "Of 100 equal requests at once, one is executed, and all get its answer in the end.",
			Source:  sourceDraft + ", section 2.6"}},
		{runCheck: checkWhileRunning, Check: Check{Name: "while-running",
			Demands: "A retry while the first request runs waits or is refused, for as long as the first request runs.",
			Source:  sourceDraft + ", section 2.6"}},
		{runCheck: checkCutRequest, Check: Check{Name: "cut-request",
			Demands: "If the connection breaks during the request, a retry gets an answer, and the service acts once.",
			Source:  "RFC 9112, section 8"}},
		{runCheck: checkCutAfterRequest, Check: Check{Name: "cut-after-request",
			Demands: "If the connection breaks after the request, a retry gets the answer, and the service acts once.",
			Source:  sourceRFC9110 + ", section 9.2.2: clients retry when they cannot read the answer"}},
		{runCheck: checkCutAnswer, Check: Check{Name: "cut-answer",
			Demands: "If the connection breaks during the answer, a retry gets the answer, and the service acts once.",
			Source:  sourceRFC9110 + ", section 9.2.2"}},
		{runCheck: checkClientTimeout, Check: Check{Name: "client-timeout",
			Demands: "If the client gives up, a retry gets the answer, and the service acts once.",
			Source:  sourceStripe}},
		{runCheck: checkOtherContent, needs: "Other", Check: Check{Name: "other-content",
			Demands: "Another content with the same key never gets the first answer.",
			Source:  sourceDraft + ", section 2.7; " + sourceStripe}},
		{runCheck: checkOtherContentAtOnce, needs: "Other", Check: Check{Name: "other-content-at-once",
			Demands: "Of two contents with one key at once, neither gets the answer of the other.",
			Source:  sourceDraft + ", section 2.7"}},
		{runCheck: checkOtherRoute, needs: "OtherRoute", Check: Check{Name: "other-route",
			Demands: "Another path or method with the same key never gets the first answer.",
			Source:  sourceSense + ": the key names one operation"}},
		{runCheck: checkOtherUser, needs: "As", Check: Check{Name: "other-user",
			Demands: "Another user with the same key never gets the first answer.",
			Source:  sourceDraft + ", section 5: a key must not give access to the answer of another client"}},
		{runCheck: checkKeyMissing, Check: Check{Name: "key-missing",
			Demands: "A request without a key is executed, or refused with a 4xx.",
			Source:  sourceDraft + ", section 2.7"}},
		{runCheck: checkKeyEmpty, Check: Check{Name: "key-empty",
			Demands: "An empty key is refused with a 4xx, or counts as no key.",
			Source:  sourceDraft + ", section 2.1"}},
		{runCheck: checkKeyTooLong, Check: Check{Name: "key-too-long",
			Demands: "Two keys of 5,000 characters that differ at the end are refused with a 4xx, or are two keys.",
			Source:  sourceStripe + ": up to 255 characters"}},
		{runCheck: checkKeyTwice, Check: Check{Name: "key-twice",
			Demands: "A request with two keys is refused with a 4xx, or its retry is not executed.",
			Source:  sourceRFC9110 + ", section 5.3"}},
		{runCheck: checkKeyNotASCII, Check: Check{Name: "key-not-ascii",
			Demands: "A key that is not ASCII is refused with a 4xx, or its retry is not executed.",
			Source:  "RFC 9651, section 3.3.3"}},
		{runCheck: checkKeyCase, Check: Check{Name: "key-case",
			Demands: "Keys that differ in upper and lower case are two keys.",
			Source:  "RFC 9651, section 3.3.3: strings are compared by character"}},
		{runCheck: checkKeyQuoted, Check: Check{Name: "key-quoted",
			Demands: `The forms "key" and key are one key or two keys, or one form is refused.`,
			Source:  sourceDraft + ", section 2.1"}},
		{runCheck: checkInvalidRequest, needs: "Invalid", Check: Check{Name: "invalid-request",
			Demands: "After a refusal with a 4xx the key is free, or the refusal is kept: the same each time.",
			Source:  sourceStripe}},
		{runCheck: checkFailedRequest, needs: "Failing", Check: Check{Name: "failed-request",
			Demands: "After a failure with a 5xx or 429 the key is free, or the failure is kept, and the service acts at most once.",
			Source:  sourceDraft + ", section 2.6; " + sourceStripe}},
		{runCheck: checkLargeBody, Check: Check{Name: "large-body",
			Demands: "A request of a megabyte is executed once and replayed, or refused with a 4xx.",
			Source:  sourceSense}},
		{runCheck: checkChunkedBody, Check: Check{Name: "chunked-body",
			Demands: "The same request without a Content-Length is the same request.",
			Source:  "RFC 9112, section 7.1"}},
		{runCheck: checkCompressedBody, Check: Check{Name: "compressed-body",
			Demands: "A compressed request is executed once and replayed, or refused with a 4xx.",
			Source:  sourceRFC9110 + ", section 8.4"}},
		{runCheck: checkCompressedAnswer, Check: Check{Name: "compressed-answer",
			Demands: "A retry that accepts no compression gets an answer that it can read.",
			Source:  sourceRFC9110 + ", section 12.5.3"}},
		{runCheck: checkHTTP2, Check: Check{Name: "http2",
			Demands: "A retry over HTTP/2 gets the answer of a request over HTTP/1.1.",
			Source:  sourceRFC9110 + ", section 3.5"}},
		{runCheck: checkStream, needs: "Stream", Check: Check{Name: "stream",
			Demands: "A streamed answer is replayed as a whole, also after the connection broke in the middle.",
			Source:  sourceSense}},
		{runCheck: checkDeaths, needs: "Kill", Check: Check{Name: "deaths",
			Demands: "If the process is killed at any instant, the service acts once or says that it does not know, and frees the key.",
			Source:  sourceSense + ": processes die"}},
		{runCheck: checkTold, Check: Check{Name: "told",
			Demands: "The refusals are compared with the draft. This check only informs.",
			Source:  sourceDraft}},
	}
}

// findMissingField returns the name of the field of s that is missing for the check, or "".
func (c *checkRun) findMissingField(s *Service) string {
	isSet := map[string]bool{
		"":           true,
		"URLs[1]":    len(s.URLs) > 1,
		"Kill":       s.Kill != nil,
		"Other":      s.Other != nil,
		"OtherRoute": s.OtherRoute != nil,
		"As":         s.As != nil,
		"Invalid":    s.Invalid != nil,
		"Failing":    s.Failing != nil,
		"Stream":     s.Stream != nil,
	}
	if isSet[c.needs] {
		return ""
	}
	return c.needs
}
