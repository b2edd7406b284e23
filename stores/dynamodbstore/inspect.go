package dynamodbstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/firsts"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Store)(nil)

// Inspect implements [idempotency.Inspector]. The only permission needed is dynamodb:GetItem.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.InspectOperation(ctx, key.OperationID())
}

// InspectOperation implements [idempotency.Inspector], as Inspect does.
func (s *Store) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	if s.optionFaults != nil {
		return idempotency.Entry{}, s.optionFaults
	}
	return sqlstore.Inspect(ctx, leases{s}, operation)
}

// Forget implements [idempotency.Inspector]. Forget needs the permissions dynamodb:GetItem and dynamodb:DeleteItem.
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	return sqlstore.Forget(ctx, leases{s}, entry)
}

// Resolve implements [idempotency.Resolver]. Resolve needs the permissions dynamodb:GetItem and dynamodb:UpdateItem.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	if s.optionFaults != nil {
		return s.optionFaults
	}
	return sqlstore.Resolve(ctx, leases{s}, entry, resolution)
}

// listedAttrs are the attributes that List reads.
var listedAttrs = strings.Join([]string{
	attrOperation, attrUser, attrEndpoint, attrKey, attrAttempt, attrFingerprint, attrToken, attrCreated, attrLease,
	attrExpires, attrAnswerSize, attrAnswerStatus, attrAnswerNote, attrStepsSize, attrResolvedSize,
}, ", ")

// List implements [idempotency.Inspector]. List needs the permission dynamodb:Scan. List reads the whole table, or as many
// records as request.Scan allows, and consumes one unit for each 4 KB, responses included: the service reads the records
// that request does not ask for, too, but does not send them.
//
// List calls request.Progress after each page of the table. The estimate is the ItemCount of the table, which the service
// counts every six hours. Without the permission dynamodb:DescribeTable, or if the [Client] lacks the calls that Check
// needs, the estimate is zero.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if s.optionFaults != nil {
		return idempotency.Listing{}, s.optionFaults
	}
	if err := request.Validate(); err != nil {
		return idempotency.Listing{}, wrapError("list", err)
	}
	l := &listing{request: request, maxScanned: int64(cmp.Or(request.Scan, 100_000)), now: s.nowMicros()}
	l.Totals = make(map[idempotency.State]idempotency.Total)
	l.entries = firsts.New(cmp.Or(request.Limit, 100), request.Compare)
	err := retryStep(ctx, func() error { return s.compareClocks(ctx) })
	if err == nil && request.Progress != nil {
		l.estimate = s.countItems(ctx)
	}
	for next := true; next && err == nil; {
		next, err = s.scanPage(ctx, l)
	}
	if err != nil {
		return idempotency.Listing{}, wrapError("list", err)
	}
	l.Entries = l.entries.Values()
	return l.Listing, nil
}

// countItems returns how many items the table had when the service last counted them, or zero if the service does not tell.
func (s *Store) countItems(ctx context.Context) int64 {
	client, ok := s.client.(describer)
	if !ok {
		return 0
	}
	table, err := describeTable(ctx, client, s.opts)
	if err != nil {
		return 0
	}
	return aws.ToInt64(table.ItemCount)
}

// listing is the state of a call of List.
type listing struct {
	idempotency.Listing
	request    idempotency.ListRequest
	entries    *firsts.List[idempotency.Entry]
	maxScanned int64 // records that List may read
	scanned    int64 // records that List has read
	estimate   int64 // records in the table; 0: unknown
	now        int64
	nextStart  map[string]value // key at which the next page begins
}

// pageSize is the number of records of a Scan request. The service ends a page earlier after a megabyte.
const pageSize = 1000

// scanPage adds a page of the table to l, and reports whether List must read a further page. An error of
// ListRequest.Each is final.
func (s *Store) scanPage(ctx context.Context, l *listing) (next bool, err error) {
	var out *dynamodb.ScanOutput
	err = retryStep(ctx, func() (err error) {
		out, err = s.client.Scan(ctx, l.buildScan(s.opts), s.callOptions)
		return err
	})
	if err != nil {
		return false, err
	}
	for _, item := range out.Items {
		if err := l.addItem(item); err != nil {
			return false, err
		}
	}
	l.nextStart = out.LastEvaluatedKey
	l.scanned += int64(max(out.ScannedCount, out.Count))
	if l.request.Progress != nil {
		l.request.Progress(l.scanned, l.estimate)
	}
	hasMore := len(l.nextStart) > 0
	l.Partial = hasMore && l.scanned >= l.maxScanned
	return hasMore && !l.Partial, nil
}

// buildScan returns the request for the next page of the table. The service leaves out records that request does not ask
// for, except by their state.
func (l *listing) buildScan(opts Options) *dynamodb.ScanInput {
	filter, values := attrExpires+" > :now", map[string]value{":now": numberValue(l.now)}
	names := sqlstore.NamesOf(idempotency.Key{User: l.request.User, Endpoint: l.request.Endpoint, ID: l.request.ID})
	for i, name := range []string{attrUser, attrEndpoint, attrKey} {
		if names[i] != "" {
			filter += " AND " + name + " = :" + name
			values[":"+name] = &types.AttributeValueMemberS{Value: names[i]}
		}
	}
	if since := l.request.Since; !since.IsZero() {
		filter += " AND " + attrCreated + " >= :since"
		values[":since"] = numberValue(sqlstore.MicrosSince(since))
	}
	if before := l.request.Before; !before.IsZero() {
		filter += " AND " + attrCreated + " < :before"
		values[":before"] = numberValue(sqlstore.MicrosSince(before))
	}
	return &dynamodb.ScanInput{
		TableName: aws.String(opts.tableName()), ConsistentRead: aws.Bool(true), ExclusiveStartKey: l.nextStart,
		ProjectionExpression: aws.String(listedAttrs), FilterExpression: aws.String(filter),
		ExpressionAttributeValues: values, Limit: aws.Int32(int32(min(pageSize, l.maxScanned-l.scanned))),
	}
}

// addItem adds the record of an item, if the request asks for the record. The error is that of ListRequest.Each.
func (l *listing) addItem(item map[string]value) error {
	e, counts, err := decodeListedItem(item, l.now)
	switch {
	case err != nil:
		l.Unreadable++
		return nil
	case !counts, len(l.request.States) > 0 && !slices.Contains(l.request.States, e.State):
		return nil
	}
	sqlstore.AddTotal(&l.Listing, e)
	if l.request.Each != nil {
		return l.request.Each(e)
	}
	if l.request.After == nil || l.request.Compare(*l.request.After, e) < 0 {
		l.entries.Add(e)
	}
	return nil
}

// decodeListedItem returns the entry of an item that was read without response and checkpoints. counts reports whether the
// record counts.
func decodeListedItem(item map[string]value, now int64) (entry idempotency.Entry, counts bool, err error) {
	d := decoder{item: item}
	name, size, status := d.readText(attrOperation), d.readOptional(attrAnswerSize), d.readOptional(attrAnswerStatus)
	steps, resolved, note := d.readOptional(attrStepsSize), d.readOptional(attrResolvedSize), d.readText(attrAnswerNote)
	seen, err := decodeRecord(item, now)
	operation, nameErr := uuid.Parse(name)
	if err := errors.Join(d.err, err, nameErr); err != nil || operation.String() != name { // uuid.Parse accepts other forms
		return idempotency.Entry{}, false, sqlstore.Invalid("operation %q: %v", name, err)
	}
	seen.Response = sql.Null[[]byte]{Valid: size.Valid}
	if !seen.Counts() {
		return idempotency.Entry{}, false, nil
	}
	e, err := seen.Listed(operation)
	e.Size = seen.NamesSize() + size.Int64 + steps.Int64 + resolved.Int64
	if size.Valid {
		e.Status, e.Note = int(status.Int64), note
	}
	return e, true, errors.Join(err, sqlstore.CheckStatus(e.Status))
}
