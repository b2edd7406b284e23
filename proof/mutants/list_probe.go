package main

// probeMutants has a mutant for each check of package probe: the check finds nothing.
var probeMutants = listProbeMutants()

func listProbeMutants() []mutant {
	var mutants []mutant
	for _, check := range []struct{ name, function string }{
		{"replay", "checkReplay"},
		{"replay-later", "checkReplayLater"},
		{"replay-elsewhere", "checkReplayElsewhere"},
		{"replay-after-restart", "checkReplayAfterRestart"},
		{"at-once-2", "checkAtOnce(2)"},
		{"at-once-20", "checkAtOnce(20)"},
		{"at-once-100", "checkAtOnce(100)"},
		{"while-running", "checkWhileRunning"},
		{"cut-request", "checkCutRequest"},
		{"cut-after-request", "checkCutAfterRequest"},
		{"cut-answer", "checkCutAnswer"},
		{"client-timeout", "checkClientTimeout"},
		{"other-content", "checkOtherContent"},
		{"other-content-at-once", "checkOtherContentAtOnce"},
		{"other-route", "checkOtherRoute"},
		{"other-user", "checkOtherUser"},
		{"key-missing", "checkKeyMissing"},
		{"key-empty", "checkKeyEmpty"},
		{"key-too-long", "checkKeyTooLong"},
		{"key-twice", "checkKeyTwice"},
		{"key-not-ascii", "checkKeyNotASCII"},
		{"key-case", "checkKeyCase"},
		{"key-quoted", "checkKeyQuoted"},
		{"invalid-request", "checkInvalidRequest"},
		{"failed-request", "checkFailedRequest"},
		{"large-body", "checkLargeBody"},
		{"chunked-body", "checkChunkedBody"},
		{"compressed-body", "checkCompressedBody"},
		{"compressed-answer", "checkCompressedAnswer"},
		{"http2", "checkHTTP2"},
		{"stream", "checkStream"},
		{"deaths", "checkDeaths"},
	} {
		mutants = append(mutants, mutant{
			name: "probe-" + check.name, broken: "The check " + check.name + " finds nothing.",
			file: "probe/checks.go",
			from: "{runCheck: " + check.function + ",",
			to:   "{runCheck: func(*trial) error { return nil },",
			test: "TestProbeFindsEachFault/" + check.name,
		})
	}
	return mutants
}
