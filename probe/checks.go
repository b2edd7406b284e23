package probe

// Who demands what.
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
	"invalid-request", "failed-request", "large-body", "chunked-body", "compressed-body",
}

// allChecks returns the checks in the order in which they are made: the cheap ones first, the deaths last.
func allChecks() []checkRun {
	return []checkRun{
		{Check{"replay", "The same request again gets the same status, header and body, and the service acts once.",
			sourceDraft + ", section 2.6; " + sourceStripe}, lacksNothing, checkReplay},
		{Check{"replay-later", "The same request gets the same answer a second later.", sourceDraft + ", section 2.3"}, lacksNothing, checkReplayLater},
		{Check{"replay-elsewhere", "Another instance of the service gives the same answer, and does not act again.",
			sourceSense + ": a load balancer sends a retry anywhere"}, lacksInstances, checkReplayElsewhere},
		{Check{"replay-after-restart", "The same request gets the same answer after the service was killed and started again.",
			sourceSense + ": clients retry because a server has died"}, lacksKill, checkReplayAfterRestart},

		{Check{"at-once-2", "Of 2 equal requests at once, one is executed, and both get its answer in the end.", sourceDraft + ", section 2.6"},
			lacksNothing, checkAtOnce(2)},
		{Check{"at-once-20", "Of 20 equal requests at once, one is executed, and all get its answer in the end.", sourceDraft + ", section 2.6"},
			lacksNothing, checkAtOnce(20)},
		{Check{"at-once-100", "Of 100 equal requests at once, one is executed, and all get its answer in the end.", sourceDraft + ", section 2.6"},
			lacksNothing, checkAtOnce(100)},
		{Check{"while-running", "A retry while the first request runs waits or is refused, for as long as the first request runs.",
			sourceDraft + ", section 2.6"}, lacksNothing, checkWhileRunning},

		{Check{"cut-request", "A request that breaks off has no effect, and does not block its key.", "RFC 9112, section 8"}, lacksNothing, checkCutRequest},
		{Check{"cut-after-request", "If the connection breaks after the request, a retry gets the answer, and the service acts once.",
			sourceRFC9110 + ", section 9.2.2: clients retry when they cannot read the answer"}, lacksNothing, checkCutAfterRequest},
		{Check{"cut-answer", "If the connection breaks during the answer, a retry gets the answer, and the service acts once.",
			sourceRFC9110 + ", section 9.2.2"}, lacksNothing, checkCutAnswer},
		{Check{"client-timeout", "If the client gives up, a retry gets the answer, and the service acts once.", sourceStripe}, lacksNothing, checkClientTimeout},

		{Check{"other-content", "Another content with the same key never gets the first answer.", sourceDraft + ", section 2.7; " + sourceStripe},
			lacksField("Other", func(s *Service) bool { return s.Other == nil }), checkOtherContent},
		{Check{"other-content-at-once", "Of two contents with one key at once, neither gets the answer of the other.", sourceDraft + ", section 2.7"},
			lacksField("Other", func(s *Service) bool { return s.Other == nil }), checkOtherContentAtOnce},
		{Check{"other-route", "Another path or method with the same key never gets the first answer.", sourceSense + ": the key names one operation"},
			lacksField("OtherRoute", func(s *Service) bool { return s.OtherRoute == nil }), checkOtherRoute},
		{Check{"other-user", "Another user with the same key never gets the first answer.",
			sourceDraft + ", section 5: a key must not give access to the answer of another client"},
			lacksField("As", func(s *Service) bool { return s.As == nil }), checkOtherUser},

		{Check{"key-missing", "A request without a key is executed, or refused with a 4xx.", sourceDraft + ", section 2.7"}, lacksNothing, checkKeyMissing},
		{Check{"key-empty", "An empty key is refused with a 4xx, or is as good as none.", sourceDraft + ", section 2.1"}, lacksNothing, checkKeyEmpty},
		{Check{"key-too-long", "Two keys of 5,000 characters are refused with a 4xx, or are two keys.", sourceStripe + ": up to 255 characters"},
			lacksNothing, checkKeyTooLong},
		{Check{"key-twice", "A request with two keys is refused with a 4xx, or its retry is not executed.", sourceRFC9110 + ", section 5.3"},
			lacksNothing, checkKeyTwice},
		{Check{"key-not-ascii", "A key that is not ASCII is refused with a 4xx, or its retry is not executed.", "RFC 9651, section 3.3.3"},
			lacksNothing, checkKeyNotASCII},
		{Check{"key-case", "Keys that differ in upper and lower case are two keys.", "RFC 9651, section 3.3.3: strings are compared by character"},
			lacksNothing, checkKeyCase},
		{Check{"key-quoted", `"key" and key are one key, two keys, or one form is refused; each form replays.`, sourceDraft + ", section 2.1"},
			lacksNothing, checkKeyQuoted},

		{Check{"invalid-request", "After a refusal with a 4xx the key is free, or the refusal is kept: the same each time.", sourceStripe},
			lacksField("Invalid", func(s *Service) bool { return s.Invalid == nil }), checkInvalidRequest},
		{Check{"failed-request", "After a failure with a 5xx or 429 the key is free, or the failure is kept: the same each time.",
			sourceDraft + ", section 2.6; " + sourceStripe},
			lacksField("Failing", func(s *Service) bool { return s.Failing == nil }), checkFailedRequest},

		{Check{"large-body", "A request of a megabyte is executed once and replayed, or refused with a 4xx.", sourceSense}, lacksNothing, checkLargeBody},
		{Check{"chunked-body", "The same request without a Content-Length is the same request.", "RFC 9112, section 7.1"}, lacksNothing, checkChunkedBody},
		{Check{"compressed-body", "A compressed request is executed once and replayed, or refused with a 4xx.", sourceRFC9110 + ", section 8.4"},
			lacksNothing, checkCompressedBody},
		{Check{"compressed-answer", "A retry that accepts no compression gets an answer that it can read.", sourceRFC9110 + ", section 12.5.3"},
			lacksNothing, checkCompressedAnswer},
		{Check{"http2", "A retry over HTTP/2 gets the answer of a request over HTTP/1.1.", sourceRFC9110 + ", section 3.5"}, lacksNothing, checkHTTP2},
		{Check{"stream", "A streamed answer is replayed as a whole, also after the connection broke in the middle.", sourceSense},
			lacksField("Stream", func(s *Service) bool { return s.Stream == nil }), checkStream},

		{Check{"deaths", "If the process is killed at any instant, the service acts once, or says that it does not know, and the key is free again in time.",
			sourceSense + ": processes die"}, lacksKill, checkDeaths},

		{Check{"told", "Clients are told what became of a request as the draft says. This check only informs.", sourceDraft}, lacksNothing, checkTold},
	}
}

func lacksNothing(*Service) string { return "" }

func lacksField(name string, isMissing func(*Service) bool) func(*Service) string {
	return func(s *Service) string {
		if isMissing(s) {
			return name
		}
		return ""
	}
}

func lacksInstances(s *Service) string {
	if len(s.URLs) < 2 {
		return "URLs[1]"
	}
	return ""
}

func lacksKill(s *Service) string {
	if s.Kill == nil {
		return "Kill"
	}
	return ""
}
