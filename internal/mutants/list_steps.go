package main

var ofSteps = []mutant{{
	name: "step-runs-although-it-was-found", broken: "A step runs in each attempt, whatever an earlier one has stored.",
	file: "step/run.go",
	from: "	if !x.found {\n		data, err = x.execute(ctx)\n",
	to:   "	if true {\n		data, err = x.execute(ctx)\n",
	test: "TestStepRunsOnce/Do",
}, {
	name: "step-stores-an-error", broken: "A step that fails leaves an empty result, so that it never runs again.",
	file: "step/run.go",
	from: "	if err != nil || x.steps.Keeper == nil {\n",
	to:   "	if x.steps.Keeper == nil {\n",
	test: "TestFailedStepStoresNothing",
}, {
	name: "step-without-its-mark", broken: "AtMostOnce does not write that the step has begun.",
	file: "step/run.go",
	from: "	stored, err := x.store(ctx, mark, own)\n",
	to:   "	stored, err := own, error(nil)\n",
	test: "TestAtMostOnce",
}, {
	name: "steps-are-no-effect", broken: "An attempt that had steps, and was then released, is soon forgotten with them.",
	file: "execution.go", in: "./step",
	from: "	if stepped || x.record",
	to:   "	if !stepped && x.record",
	test: "TestStepsAreEffects",
}, {
	name: "steps-after-the-end", broken: "A goroutine that the handler has left behind goes on to begin steps.",
	file: "execution.go", in: "./step",
	from: "		x.endSteps()\n",
	to:   "",
	test: "TestMisuse",
}, {
	name: "memory-step-overwritten", broken: "The last result of a step counts, and not the first one.",
	file: "store_memory.go",
	from: "	if stored, ok := steps.data[name]; ok {\n",
	to:   "	if stored, ok := steps.data[name]; ok && stored == nil {\n",
	test: "TestMemoryStoreKeepsSteps/steps/first result",
}, {
	name: "memory-step-without-owner", broken: "An owner that was overtaken stores results of steps.",
	file: "store_memory.go",
	from: "	restored := e.restore(now)\n",
	to:   "	var restored error\n",
	test: "TestMemoryStoreKeepsSteps/steps/takeover",
}, {
	name: "memory-steps-not-passed-on", broken: "The next attempt has none of the results of steps.",
	file: "store_memory.go",
	from: "	if steps, ok := sh.steps[from]; ok {\n		delete(sh.steps, from)\n		sh.steps[to] = steps\n",
	to:   "	if _, ok := sh.steps[from]; ok {\n		delete(sh.steps, from)\n",
	test: "TestMemoryStoreKeepsSteps/steps/next attempt",
}, {
	name: "redis-step-overwritten", broken: "The last result of a step counts, and not the first one.",
	file: "internal/redisscript/checkpoint.lua", needs: redis,
	from: "redis.call('HSETNX', steps, name, data)",
	to:   "redis.call('HSET', steps, name, data)",
	test: "TestRedisStoreConforms/server/steps/first result",
}, {
	name: "redis-step-without-owner", broken: "An owner that was overtaken stores results of steps.",
	file: "internal/redisscript/checkpoint.lua", needs: redis,
	from: "elseif line ~= running then",
	to:   "elseif not string.find(line, HEAD) then",
	test: "TestRedisStoreConforms/server/steps/takeover",
}, {
	name: "redis-steps-of-an-older-operation", broken: "A new operation gets the results that one with its key has left.",
	file: "internal/redisscript/checkpoints.lua", needs: redis,
	from: "if redis.call('HGET', steps, '') == origin then",
	to:   "if origin then",
	test: "TestRedisStepsOfALostRecord/server",
}, {
	name: "seal-step-without-its-name", broken: "The sealed result of one step can be put in the place of another one.",
	file: "seal/steps.go",
	from: "	b = append(b, name...)\n",
	to:   "",
	test: "TestForgedSteps",
}, {
	name: "seal-unreadable-step-left-out", broken: "A step whose result cannot be opened runs again.",
	file: "seal/steps.go",
	from: "&c.to, name); err != nil {\n			return nil, err\n		}\n",
	to:   "&c.to, name); err != nil {\n			delete(opened, name)\n		}\n",
	test: "TestStepThatCannotBeDecrypted",
}, {
	name: "seal-step-in-the-clear", broken: "Whoever writes to the inner store can make up the result of a step.",
	file: "seal/steps.go",
	from: "	if s.clear && !bytes",
	to:   "	if !bytes",
	test: "TestForgedSteps",
}, {
	name: "cache-claims-to-keep-steps", broken: "A step counts as kept although the store behind the cache keeps none.",
	file: "cache/cache.go",
	from: "	return &own.cachedClaim\n",
	to:   "	return own\n",
	test: "TestCachedStepsConform",
}}
