package dynamodbstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
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
// records as request.Scan allows, and consumes one unit for each 4 KB, responses included.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if s.optionFaults != nil {
		return idempotency.Listing{}, s.optionFaults
	}
	if request.Limit < 0 || request.Scan < 0 {
		err := fmt.Errorf("ListRequest.Limit %d or Scan %d is negative", request.Limit, request.Scan)
		return idempotency.Listing{}, wrapError("list", err)
	}
	l := &listing{request: request, remainingScan: cmp.Or(request.Scan, 100_000), now: s.nowMicros()}
	l.Totals = make(map[idempotency.State]idempotency.Total)
	l.entries = firsts.New(cmp.Or(request.Limit, 100), l.compareEntries)
	err := retryStep(ctx, func() error { return s.compareClocks(ctx) })
	for next := true; next && err == nil; {
		err = retryStep(ctx, func() (err error) {
			next, err = s.scanPage(ctx, l)
			return err
		})
	}
	if err != nil {
		return idempotency.Listing{}, wrapError("list", err)
	}
	l.Entries = l.entries.Values()
	return l.Listing, nil
}

// listing is the state of a call of List.
type listing struct {
	idempotency.Listing
	request       idempotency.ListRequest
	entries       *firsts.List[idempotency.Entry]
	remainingScan int // records that List may still read
	now           int64
	nextStart     map[string]value // key at which the next page begins
}

// pageSize is the number of records of a Scan request. The service ends a page earlier after a megabyte.
const pageSize = 1000

// scanPage adds a page of the table to l, and reports whether List must read a further page.
func (s *Store) scanPage(ctx context.Context, l *listing) (next bool, err error) {
	in := &dynamodb.ScanInput{
		TableName: aws.String(s.opts.tableName()), ConsistentRead: aws.Bool(true), ExclusiveStartKey: l.nextStart,
		ProjectionExpression: aws.String(listedAttrs), FilterExpression: aws.String(attrExpires + " > :now"),
		ExpressionAttributeValues: map[string]value{":now": numberValue(l.now)}, Limit: aws.Int32(int32(min(pageSize, l.remainingScan))),
	}
	if user := sqlstore.EscapeName(l.request.User); user != "" {
		in.FilterExpression = aws.String(*in.FilterExpression + " AND " + attrUser + " = :user")
		in.ExpressionAttributeValues[":user"] = &types.AttributeValueMemberS{Value: user}
	}
	out, err := s.client.Scan(ctx, in, s.callOptions)
	if err != nil {
		return false, err
	}
	for _, item := range out.Items {
		l.addItem(item)
	}
	l.nextStart = out.LastEvaluatedKey
	l.remainingScan -= int(max(out.ScannedCount, out.Count))
	l.Partial = len(l.nextStart) > 0 && l.remainingScan <= 0
	return len(l.nextStart) > 0 && l.remainingScan > 0, nil
}

// addItem adds the record of an item, if the request asks for the record.
func (l *listing) addItem(item map[string]value) {
	e, counts, err := decodeListedItem(item, l.now)
	switch {
	case err != nil:
		l.Unreadable++
		return
	case !counts:
		return
	case len(l.request.States) > 0 && !slices.Contains(l.request.States, e.State):
		return
	}
	total := l.Totals[e.State]
	l.Totals[e.State] = idempotency.Total{Records: total.Records + 1, Bytes: total.Bytes + e.Size}
	if l.request.After == nil || l.compareEntries(*l.request.After, e) < 0 {
		l.entries.Add(e)
	}
}

// compareEntries orders entries by size if the request asks for the largest, then by time of creation and operation.
func (l *listing) compareEntries(a, b idempotency.Entry) int {
	larger := 0
	if l.request.Order == idempotency.LargestFirst {
		larger = cmp.Compare(b.Size, a.Size)
	}
	return cmp.Or(larger, a.Created.Compare(b.Created), bytes.Compare(a.Operation[:], b.Operation[:]))
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
