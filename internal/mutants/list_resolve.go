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
	from: "	resolution, err := x.ask(entry)\n",
	to:   "	resolution, err := Resolution{TTL: r.opts.TTL}, error(nil)\n",
	test: "TestReconcileSaysWhatHasHappened",
}, {
	name: "reconcile-too-late", broken: "What Reconcile says after its time counts.",
	file: "runner.go",
	from: "	err = cmp.Or(err, ctx.Err())\n",
	to:   "",
	test: "TestReconcileDoesNotKnow/says it too late",
}, {
	name: "reconcile-releases-what-nobody-knows", broken: "If nobody knows what has happened, the handler runs.",
	file: "runner.go",
	from: "		return x.refuseUnknown(err)\n",
	to:   "		resolution = Resolution{TTL: r.opts.TTL}\n",
	test: "TestReconcileDoesNotKnow/error",
}, {
	name: "reconcile-of-another-attempt", broken: "Reconcile ends an attempt that was not abandoned when the request came.",
	file: "runner.go",
	from: " || entry.Attempt != x.record.Attempt ||",
	to:   " ||",
	test: "TestReconcileIsOvertaken/another process crashes before the inspection",
}, {
	name: "reconcile-then-fail-open", broken: "An operation that was abandoned runs without a claim, because the store fails by now.",
	file: "runner.go",
	from: " && x.event.Waited == 0 && !abandoned:",
	to:   " && x.event.Waited == 0:",
	test: "TestReconcileWhileTheStoreFails/second claim",
}, {
	name: "reconcile-asked-by-all", broken: "Every request asks about an operation, although another one is asking.",
	file: "runner.go",
	from: "	if open, ok := q.open[key]; ok {\n		return open, false\n	}\n",
	to:   "	if _, ok := q.open[key]; ok {\n		q.open[key] = make(chan struct{})\n	}\n",
	test: "TestReconcileIsAskedOnce/may not wait",
}}
