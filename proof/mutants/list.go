package main

import "slices"

// allMutants are the mutants of all lists, in the order in which they run.
var allMutants = slices.Concat(
	memoryMutants, redisMutants, postgresMutants, recordMutants, keyMutants, runnerMutants, leaseMutants,
	middlewareMutants, keyFromMutants, cacheMutants, sealMutants, clientMutants, stepMutants, txStepMutants, resolutionMutants,
	probeMutants,
)

var memoryMutants = []mutant{{
	name:   "memory-get-then-set",
	broken: "Begin looks the key up, unlocks, and then claims, so two requests can both find the key free.",
	file:   "store_memory.go",
	from:   "	e := &entry{shard: sh, operation: operation, key: key, fingerprint",
	to: "	sh.mu.Unlock()\n	time.Sleep(time.Millisecond)\n	sh.mu.Lock()\n" +
		"	e := &entry{shard: sh, operation: operation, key: key, fingerprint",
	test: "TestMemoryStoreConforms/store/concurrent claims",
}, {
	name: "memory-no-fence", broken: "An overtaken owner completes over the record of its successor.",
	file: "store_memory.go",
	from: "	if s.findLive(e.shard, e.operation, now) != nil {\n		return ErrClaimLost\n	}",
	to:   "	s.findLive(e.shard, e.operation, now)",
	test: "TestMemoryStoreConforms/store/overtaken owner",
}, {
	name: "memory-release-without-owner", broken: "Release ends any claim on the key, including the claim of another owner.",
	file: "store_memory.go",
	from: "	before := e.endedBy\n",
	to:   "	if stored := e.shard.entries[e.operation]; stored != nil {\n		e = stored\n	}\n	before := e.endedBy\n",
	test: "TestMemoryStoreConforms/store/overtaken owner",
}, {
	name: "memory-renew-after-complete", broken: "Extend renews the lease of a completed record.",
	file: "store_memory.go",
	from: "	if e.endedBy != notEnded {\n		return ErrClaimLost\n	}\n	now",
	to:   "	if e.endedBy == released || e.endedBy == freed {\n		return ErrClaimLost\n	}\n	now",
	test: "TestMemoryStoreConforms/store/Extend after Complete",
}, {
	name: "memory-restore-after-settle", broken: "A renewal restores a record after its owner has released it.",
	file: "store_memory.go",
	from: "	e.endedBy, e.leaseEnd = released, now\n",
	to:   "	if e.isLive(now) {\n		e.endedBy = released\n	}\n	e.leaseEnd = now\n",
	test: "TestMemoryStoreConforms/store/Extend after the end of a forgotten record",
}}

var redisMutants = []mutant{{
	name: "redis-claim-without-nx", broken: "The claiming SET replaces an existing record.",
	file: "internal/redisconn/conn.go", needs: redis,
	from: `command := []any{"set", key, value, "nx", "get", "px", ttl}`,
	to:   `command := []any{"set", key, value, "get", "px", ttl}`,
	test: "TestRedisStoreConforms/server/store/completed operation",
}, {
	name: "redis-blind-set", broken: "The SET has no IFEQ, so an overtaken owner completes over the record of its successor.",
	file: "internal/redisconn/conn.go", needs: redis,
	from: `command := []any{"set", key, text, "ifeq", old, "px", ttl}`,
	to:   `command := []any{"set", key, text, "px", ttl}`,
	test: "TestRedisStoreConforms/server/store/overtaken owner",
}, {
	name: "redis-ifeq-not-read", broken: "If IFEQ finds another owner's record, the store reports the answer as stored.",
	file: "internal/redisconn/conn.go", needs: valkey,
	from: "	if err == nil || !isAnswer(err) {\n",
	to:   "	if errors.Is(err, redis.Nil) {\n		return true, lost, nil\n	}\n	if err == nil || !isAnswer(err) {\n",
	test: "TestRedisStoreConforms/server/store/overtaken owner",
}, {
	name: "redis-swap-compares-nothing", broken: "swap.lua replaces any existing record without a comparison.",
	file: "internal/redisscript/swap.lua", needs: redis,
	from: "redis.call('GET', KEYS[1]) == ARGV[1]",
	to:   "redis.call('EXISTS', KEYS[1]) == 1",
	test: "TestRedisStoreConforms/server/store/overtaken owner",
}, {
	name: "redis-no-fence", broken: "complete.lua replaces any record of the key.",
	file: "internal/redisscript/complete.lua", needs: redis,
	from: "if line == running or line == '' then",
	to:   "if true then",
	test: "TestRedisStoreConforms/server/store/overtaken owner",
}, {
	name: "redis-release-without-owner", broken: "release.lua ends any claim on the key, including the claim of another owner.",
	file: "internal/redisscript/release.lua", needs: redis,
	from: "if state == 'running' and string.sub(line, 1, #owner) == owner then",
	to:   "if state == 'running' then",
	test: "TestRedisStoreConforms/server/store/overtaken owner",
}, {
	name: "redis-wrong-clock", broken: "claim.lua measures the lease by the clocks of server and client instead of PTTL.",
	file: "internal/redisscript/claim.lua", needs: redis,
	from: "lease_left = math.max(0, lease - (stored_ttl - remaining))",
	to:   "lease_left = math.max(0, lease - (redis.call('TIME')[1] * 1000 - string.match(origin, 'created=(%d+)')))",
	test: "TestRedisLeaseIsToldByTheExpiry/server",
}, {
	name: "redis-takeover-of-a-live-lease", broken: "claim.lua takes over before the lease has lapsed.",
	file: "internal/redisscript/claim.lua", needs: redis,
	from: "takeover == '1' and lease_left == 0",
	to:   "takeover == '1'",
	test: "TestRedisStoreConforms/server/store/running attempt",
}, {
	name: "redis-takeover-ignores-fingerprint", broken: "A request with another fingerprint takes over an abandoned operation.",
	file: "internal/redisscript/claim.lua", needs: redis,
	from: "has_lapsed) and stored_fingerprint == fingerprint) then",
	to:   "has_lapsed)) then",
	test: "TestRedisStoreConforms/server/store/other request",
}, {
	name: "redis-free-and-forgotten", broken: "Freeing a key leaves no record, so a late claim takes the key.",
	file: "internal/redisscript/release.lua", testPackage: "./proof/redistest", needs: redis,
	from: "    put(key, string.gsub(released, ' attempt=%d+ ', ' attempt=0 ', 1), ",
	to:   "    redis.call('DEL', key)\n    redis.call('SET', key .. ':gone', '', ",
	test: "TestLateClaimOfAFreedKey",
}, {
	name: "redis-record-of-another-key", broken: "The store accepts a record that was copied from another key.",
	file: "internal/recordline/recordline.go", needs: redis,
	from: "	if string(ownOperation) != operation {",
	to:   "	if len(ownOperation) != len(operation) {",
	test: "TestRedisRecordOfAnotherKey/server",
}, {
	name: "redis-lost-reply-not-retried", broken: "The store gives up a step when the reply to the first try is lost.",
	file: "internal/redisconn/conn.go", needs: redis,
	from: "	const maxTries = 3\n",
	to:   "	const maxTries = 1\n",
	test: "TestRedisConnectionBreaks/client without retries", testPackage: "./proof/redistest",
}, {
	name:   "redis-wait-not-sent",
	broken: "The store sends no WAIT, so an answer counts as replicated although the replicas lack the answer.",
	file:   "internal/redisconn/replicas.go", needs: redis,
	from: "	_ = pipe.Process(ctx, wait)\n",
	to:   "	wait.SetVal(int64(c.replicaCount))\n",
	test: "TestRedisReplicas", testPackage: "./proof/redistest",
}, {
	name: "redis-quota-for-ever", broken: "Records that Redis has lost count against their user until their time.",
	file: "internal/redisscript/counted.lua", testPackage: "./proof/redistest", needs: redis,
	from: "      sweep_sample()\n",
	to:   "",
	test: "TestRedisUserIndex/server",
}, {
	name: "redis-quota-forgets", broken: "A record that was kept for longer than its first claim no longer counts.",
	file: "internal/redisscript/counted.lua", testPackage: "./proof/redistest", needs: redis,
	from: "    if expiry then\n",
	to:   "    if false then\n",
	test: "TestRedisUserRecords/server/records that are kept longer",
}, {
	name: "redis-quota-of-released-records", broken: "A released record counts against its user for longer than Redis keeps it.",
	file: "internal/redisscript/index.lua", testPackage: "./proof/redistest", needs: redis,
	from: "'XX', time",
	to:   "'NX', time",
	test: "TestRedisUserIndexHasTimes/server",
}}

var postgresMutants = []mutant{{
	name: "postgres-upsert", broken: "If two sessions find no record, the second session replaces the claim of the first session.",
	file: "stores/pgxstore/statements.go", needs: postgres,
	from: `return "ON CONFLICT (operation) DO NOTHING"`,
	to:   `return "ON CONFLICT (operation) DO UPDATE SET token = EXCLUDED.token"`,
	test: "TestStoreConformance/prepared/store/concurrent claims",
}, {
	name: "postgres-no-fence", broken: "Complete and Extend change the record of any owner of the key.",
	file: "stores/pgxstore/statements.go", needs: postgres,
	from: "r.operation = $1::uuid{in_reach} AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL",
	to:   "r.operation = $1::uuid{in_reach} AND $2::uuid IS NOT NULL AND r.status IS NULL AND r.lease_until IS NOT NULL",
	test: "TestStoreConformance/prepared/store/overtaken owner",
}, {
	name: "postgres-claim-ignores-fingerprint", broken: "A request with another fingerprint takes over an abandoned operation.",
	file: "stores/pgxstore/statements.go", needs: postgres,
	from: "r.status IS NULL AND r.fingerprint = $2::bytea\n",
	to:   "r.status IS NULL\n",
	test: "TestStoreConformance/prepared/store/other request",
}, {
	name: "postgres-late-claim", broken: "A late claim takes a key that was released in the meantime.",
	file: "stores/pgxstore/statements.go", needs: postgres,
	from: "OR r.token <> $7::uuid AND (",
	to:   "OR (",
	test: "TestLateClaimOfAReleasedKey",
}, {
	name: "postgres-quota-without-turns", broken: "Claims of a user at the same time exceed the bound.",
	file: "stores/pgxstore/sql/0001_user_claim.sql", needs: postgres,
	from: "        PERFORM pg_advisory_xact_lock(hashtext({records_text}), hashtext($4));\n",
	to:   "",
	test: "TestConcurrentClaimsOfAUser/plain",
}, {
	name: "postgres-quota-refuses-duplicates", broken: "At the bound, a duplicate gets 429 instead of the state of its operation.",
	file: "stores/pgxstore/sql/0001_user_claim.sql", needs: postgres,
	from: "RETURN CASE WHEN EXISTS (",
	to:   "RETURN CASE WHEN NOT EXISTS (",
	test: "TestUserRecords/plain",
}}

var recordMutants = []mutant{{
	name: "checksum-not-checked", broken: "A damaged answer is replayed.",
	file: "record.go",
	from: "	if string(line.CRC) != string(sum[:]) {",
	to:   "	if len(line.CRC) != len(sum) {",
	test: "TestDamageIsDetected",
}, {
	name: "tombstone-replayed-empty", broken: "An omitted answer is replayed as an empty answer.",
	file: "admission.go",
	from: "	case record.Response != nil && record.Response.Omitted:\n		return ErrNotReplayable\n",
	to:   "",
	test: "TestAnswerOverTheLimitIsNotExecutedAgain",
}}

var keyMutants = []mutant{{
	name: "user-not-in-the-id", broken: "Two users with the same key share an operation.",
	file: "key.go",
	from: "range [...]string{k.User, k.Endpoint, k.ID} {",
	to:   "range [...]string{k.Endpoint, k.ID} {",
	test: "TestOperationIDsOfDifferentKeysDiffer",
}, {
	name: "delimiter-confusion", broken: "A delimiter joins the parts of a key, and the parts may contain the delimiter.",
	file: "key.go",
	from: "		b = appendPart(b, part)\n",
	to:   "		b = append(append(b, part...), ':')\n",
	test: "TestOperationIDsOfDifferentKeysDiffer",
}, {
	name: "body-not-hashed", broken: "The fingerprint leaves out the body.",
	file: "fingerprint.go",
	from: "	content := sha256.Sum256(body)\n",
	to:   "	content := sha256.Sum256(body[:0])\n",
	test: "TestKeyOfAnotherRequestIsRefusedAsReused",
}, {
	name: "query-left-out", broken: "The fingerprint leaves out the query.",
	file: "fingerprint.go", testPackage: "./proof/misuse",
	from: "appendPart(space[:0], r.URL.RawQuery)",
	to:   "appendPart(space[:0], \"\")",
	test: "TestQueryIsPartOfTheFingerprint",
}, {
	name: "missing-is-null", broken: "A selection takes a missing JSON value for null.",
	file: "fingerprint/pointer.go",
	from: "		return append(out, '!')\n",
	to:   "		return append(out, \"null\"...)\n",
	test: "TestSelectionsOfJSON",
}, {
	name: "element-leaves-no-place", broken: "An excluded JSON element leaves no gap, so the next element takes its index.",
	file: "fingerprint/pointer.go",
	from: "		if isRemoved && name != nil {\n",
	to:   "		if isRemoved {\n",
	test: "TestSelectionsOfJSON",
}}
