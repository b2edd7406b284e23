package main

var ofTxSteps = []mutant{{
	name: "tx-step-beside-others", broken: "A step in a transaction runs beside others, whose results wait for its lock.",
	file: "internal/checkpoint/checkpoint.go", in: "./step",
	from: "	case s.runsAlone, kind == Alone && s.runningCount > 0:\n",
	to:   "	case s.runsAlone && s.dataByName == nil:\n",
	test: "TestTxStepRunsAlone",
}, {
	name: "tx-step-escapes", broken: "A step that has committed its rows by itself runs again.",
	file: "step/tx.go",
	from: "	if !r.txStep.Escaped {\n",
	to:   "	if !r.txStep.Escaped || true {\n",
	test: "TestTxStepThatEndsItsTransaction",
}, {
	name: "tx-step-in-doubt-runs-again", broken: "A step whose commit is in doubt runs again without a question.",
	file: "step/tx.go",
	from: "		r.steps.LoadAgain()\n",
	to:   "",
	test: "TestTxStepInDoubt",
}, {
	name: "postgres-tx-step-without-owner", broken: "An owner that was overtaken commits its rows.",
	file: "stores/pgxstore/sql/keep_step.sql", needs: postgres,
	from: "    WHERE {held}{at $7} AND",
	to:   "    WHERE r.digest = $1::bytea{in_reach}{at $7} AND $2::uuid IS NOT NULL AND r.status IS NULL AND",
	test: "TestTxStepsConform/read committed/pgx/transactions/overtaken owner",
}, {
	name: "postgres-tx-step-without-lock", broken: "A transaction at repeatable read does not lock the record, and is overtaken.",
	file: "stores/pgxstore/sql/enter_step.sql", needs: postgres,
	from: " FOR NO KEY UPDATE)",
	to:   ")",
	test: "TestLongSteps/repeatable read/DoTx",
}, {
	name: "postgres-tx-step-waits-for-itself", broken: "Renewals wait for the lock of the step, until the lease is lost.",
	file: "stores/pgxstore/steps.go", needs: postgres,
	from: "	c.isRecordLocked = isLocked && err == nil\n",
	to:   "	c.isRecordLocked = isLocked && false\n",
	test: "TestLongSteps/repeatable read/DoTx",
}, {
	name: "postgres-tx-step-commits-first", broken: "The rows are committed before the result is stored.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "	isKept := false\n",
	to:   "	isKept := false\n	batch.Queue(\"commit\")\n",
	test: "TestTxStepsConform/read committed/pgx/transactions/rows and result",
}, {
	name: "postgres-tx-step-lost-is-done", broken: "A commit that was lost on its way counts as done.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "	case found.isKept:\n		return w.loadStoredResult(ctx, w.step.Name)\n	}\n	return nil, wrapError(\"commit\", cause)\n",
	to:   "	}\n	return []byte(`\"\"`), nil\n",
	test: "TestLostMessagesOfSteps/idempotency: keep step/LoseRequest/DoTx/read committed",
}, {
	name: "postgres-tx-step-lost-is-undone", broken: "A commit whose reply was lost counts as undone.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "	case found.isKept:\n",
	to:   "	case !found.isOwn:\n",
	test: "TestLostMessagesOfSteps/idempotency: keep step/LoseReply/DoTx/read committed",
}, {
	name: "postgres-tx-step-in-flight-is-undone", broken: "A commit that is still on its way counts as undone.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "return !s.isOwn || s.isKept || s.hasEnded }",
	to:   "return true }",
	test: "TestCommitOfStepInFlight",
}, {
	name: "postgres-tx-step-in-another-transaction", broken: "A result is stored in another transaction than its rows.",
	file: "stores/pgxstore/sql/keep_step.sql", needs: postgres,
	from: "CASE WHEN pg_current_xact_id() = $6::text::xid8 THEN",
	to:   "CASE WHEN $6::text IS NOT NULL THEN",
	test: "TestStepsThatEndTheirTransaction/DoTx/COMMIT; BEGIN",
}, {
	name: "postgres-tx-step-forgets-its-commit", broken: "Rows that a step has committed by itself are written again.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "		w.step.Escaped = status != statusAborted\n",
	to:   "		w.step.Escaped = status != statusAborted && false\n",
	test: "TestStepsThatEndTheirTransaction/DoTx/COMMIT, then error",
}, {
	name: "postgres-tx-step-forgets-a-joined-commit", broken: "Rows that a step has committed in the handler's transaction are written again.",
	file: "stores/pgxstore/tx.go", needs: postgres,
	from: "j.step.Escaped = !j.isIntact && j.hasEscaped(ctx)",
	to:   "j.step.Escaped = !j.isIntact && j.hasEscaped(ctx) && false",
	test: "TestStepsThatEndTheirTransaction/DoInTx/COMMIT, then error",
}, {
	name: "postgres-tx-step-answers-for-lost-rows", broken: "An answer is stored although a failover has lost the rows that it tells of.",
	file: "stores/pgxstore/claim.go", needs: postgres,
	from: "	return r.stepNames, true\n",
	to:   "	return nil, false\n",
	test: "TestFailoverLosesRowsOfSteps/step",
}, {
	name: "sqlite-tx-step-answers-for-lost-rows", broken: "An answer is stored although the rows that it tells of are lost with the record.",
	file: "stores/internal/sqlstore/lease.go", in: "./stores/sqlitestore",
	from: "	if c.keepsRows && c.checkpoints.markRowsLost() {\n",
	to:   "	if c.keepsRows && c.checkpoints.markRowsLost() && false {\n",
	test: "TestLostRowsOfSteps/record",
}}
