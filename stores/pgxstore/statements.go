package pgxstore

import (
	"cmp"
	"embed"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

//go:embed sql
var sqlFiles embed.FS

// readFile returns a file of the directory sql, expanded for the table of o.
func (o Options) readFile(file string) string { return o.expandSQL(sqlstore.File(sqlFiles, file)) }

// readStatement is readFile without the comments of the file, except for the first comment: logs and statistics of the
// server identify a statement by it.
func (o Options) readStatement(file string) string {
	return o.expandSQL(sqlstore.Statement(sqlFiles, file))
}

// statements are the statements that stores send, by the names of their files.
type statements map[string]string

func (o Options) allStatements() statements {
	all := make(statements)
	for _, file := range []string{
		"claim", "complete", "extend", "release", "abandon", "free", "restore", "confirm", "count",
		"inspect", "list", "each", "totals", "users", "forget", "resolve", "checkpoint", "checkpoints",
		"enter_step", "keep_step", "settle_step", "place_step",
	} {
		all[file] = o.readStatement(file)
	}
	o.findsByPlace = true
	all["enter_step_at"], all["keep_step_at"] = o.readStatement("enter_step"), o.readStatement("keep_step")
	o.findsByPlace = false
	return all
}

var (
	digestPattern = regexp.MustCompile(`\{digest (\S+)\}`)
	afterPattern  = regexp.MustCompile(`\{after (\$\d+)\}`)
	atPattern     = regexp.MustCompile(`\{at (\$\d+)\}`)
	idlePattern   = regexp.MustCompile(`\{idle_timeout (\$\d+)\}`)
)

// expandSQL replaces the placeholders in braces, which stand for parts that several statements share. In these parts, the
// alias of the table is r.
func (o Options) expandSQL(sql string) string {
	sql = commonSQL.Replace(sql)
	sql = digestPattern.ReplaceAllString(sql, "encode(sha256(convert_to($1, 'UTF8')), 'hex')")
	sql = afterPattern.ReplaceAllString(sql, "({now} + $1::bigint * interval '1 microsecond')")
	place := ""
	if o.findsByPlace {
		place = " AND r.ctid = $1::text::tid"
	}
	sql = atPattern.ReplaceAllString(sql, place)
	sql = idlePattern.ReplaceAllString(sql, idleTimeoutSQL)
	now := cmp.Or(o.nowSQL, "statement_timestamp()")
	index := o.tableName() + "_expires"
	return strings.NewReplacer(
		"{records}", o.quotedName(""),
		"{records_text}", quoteLiteral(o.quotedName("")),
		"{schema}", pgx.Identifier{o.Schema}.Sanitize(),
		"{schema_text}", quoteLiteral(pgx.Identifier{o.Schema}.Sanitize()),
		"{reach}", strconv.Itoa(24*(o.PartitionDays+1)),
		"{kind}", o.relKind(),
		"{storage}", o.storageSettings(),
		"{claim_function}", o.quotedName(claimSuffix(o.isPartitioned())),
		"{claiming}", o.quotedName(o.claimingSuffix()),
		"{user_bound}", o.userBoundSQL(),
		"{user_claim_function}", o.quotedName(userClaimSuffix),
		"{drop_user_claim}", o.dropUserClaimSQL(),
		"{user_index}", pgx.Identifier{o.userIndex()}.Sanitize(),
		"{user_index_text}", quoteLiteral(o.userIndex()),
		"{other_claim_function}", o.quotedName(claimSuffix(!o.isPartitioned())),
		"{on_conflict}", o.onConflict(),
		"{expiry_index}", pgx.Identifier{index}.Sanitize(),
		"{expiry_index_text}", quoteLiteral(index),
		"{now}", now,
	).Replace(o.expandPartitioned(sql))
}

// storageSettings returns the storage parameters of a table with records: the table itself, or each of its partitions.
func (o Options) storageSettings() string {
	return fmt.Sprintf("fillfactor = %d, autovacuum_vacuum_threshold = 2000, autovacuum_analyze_threshold = 2000, "+
		"vacuum_truncate = false", cmp.Or(o.FillFactor, 70))
}

// quoteLiteral returns s as a string constant. A constant with a backslash gets the prefix E and doubled backslashes,
// because in all other constants the meaning of a backslash depends on the setting standard_conforming_strings.
func quoteLiteral(s string) string {
	quoted := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		quoted = " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}

// relKind returns the relkind of the table in pg_class.
func (o Options) relKind() string {
	if o.isPartitioned() {
		return "p"
	}
	return "r"
}

// claimSuffix returns the suffix of the function that claims keys, behind the name of the table. A partitioned table has
// a different suffix, so that a [Store] whose PartitionDays does not fit the table fails instead of claiming keys twice.
func claimSuffix(isPartitioned bool) string {
	if isPartitioned {
		return "_claim_day"
	}
	return "_claim"
}

// userClaimSuffix is the suffix of the function that counts the records of a user, for MaxUserRecords. It works on both forms of
// the table.
const userClaimSuffix = "_claim_max"

// claimingSuffix is the suffix of the function that claim.sql calls.
func (o Options) claimingSuffix() string {
	if o.MaxUserRecords > 0 {
		return userClaimSuffix
	}
	return claimSuffix(o.isPartitioned())
}

// claimFunctions returns the names of the functions that claims need.
func (o Options) claimFunctions() []string {
	names := []string{o.tableName() + claimSuffix(o.isPartitioned())}
	if o.MaxUserRecords > 0 {
		names = append(names, o.tableName()+userClaimSuffix)
	}
	return names
}

// userIndex returns the name of the index for MaxUserRecords.
func (o Options) userIndex() string { return o.tableName() + "_user" }

// userBoundSQL returns the last argument of the function for MaxUserRecords.
func (o Options) userBoundSQL() string {
	if o.MaxUserRecords > 0 {
		return ", " + strconv.Itoa(min(o.MaxUserRecords, math.MaxInt32))
	}
	return ""
}

func (o Options) dropUserClaimSQL() string {
	if o.MaxUserRecords > 0 {
		return "DROP FUNCTION IF EXISTS " + o.quotedName(userClaimSuffix) + ";\n"
	}
	return ""
}

// expandPartitioned replaces the placeholders that are empty unless the table is partitioned.
func (o Options) expandPartitioned(sql string) string {
	if !o.isPartitioned() {
		return strings.NewReplacer("{in_reach}", "", "{newest}", "", "{is_newest}", "").Replace(sql)
	}
	return partitionedOnly.Replace(partitionedOnly.Replace(sql)) // {is_newest} contains {in_reach}
}

// partitionedOnly has the conditions on a partitioned table. Statements restrict expires_at to the days on which the
// record can expire, so that PostgreSQL opens only the partitions of these days. A partition may be dropped when its day
// has been over for an hour, so the lower bound ignores the records in such a partition. The upper bound allows that the
// clock of the server is set back by up to an hour.
//
// If a new record is inserted beside an ignored record, and the clock is set back then, both records are in reach. In
// that case the newest record counts.
var partitionedOnly = strings.NewReplacer(
	"{in_reach}", " AND expires_at >= date_bin('24 hours', {now} - interval '1 hour', 'epoch')\n        AND "+expiresBeforeSQL,
	"{newest}", "\nORDER BY r.expires_at DESC LIMIT 1",
	"{is_newest}", "\n        AND r.expires_at = (SELECT max(expires_at) FROM {records} WHERE operation = $1::uuid{in_reach})",
)

const expiresBeforeSQL = "expires_at < date_bin('24 hours', {now} + interval '1 hour', 'epoch') + interval '{reach} hours'"

// onConflict returns the clause for a record that a concurrent session has inserted first. On a partitioned table, claims
// take turns, so there is no such record. The clause names the column operation, so that a violation of any other unique
// index is an error: a repetition would not explain it.
func (o Options) onConflict() string {
	if o.isPartitioned() {
		return ""
	}
	return "ON CONFLICT (operation) DO NOTHING"
}

// isFreeSQL is row.isFree in SQL.
const isFreeSQL = `(r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL)`

// claimableSQL is the condition that a request may claim the key of the record: row.isExpired, or a valid record
// (row.checkRow) that is released or abandoned. The condition on the token lets a delayed duplicate of a claim have no
// effect after the claim was released.
const claimableSQL = `(r.expires_at <= {now} OR r.token <> $7::uuid AND (` + isFreeSQL + ` OR r.status IS NULL AND r.fingerprint = $2::bytea
        AND ($3::integer >= 1 AND r.lease_until IS NULL OR $3::integer >= 2 AND r.lease_until <= {now})
        AND r.lease_until IS DISTINCT FROM '-infinity' AND r.completed_at IS NULL
        AND r.attempt BETWEEN 1 AND 2147483646 AND ` + madeForKeySQL + `))`

// readableSQL is row.checkRow in SQL, without the comparison of names, because a list has no asked names.
const readableSQL = `(octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until)))`

// madeForKeySQL is storedNames.matchKey in SQL.
const madeForKeySQL = `((r.user_id, r.endpoint, r.key) = ($4::text, $5::text, $6::text)
            OR ({digest r.user_id}, {digest r.endpoint}, {digest r.key}) = ($4::text, $5::text, $6::text)
            OR (r.user_id, r.endpoint, r.key) = ({digest $4::text}, {digest $5::text}, {digest $6::text}))`

// askedNamesSQL is the condition that the record has the names that an operator asks for: all as they are, or all as
// digests. A user whose name is the digest of another user's name is told apart by the endpoint, which is no digest.
const askedNamesSQL = `($2::text IS NULL OR r.user_id = $2::text) AND ($3::text IS NULL OR r.endpoint = $3::text)
        AND ($4::text IS NULL OR r.key = $4::text)
        OR ($5::text IS NULL OR r.user_id = $5::text) AND ($6::text IS NULL OR r.endpoint = $6::text)
        AND ($7::text IS NULL OR r.key = $7::text) AND r.user_id || r.endpoint || r.key ~ '^[0-9a-f]{192}$'`

// idleTimeoutSQL makes the server end the transaction after the given milliseconds without a statement, unless the
// session has a shorter timeout. The condition comes first, because a change of a setting costs the server as much as a
// small statement.
const idleTimeoutSQL = `CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
        NOT BETWEEN interval '1 ms' AND $1::bigint * interval '1 ms'
    THEN set_config('idle_in_transaction_session_timeout', ($1::bigint)::text, true) END`

// restoredColumns are the columns that a claim can restore from its own values.
const restoredColumns = `operation, fingerprint, user_id, endpoint, key, token, attempt, created_at,
        lease_until, expires_at, expires_minute, completed_at, status, header, trailer, body, note, replays`

// allColumns returns all columns of the table.
func allColumns() []string {
	restored := strings.FieldsFunc(restoredColumns, func(r rune) bool { return unicode.IsSpace(r) || r == ',' })
	return append(restored, "step_names", "step_results", "resolved")
}

// restorableSQL is the condition that a claim may restore the existing record: the record has the token of the claim, and
// has expired or is still held.
const restorableSQL = `(r.token = $6::uuid AND (r.expires_at <= {now} OR r.status IS NULL AND r.lease_until IS NOT NULL))`

// commonSQL has the parts that several statements share. The parameters are those of claim.sql, except
// in {held} and {own} (the first two parameters of all statements of a claim), {restorable} and {keeps_steps} (restore.sql), and
// {asked_for} (totals.sql).
var commonSQL = strings.NewReplacer(
	"{columns}", `r.user_id, r.endpoint, r.key, r.attempt, r.fingerprint, r.token, r.created_at,
    r.lease_until, r.expires_at, {now} AS now, r.completed_at IS NOT NULL, r.status, r.header, r.trailer, r.body, r.note,
    r.status IS NOT NULL AND current_setting('synchronous_standby_names') <> ''
        AND NOT pg_is_in_recovery() AS awaited`,
	"{claimable}", claimableSQL,
	"{seen_claimable}", strings.ReplaceAll(claimableSQL, "r.", "seen_"),
	"{claim_columns}", `operation, user_id, endpoint, key, attempt, fingerprint, token,
        created_at, lease_until, expires_at, expires_minute`,
	"{claim}", `$1::uuid, $4::text, $5::text, $6::text, 1, $2::bytea,
        $7::uuid, {now}, {after $8}, {after $9}, date_bin('1 minute', {after $9}, 'epoch')`,
	"{claim_again}", `
            user_id = $4::text, endpoint = $5::text, key = $6::text,
            attempt = CASE WHEN r.expires_at <= {now} THEN 1 ELSE r.attempt + 1 END,
            created_at = CASE WHEN r.expires_at <= {now} OR r.attempt = 0 THEN {now} ELSE r.created_at END,
            replays = CASE WHEN r.expires_at <= {now} THEN 0 ELSE r.replays END,
            fingerprint = $2::bytea, token = $7::uuid, lease_until = {after $8},
            expires_at = {after $9}, expires_minute = date_bin('1 minute', {after $9}, 'epoch'),
            completed_at = NULL, status = NULL, header = NULL, trailer = NULL, body = NULL, note = NULL,
            step_names = CASE WHEN r.expires_at > {now} THEN r.step_names END,
            step_results = CASE WHEN r.expires_at > {now} THEN r.step_results END,
            resolved = CASE WHEN r.expires_at > {now} THEN r.resolved END`,
	"{restored_columns}", restoredColumns,
	"{restorable}", restorableSQL,
	"{own}", strings.ReplaceAll(restorableSQL, "$6", "$2"),
	"{keeps_steps}", `$9::bigint IS NOT NULL AND r.expires_at > {now}`,
	"{size}", `(octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint`,
	"{state}", `CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > {now} THEN 'running' ELSE 'abandoned' END`,
	"{is_free}", isFreeSQL,
	"{asked_for}", `r.expires_at > {now} AND NOT `+isFreeSQL+`
    AND (`+askedNamesSQL+`)
    AND ($8::timestamptz IS NULL OR r.created_at >= $8::timestamptz)
    AND ($9::timestamptz IS NULL OR r.created_at < $9::timestamptz)`,
	"{readable}", readableSQL,
	"{steps}", "unnest(r.step_names, r.step_results) AS step (name, result)",
	"{record_lost}", quoteLiteral(idempotency.RecordLost),
	"{held}", `r.operation = $1::uuid{in_reach} AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > {now}`,
)
