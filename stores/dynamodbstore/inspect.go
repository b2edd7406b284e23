package dynamodbstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/firsts"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Store)(nil)

// Inspect implements [idempotency.Inspector]. It needs the permission dynamodb:GetItem, and no more.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.InspectDigest(ctx, key.Digest())
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (s *Store) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	if s.faults != nil {
		return idempotency.Entry{}, s.faults
	}
	return sqlstore.Inspect(ctx, leases{s}, digest)
}

// Forget implements [idempotency.Inspector]. It needs the permissions dynamodb:GetItem and dynamodb:DeleteItem.
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	if s.faults != nil {
		return s.faults
	}
	return sqlstore.Forget(ctx, leases{s}, entry)
}

// Resolve implements [idempotency.Resolver]. It needs the permissions dynamodb:GetItem and dynamodb:UpdateItem.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	if s.faults != nil {
		return s.faults
	}
	return sqlstore.Resolve(ctx, leases{s}, entry, resolution)
}

// listed are the attributes of a listing.
var listed = strings.Join([]string{
	digestName, userName, endpointName, keyName, attemptName, fingerprintName, tokenName, createdName, leaseName,
	expiresName, sizeName, statusName, noteName, stepsSizeName, resolvedSize,
}, ", ")

// List implements [idempotency.Inspector]. It needs the permission dynamodb:Scan. It reads the whole table, or as much of it
// as request.Scan says, and consumes one unit for each 4 KB, answers included.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if s.faults != nil {
		return idempotency.Listing{}, s.faults
	}
	if request.Limit < 0 || request.Scan < 0 {
		err := fmt.Errorf("a Limit of %d or a Scan of %d is less than zero", request.Limit, request.Scan)
		return idempotency.Listing{}, failure("list", err)
	}
	l := &listing{request: request, left: cmp.Or(request.Scan, 100_000), now: s.now()}
	l.Totals = make(map[idempotency.State]idempotency.Total)
	l.entries = firsts.New(cmp.Or(request.Limit, 100), l.compare)
	err := retry(ctx, func() error { return s.compareClocks(ctx) })
	for next := true; next && err == nil; {
		err = retry(ctx, func() (err error) {
			next, err = s.scan(ctx, l)
			return err
		})
	}
	if err != nil {
		return idempotency.Listing{}, failure("list", err)
	}
	l.Entries = l.entries.Values()
	return l.Listing, nil
}

// listing is a listing under way.
type listing struct {
	idempotency.Listing
	request idempotency.ListRequest
	entries *firsts.List[idempotency.Entry]
	left    int // how many records may still be looked at
	now     int64
	start   map[string]value // where the next page begins
}

// page is how many records a request looks at, unless they have more than a megabyte.
const page = 1000

// scan adds a page, and reports whether there is another one to add.
func (s *Store) scan(ctx context.Context, l *listing) (next bool, err error) {
	in := &dynamodb.ScanInput{
		TableName: aws.String(s.opts.table()), ConsistentRead: aws.Bool(true), ExclusiveStartKey: l.start,
		ProjectionExpression: aws.String(listed), FilterExpression: aws.String(expiresName + " > :now"),
		ExpressionAttributeValues: map[string]value{":now": number(l.now)}, Limit: aws.Int32(int32(min(page, l.left))),
	}
	if user := sqlstore.EscapeName(l.request.User); user != "" {
		in.FilterExpression = aws.String(*in.FilterExpression + " AND " + userName + " = :user")
		in.ExpressionAttributeValues[":user"] = &types.AttributeValueMemberS{Value: user}
	}
	out, err := s.client.Scan(ctx, in, s.calls)
	if err != nil {
		return false, err
	}
	for _, item := range out.Items {
		l.add(item)
	}
	l.start = out.LastEvaluatedKey
	l.left -= int(max(out.ScannedCount, out.Count))
	l.Partial = len(l.start) > 0 && l.left <= 0
	return len(l.start) > 0 && l.left > 0, nil
}

// add adds the record of an item, if it is asked for.
func (l *listing) add(item map[string]value) {
	e, counts, err := listedEntry(item, l.now)
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
	if l.request.After == nil || l.compare(*l.request.After, e) < 0 {
		l.entries.Add(e)
	}
}

// compare is the order of the entries.
func (l *listing) compare(a, b idempotency.Entry) int {
	larger := 0
	if l.request.Largest {
		larger = cmp.Compare(b.Size, a.Size)
	}
	return cmp.Or(larger, a.Created.Compare(b.Created), bytes.Compare(a.Digest[:], b.Digest[:]))
}

// listedEntry returns the entry of an item without answer and checkpoints, and whether the item is a record that counts.
func listedEntry(item map[string]value, now int64) (entry idempotency.Entry, counts bool, err error) {
	d := decoder{item: item}
	digest, size, status := d.bytes(digestName), d.optional(sizeName), d.optional(statusName)
	steps, resolved, note := d.optional(stepsSizeName), d.optional(resolvedSize), d.text(noteName)
	seen, err := decode(item, now)
	if err := errors.Join(d.err, err); err != nil || len(digest) != sha256.Size {
		return idempotency.Entry{}, false, sqlstore.Invalid("digest of %d bytes: %v", len(digest), err)
	}
	seen.Response = sql.Null[[]byte]{Valid: size.Valid}
	if !seen.Counts() {
		return idempotency.Entry{}, false, nil
	}
	e, err := seen.Listed([sha256.Size]byte(digest))
	e.Size = seen.NamesSize() + size.Int64 + steps.Int64 + resolved.Int64
	if size.Valid {
		e.Status, e.Note = int(status.Int64), note
	}
	return e, true, errors.Join(err, sqlstore.CheckStatus(e.Status))
}
