package main

var ofResolutions = []mutant{{
	name: "memory-resolves-what-is-decided", broken: "An operation that was completed or released is resolved.",
	file: "store_memory.go",
	from: "	if held.state(now) != StateAbandoned {\n",
	to:   "	if held.state(now) == StateRunning {\n",
	test: "TestMemoryStoreIsResolved/resolver/resolve/decided",
}, {
	name: "entry-of-another-attempt", broken: "An entry that was seen before another attempt is taken for the record.",
	file: "inspect.go",
	from: " || e.Attempt != asked.Attempt:",
	to:   ":",
	test: "TestMemoryStoreIsResolved/resolver/resolve/taken over",
}, {
	name: "redis-resolution-keeps-the-token", broken: "The late owner of an operation that was resolved completes it.",
	file: "internal/redisscript/resolve.lua", needs: redis,
	from: "' token=' .. token .. ' ', 1)",
	to:   "'%0', 1)",
	test: "TestRedisInspectorConforms/server/resolver/resolve/late owner",
}, {
	name: "redis-resolution-of-a-live-lease", broken: "An operation that runs is resolved.",
	file: "internal/redisscript/inspected.lua", needs: redis,
	from: "if remaining < 0 or lease - (given - remaining) > 0 then",
	to:   "if remaining < 0 then",
	test: "TestRedisInspectorConforms/server/resolver/resolve/running",
}, {
	name: "redis-resolution-of-any-attempt", broken: "An entry that was seen before another attempt is taken for the record.",
	file: "internal/redisscript/inspected.lua", needs: redis,
	from: "state ~= asked or tonumber(tried) ~= tonumber(attempt)",
	to:   "state ~= asked",
	test: "TestRedisInspectorConforms/server/resolver/resolve/taken over",
}, {
	name: "redis-resolution-keeps-steps-of-another", broken: "A note joins the checkpoints of an operation that is forgotten.",
	file: "internal/redisscript/resolve.lua", needs: redis,
	from: "redis.call('HSET', steps, '', origin, name, note)",
	to:   "redis.call('HSET', steps, name, note)",
	test: "TestRedisInspectorConforms/server/resolver/resolve/not happened",
}, {
	name: "seal-answer-of-nobody", broken: "What an operator has answered under a seal is told to other requests.",
	file: "seal/seal.go",
	from: "	if fp != (idempotency.Fingerprint{}) { // else",
	to:   "	if true { // else",
	test: "TestSealedStepsConform/sealing/resolver/resolve/happened",
}, {
	name: "reconcile-not-asked", broken: "An operation that was abandoned runs again, and nobody asks what has happened.",
	file: "runner.go",
	from: "		x.uncertain = claim != nil && record.Attempt > 1\n",
	to:   "",
	test: "TestReconcileSaysWhatHasHappened",
}, {
	name: "reconcile-too-late", broken: "What Reconcile says after its time counts, although others may ask by then.",
	file: "runner.go",
	from: "	err = cmp.Or(err, ctx.Err())\n",
	to:   "",
	test: "TestReconcileDoesNotKnow/says it too late",
}, {
	name: "reconcile-releases-what-nobody-knows", broken: "If nobody knows what has happened, the handler runs.",
	file: "runner.go",
	from: "	case err != nil:\n		x.letGo()\n		return nil, x.refuse(OutcomeUnknown,",
	to:   "	case err != nil:\n		_ = x.release(x.untouched())\n		return nil, x.refuse(OutcomeUnknown,",
	test: "TestReconcileDoesNotKnow/error",
}, {
	name: "reconcile-of-a-lost-reply", broken: "A takeover whose reply was lost is released, so that the handler runs.",
	file: "runner.go",
	from: "	if err == nil {\n		x.record, x.claim = record, claim\n",
	to:   "	if err != nil && claim != nil {\n		_ = claim.Release(ctx, x.runner.opts.TTL)\n	}\n	if err == nil {\n		x.record, x.claim = record, claim\n",
	test: "TestReconcileWhileTheStoreFails",
}}
