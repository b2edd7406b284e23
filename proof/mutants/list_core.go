package main

var ofRunner = []mutant{{
	name: "fingerprint-not-compared", broken: "Another request with the key gets the stored answer.",
	file: "admission.go",
	from: "	case record.Fingerprint != fp:\n		return ErrKeyReused\n",
	to:   "",
	test: "TestKeyOfAnotherRequestIsRefusedAsReused",
}, {
	name: "refuse-takes-over", broken: "An abandoned operation is executed again although the policy is Refuse.",
	file: "admission.go",
	from: "TakeOver: r.opts.Abandoned == ReExecute,",
	to:   "TakeOver: true,",
	test: "TestCrashedAttemptIsNeverRepeatedIfAbandonedIsRefuse",
}, {
	name: "context-not-detached", broken: "When the client hangs up, the handler and the steps of the store are cancelled.",
	file: "admission.go",
	from: "		r.detachedCtx = context.WithoutCancel(r.ctx)",
	to:   "		r.detachedCtx = r.ctx",
	test: "TestDoGoesOnWhenItsCallerGivesUp",
}, {
	name: "panic-recorded-as-success", broken: "A handler that panics leaves an empty answer, which is replayed.",
	file: "attempt.go",
	from: "recordAction: actionAbandon, notStoredCause: errInterrupted}",
	to:   "recordAction: actionComplete, storedResponse: Response{Status: 200}}",
	test: "TestPanicReleasesTheClaimAndGoesOnUnchanged",
}, {
	name: "freed-after-a-failure", broken: "An attempt that has done nothing frees the key although an earlier one may have done something.",
	file: "settlement.go",
	from: "	if s.record.Attempt == 1 && !s.mayHaveStoredSteps() {\n",
	to:   "	if !s.mayHaveStoredSteps() {\n",
	test: "TestFreedKey",
}, {
	name: "late-answer-forgotten", broken: "An answer that the store did not take in time is never stored.",
	file: "settlement.go",
	from: "		s.completeInBackground()\n",
	to:   "",
	test: "TestAnswerIsStoredWhenTheStoreIsBack",
}, {
	name: "unknown-claim-not-released", broken: "A claim whose reply was lost blocks the key for a lease.",
	file: "admission.go",
	from: "			s.releaseInBackground()\n",
	to:   "",
	test: "TestClaimWhoseReplyWasLostIsReleased",
}, {
	name: "fail-open-beyond-the-quota", broken: "FailOpen runs handlers unprotected for a user who has reached a quota.",
	file: "admission.go",
	from: "!errors.Is(err, ErrUserQuota) && !errors.Is(err, ErrStoreFull) &&",
	to:   "!errors.Is(err, ErrStoreFull) &&",
	test: "TestUserQuotaThroughTheMiddleware",
}, {
	name: "operation-id-random", broken: "Each attempt has an ID of its own: a provider that gets DownstreamKey charges for each.",
	file: "operation.go",
	from: "ID: op.key.OperationID(), Attempt: op.attemptNumber, Fingerprint",
	to:   "ID: uuid.New(), Attempt: op.attemptNumber, Fingerprint",
	test: "TestMemoryStoreConforms/store/identity",
}}

var ofLeases = []mutant{{
	name: "lease-never-renewed", broken: "Nobody renews the lease of a handler that takes long.",
	file: "attempt.go",
	from: "	s.lease.startRenewals(s.requestedAt)\n",
	to:   "",
	test: "TestLeaseIsRenewedWhileTheHandlerRuns",
}, {
	name: "lost-lease-not-told", broken: "A handler goes on although the store says that its claim is lost.",
	file: "attempt.go",
	from: "		case errors.Is(err, ErrClaimLost):\n			l.loseClaim()\n",
	to:   "		case errors.Is(err, ErrClaimLost):\n",
	test: "TestHandlerIsCancelledWhenItsLeaseIsLost",
}, {
	name: "late-lease-not-told", broken: "A handler goes on beyond its lease while the store does not answer.",
	file: "attempt.go",
	from: "	defer alarm.Stop()\n",
	to:   "	alarm.Stop()\n",
	test: "TestAttemptIsCancelledBeforeATakeover",
}, {
	name: "renewal-after-the-completion", broken: "If a renewal ends after the completion, another one follows.",
	file: "attempt.go",
	from: "	l.renewTimer.Stop()\n	l.renewTimer = nil\n",
	to:   "	l.renewTimer.Stop()\n",
	test: "TestRenewalThatEndsAfterTheCompletionIsTheLast",
}, {
	name: "renewal-after-a-slow-claim", broken: "A claim that the store granted slowly is renewed late.",
	file: "attempt.go",
	from: "time.AfterFunc(time.Until(requestedAt.Add(l.renewInterval)), l.renewLease)",
	to:   "time.AfterFunc(l.renewInterval, l.renewLease)",
	test: "TestLateLeaseIsRenewedInTime",
}}

// explorer is the package that runs every execution.
const explorer = "./proof/guarantees/explore"

var ofMiddleware = []mutant{{
	name: "header-not-copied", broken: "The handler's header goes to the connection at once, and is sent even if the answer is not.",
	file: "recorder.go",
	from: "		w.handlerHeader = outer.Clone()\n",
	to:   "		w.handlerHeader = outer\n",
	test: "TestHeaderOfAPanickedHandlerIsTakenBack",
}, {
	name: "sent-before-stored", broken: "The answer goes out before the store has it.",
	file: "middleware.go",
	from: "	e.overflowSettler.answerJudge.judgeAnswer(outcome, verdict)\n",
	to:   "	e.answerRecorder.startSending()\n	_ = http.NewResponseController(e.w).Flush()\n	e.overflowSettler.answerJudge.judgeAnswer(outcome, verdict)\n",
	test: "TestNothingIsSentBeforeItIsStored",
}, {
	name: "replay-filter-off", broken: "A replay sends fields that an older record has, and that must not be stored any more.",
	file: "middleware.go",
	from: "	e.middleware.unstoredFields.filterResponse(replay).sendAsReplay(e.w)\n",
	to:   "	replay.sendAsReplay(e.w)\n",
	test: "TestOmittedFieldOfAnOlderRecord",
}, {
	name: "5xx-stored", broken: "A 5xx completes the operation, and is replayed.",
	file: "operation.go",
	from: "	return resp.Status < 500 && !failedCallMayPass(resp)",
	to:   "	return !failedCallMayPass(resp)",
	test: "TestAnswerThatIsNotStorableMayBeTriedAgain",
}, {
	name: "goroutine-left-behind-reads", broken: "A goroutine that a handler left behind reads the body of another request.",
	file: "recorder.go",
	from: "	r.unreadBody, r.isClosed = nil, true\n",
	to:   "",
	test: "TestGoroutineLeftBehindTouchesNoOtherRequest",
}, {
	name: "outgrown-and-not-renewed", broken: "An answer outgrows MaxResponse while the store is down, and the lease is not renewed any more.",
	file: "middleware.go", in: explorer,
	from: "	return s.completeRecord()\n}",
	to:   "	defer s.lease.stopRenewals()\n	return s.completeRecord()\n}",
	test: "TestEveryExecutionKeepsThePromises/one answer over the limit/re-execute",
}, {
	name: "outgrown-and-forgotten", broken: "An answer outgrows MaxResponse while the store is down, and the operation is never completed.",
	file: "middleware.go", in: explorer,
	from: "	return s.completeRecord()\n}",
	to:   "	defer func() { s.claimState = claimSettled }()\n	return s.completeRecord()\n}",
	test: "TestEveryExecutionKeepsThePromises/one answer over the limit/refuse",
}, {
	name: "parts-told-twice", broken: "A part that has a name also counts as the rest of the body, so that both are told.",
	file: "fingerprint/parts.go",
	from: "value, remainder = canonical, appendWithout(nil, canonical, []*pointerTree{p.allPointers})",
	to:   "value, remainder = canonical, canonical",
	test: "TestDifferences",
}, {
	name: "reuse-without-fingerprints", broken: "The event of a reused key does not have the fingerprint of the request before.",
	file: "admission.go", in: "./fingerprint",
	from: "&[2]Fingerprint{a.record.Fingerprint, a.fingerprint}",
	to:   "&[2]Fingerprint{a.fingerprint, a.fingerprint}",
	test: "TestDifferencesOfRefusals/memory",
}}

var ofCache = []mutant{{
	name: "cache-outlives-the-store", broken: "The cache replays what has expired in the store.",
	file: "stores/cache/cache.go", in: "./stores/cache",
	from: "dropAt: askedAt.Add(min(record.Remaining, s.opts.MaxAge)),",
	to:   "dropAt: askedAt.Add(s.opts.MaxAge),",
	test: "TestCacheForgets",
}, {
	name: "cache-ignores-fingerprint", broken: "The cache keeps a record that the store has returned to a request with another fingerprint.",
	file: "stores/cache/cache.go", in: "./stores/cache",
	from: "	case record.Response != nil && record.Fingerprint == request.Fingerprint:",
	to:   "	case record.Response != nil:",
	test: "TestCacheJudgesEachRequest",
}}

var ofSeal = []mutant{{
	name: "seal-not-bound-to-the-attempt", broken: "A sealed answer of an earlier attempt can be moved to a later one.",
	file: "stores/seal/key.go", in: "./stores/seal", needs: redis,
	from: "	b = binary.BigEndian.AppendUint64(b, uint64(to.attempt))\n",
	to:   "",
	test: "TestForgedSealedRecords",
}, {
	name: "seal-replays-the-clear", broken: "A sealed store replays an answer that somebody has written in the clear.",
	file: "stores/seal/seal.go", in: "./stores/seal", needs: redis,
	from: "	case s.acceptsPlain:\n",
	to:   "	case s.acceptsPlain || !resp.Omitted:\n",
	test: "TestForgedSealedRecords/answer in the clear",
}}

var ofClient = []mutant{{
	name: "new-key-for-each-attempt", broken: "The client sends each attempt with a key of its own.",
	file: "client/retry.go",
	from: "		attempt := t.cloneWithHeader(req, headerValue)\n",
	to:   "		attempt := t.cloneWithHeader(req, headerValue+strconv.Itoa(n))\n",
	test: "TestLostAnswersTakeEffectOnce",
}, {
	name: "retry-never-ignored", broken: "The client sends again what a problem says never to send again.",
	file: "client/retry.go",
	from: "	if resp != nil && forbidsRetry(resp) {\n",
	to:   "	if false {\n",
	test: "TestTransportObeysTheProblem",
}}
