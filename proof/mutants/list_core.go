package main

var runnerMutants = []mutant{{
	name: "question-of-another-user", broken: "A question tells the state of another user's key.",
	file: "inspect.go",
	from: "		key, err = m.readKey(r, target)\n",
	to:   "		key, err = m.readKey(r, target)\n		key.User = strings.TrimSuffix(key.User, \"'\")\n",
	test: "TestStatusInEveryState",
}, {
	name: "fingerprint-not-compared", broken: "A different request with the key gets the stored answer.",
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
	name: "context-not-detached", broken: "The handler and the steps of the store are cancelled when the client hangs up.",
	file: "admission.go",
	from: "		r.detachedCtx = context.WithoutCancel(r.ctx)",
	to:   "		r.detachedCtx = r.ctx",
	test: "TestDoGoesOnWhenItsCallerGivesUp",
}, {
	name: "panic-recorded-as-success", broken: "A handler's panic stores an empty answer for replays.",
	file: "attempt.go",
	from: "recordAction: actionAbandon, notStoredCause: errInterrupted}",
	to:   "recordAction: actionComplete, storedResponse: Response{Status: 200}}",
	test: "TestPanicReleasesTheClaimAndGoesOnUnchanged",
}, {
	name:   "freed-after-a-failure",
	broken: "An attempt without effects frees the key although an earlier attempt may have had effects.",
	file:   "settlement.go",
	from:   "	if s.record.Attempt == 1 && !s.mayHaveStoredSteps() {\n",
	to:     "	if !s.mayHaveStoredSteps() {\n",
	test:   "TestFreedKey",
}, {
	name: "late-answer-forgotten", broken: "An answer is dropped if the store does not take the answer in time.",
	file: "settlement.go",
	from: "		s.completeInBackground()\n",
	to:   "",
	test: "TestAnswerIsStoredWhenTheStoreIsBack",
}, {
	name: "unknown-claim-not-released", broken: "A claim whose reply was lost blocks the key for the length of a lease.",
	file: "admission.go",
	from: "			s.releaseInBackground()\n",
	to:   "",
	test: "TestClaimWhoseReplyWasLostIsReleased",
}, {
	name: "fail-open-beyond-the-quota", broken: "FailOpen runs handlers unprotected for a user over the quota.",
	file: "admission.go",
	from: "!errors.Is(err, ErrUserQuota) && !errors.Is(err, ErrStoreFull) &&",
	to:   "!errors.Is(err, ErrStoreFull) &&",
	test: "TestUserQuotaThroughTheMiddleware",
}, {
	name:   "operation-id-random",
	broken: "Each attempt has its own ID, so a provider that gets DownstreamKey charges for each attempt.",
	file:   "operation.go",
	from:   "ID: op.key.OperationID(), Attempt: op.attemptNumber, Fingerprint",
	to:     "ID: uuid.New(), Attempt: op.attemptNumber, Fingerprint",
	test:   "TestMemoryStoreConforms/store/identity",
}}

var leaseMutants = []mutant{{
	name: "lease-never-renewed", broken: "The lease of a slow handler is never renewed.",
	file: "attempt.go",
	from: "	s.lease.startRenewals(s.requestedAt)\n",
	to:   "",
	test: "TestLeaseIsRenewedWhileTheHandlerRuns",
}, {
	name: "lost-lease-not-told", broken: "A handler continues although the store has reported the claim as lost.",
	file: "attempt.go",
	from: "		case errors.Is(err, ErrClaimLost):\n			l.loseClaim()\n",
	to:   "		case errors.Is(err, ErrClaimLost):\n",
	test: "TestHandlerIsCancelledWhenItsLeaseIsLost",
}, {
	name: "late-lease-not-told", broken: "A handler continues after the end of its lease while the store does not answer.",
	file: "attempt.go",
	from: "	defer alarm.Stop()\n",
	to:   "	alarm.Stop()\n",
	test: "TestAttemptIsCancelledBeforeATakeover",
}, {
	name: "renewal-after-the-completion", broken: "A renewal that ends after the completion starts another renewal.",
	file: "attempt.go",
	from: "	l.renewTimer.Stop()\n	l.renewTimer = nil\n",
	to:   "	l.renewTimer.Stop()\n",
	test: "TestRenewalThatEndsAfterTheCompletionIsTheLast",
}, {
	name: "renewal-after-a-slow-claim", broken: "The first renewal comes late if the store was slow to grant the claim.",
	file: "attempt.go",
	from: "time.AfterFunc(time.Until(requestedAt.Add(l.renewInterval)), l.renewLease)",
	to:   "time.AfterFunc(l.renewInterval, l.renewLease)",
	test: "TestLateLeaseIsRenewedInTime",
}}

// explorer is the package whose tests run every possible execution of a scenario.
const explorer = "./proof/guarantees/explore"

var middlewareMutants = []mutant{{
	name:   "header-not-copied",
	broken: "The handler writes its header to the connection, so the header is sent even if the answer is not.",
	file:   "recorder.go",
	from:   "		w.handlerHeader = outer.Clone()\n",
	to:     "		w.handlerHeader = outer\n",
	test:   "TestHeaderOfAPanickedHandlerIsTakenBack",
}, {
	name: "sent-before-stored", broken: "The answer is sent before the store has the answer.",
	file: "middleware.go",
	from: "	e.overflowSettler.answerJudge.judgeAnswer(outcome, verdict)\n",
	to:   "	e.answerRecorder.startSending()\n	_ = http.NewResponseController(e.w).Flush()\n	e.overflowSettler.answerJudge.judgeAnswer(outcome, verdict)\n",
	test: "TestNothingIsSentBeforeItIsStored",
}, {
	name: "replay-filter-off", broken: "A replay sends fields of an old record that are no longer storable.",
	file: "middleware.go",
	from: "	e.middleware.unstoredFields.filterResponse(replay).sendAsReplay(e.w)\n",
	to:   "	replay.sendAsReplay(e.w)\n",
	test: "TestOmittedFieldOfAnOlderRecord",
}, {
	name: "5xx-stored", broken: "A 5xx answer completes the operation and is replayed.",
	file: "operation.go",
	from: "	return resp.Status < 500 && !failedCallMayPass(resp)",
	to:   "	return !failedCallMayPass(resp)",
	test: "TestAnswerThatIsNotStorableMayBeTriedAgain",
}, {
	name: "goroutine-left-behind-reads", broken: "A goroutine of an ended handler reads the body of another request.",
	file: "recorder.go",
	from: "	r.unreadBody, r.isClosed = nil, true\n",
	to:   "",
	test: "TestGoroutineLeftBehindTouchesNoOtherRequest",
}, {
	name: "outgrown-and-not-renewed", broken: "Renewals stop when an answer outgrows MaxResponse while the store is down.",
	file: "middleware.go", testPackage: explorer,
	from: "	return s.completeRecord()\n}",
	to:   "	defer s.lease.stopRenewals()\n	return s.completeRecord()\n}",
	test: "TestEveryExecutionKeepsThePromises/one answer over the limit/re-execute",
}, {
	name:   "outgrown-and-forgotten",
	broken: "The operation stays uncompleted when an answer outgrows MaxResponse while the store is down.",
	file:   "middleware.go", testPackage: explorer,
	from: "	return s.completeRecord()\n}",
	to:   "	defer func() { s.claimState = claimSettled }()\n	return s.completeRecord()\n}",
	test: "TestEveryExecutionKeepsThePromises/one answer over the limit/refuse",
}, {
	name: "parts-told-twice", broken: "A named part also counts as the remainder of the body, so a difference is reported twice.",
	file: "fingerprint/parts.go",
	from: "value, remainder = canonical, appendWithout(nil, canonical, []*pointerTree{p.allPointers})",
	to:   "value, remainder = canonical, canonical",
	test: "TestDifferences",
}, {
	name: "reuse-without-fingerprints", broken: "The event of a reused key lacks the fingerprint of the earlier request.",
	file: "admission.go", testPackage: "./fingerprint",
	from: "&[2]Fingerprint{a.record.Fingerprint, a.fingerprint}",
	to:   "&[2]Fingerprint{a.fingerprint, a.fingerprint}",
	test: "TestDifferencesOfRefusals/memory",
}}

var cacheMutants = []mutant{{
	name: "cache-outlives-the-store", broken: "The cache replays records after their expiry in the store.",
	file: "stores/cache/cache.go", testPackage: "./stores/cache",
	from: "dropAt: askedAt.Add(min(record.Remaining, s.opts.MaxAge)),",
	to:   "dropAt: askedAt.Add(s.opts.MaxAge),",
	test: "TestCacheForgets",
}, {
	name:   "cache-ignores-fingerprint",
	broken: "The cache keeps a record that the store has returned to a request with a different fingerprint.",
	file:   "stores/cache/cache.go", testPackage: "./stores/cache",
	from: "	case record.Response != nil && record.Fingerprint == request.Fingerprint:",
	to:   "	case record.Response != nil:",
	test: "TestCacheJudgesEachRequest",
}}

var sealMutants = []mutant{{
	name: "seal-not-bound-to-the-attempt", broken: "A sealed answer can be moved from an earlier attempt to a later attempt.",
	file: "stores/seal/key.go", testPackage: "./stores/seal", needs: redis,
	from: "	b = binary.BigEndian.AppendUint64(b, uint64(to.attempt))\n",
	to:   "",
	test: "TestForgedSealedRecords",
}, {
	name: "seal-replays-the-clear", broken: "A sealed store replays an answer that was written to the inner store unsealed.",
	file: "stores/seal/seal.go", testPackage: "./stores/seal", needs: redis,
	from: "	case s.acceptsPlain:\n",
	to:   "	case s.acceptsPlain || !resp.Omitted:\n",
	test: "TestForgedSealedRecords/answer in the clear",
}}

var clientMutants = []mutant{{
	name: "new-key-for-each-attempt", broken: "The client sends each attempt with a different key.",
	file: "client/retry.go",
	from: "		attempt := t.cloneWithHeader(req, headerValue)\n",
	to:   "		attempt := t.cloneWithHeader(req, headerValue+strconv.Itoa(n))\n",
	test: "TestLostAnswersTakeEffectOnce",
}, {
	name: "retry-never-ignored", broken: "The client repeats a request although the problem forbids a retry.",
	file: "client/retry.go",
	from: "	if resp != nil && forbidsRetry(resp) {\n",
	to:   "	if false {\n",
	test: "TestTransportObeysTheProblem",
}, {
	name: "question-to-another-host", broken: "The client sends its key and credentials to any host that a refusal names.",
	file: "client/status.go",
	from: "	if address.Scheme != asked.Scheme || !strings.EqualFold(address.Host, asked.Host) {\n",
	to:   "	if false {\n",
	test: "TestAskStatusWithoutAnAddress",
}}
