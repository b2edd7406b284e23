package dynamodbstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
)

// smallPages is a table with pages of two items. The service knows the number of items, unless the permission is missing.
type smallPages struct {
	*table
	isDenied bool
}

// Scan implements [dynamodbstore.Client].
func (s *smallPages) Scan(
	ctx context.Context, in *dynamodb.ScanInput, _ ...func(*dynamodb.Options),
) (*dynamodb.ScanOutput, error) {
	small := *in
	small.Limit = aws.Int32(min(2, *in.Limit))
	out, err := s.table.Scan(ctx, &small)
	if err != nil {
		return nil, err
	}
	small.FilterExpression, small.ExpressionAttributeValues = nil, nil
	all, err := s.table.Scan(ctx, &small) // because the emulator does not count the items that the filter leaves out
	if err != nil {
		return nil, err
	}
	out.ScannedCount = all.Count
	return out, nil
}

// DescribeTimeToLive is never called.
func (s *smallPages) DescribeTimeToLive(
	context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options),
) (*dynamodb.DescribeTimeToLiveOutput, error) {
	panic("List does not ask for the Time to Live")
}

// DescribeTable returns the number of items in the table when the service last counted.
func (s *smallPages) DescribeTable(
	context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options),
) (*dynamodb.DescribeTableOutput, error) {
	if s.isDenied {
		return nil, errors.New("AccessDeniedException")
	}
	return &dynamodb.DescribeTableOutput{Table: &types.TableDescription{ItemCount: aws.Int64(17)}}, nil
}

func TestListByNames(t *testing.T) {
	t.Parallel()
	rowtest.ListByNames(t, dynamodbstore.New(newTable(t), testOptions), "dynamodbstore")
}

func TestListEach(t *testing.T) {
	t.Parallel()
	rowtest.ListEach(t, dynamodbstore.New(&smallPages{table: newTable(t)}, testOptions))
}

func TestListPages(t *testing.T) {
	t.Parallel()
	store, s := newStore(t)
	rowtest.ListPages(t, store, func(keys []string) {
		for _, key := range keys {
			s.setAttribute(key, "created", numberAttr("1700000000000000"))
		}
	})
}

// Progress is called after each page, with all records that List has read, matching or not. If Each fails, List reads no
// further page.
func TestListProgress(t *testing.T) {
	t.Parallel()
	for isDenied, estimate := range map[bool]int64{false: 17, true: 0} {
		pages := &smallPages{table: newTable(t), isDenied: isDenied}
		store := dynamodbstore.New(pages, testOptions)
		for i := range 5 {
			completeKey(t, store, strconv.Itoa(i))
		}
		list := func(request idempotency.ListRequest) (idempotency.Listing, string, error) {
			seen := ""
			request.Progress = func(read, total int64) { seen += fmt.Sprintf("%d/%d ", read, total) }
			listing, err := store.List(t.Context(), request)
			return listing, seen, err
		}
		listing, seen, err := list(idempotency.ListRequest{ID: "3"})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 1)
		require.Equal(t, fmt.Sprintf("2/%d 4/%[1]d 5/%[1]d ", estimate), seen)

		listing, seen, err = list(idempotency.ListRequest{Scan: 3})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 3)
		require.True(t, listing.Partial)
		require.Equal(t, fmt.Sprintf("2/%d 3/%[1]d ", estimate), seen)

		failure, calls := errors.New("the disk is full"), 0
		_, seen, err = list(idempotency.ListRequest{Each: func(idempotency.Entry) error {
			calls++
			if calls == 3 {
				return failure
			}
			return nil
		}})
		require.ErrorIs(t, err, failure)
		require.Equal(t, fmt.Sprintf("2/%d ", estimate), seen)
	}
}
