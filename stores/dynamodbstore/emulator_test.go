package dynamodbstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"
	emulator "github.com/truora/minidyn/aws-v2/client"
)

// table is an emulated service without the SDK, because the SDK takes most of the time of the suites. A table handles one
// request at a time.
type table struct {
	*emulator.Client
	mu             sync.Mutex
	returnsOldItem bool // failed conditions return the stored item
}

func newTable(t testing.TB) *table {
	t.Helper()
	service := &table{Client: emulator.NewClient(), returnsOldItem: true}
	_, err := service.CreateTable(context.Background(), &dynamodb.CreateTableInput{
		TableName: aws.String(tableName), BillingMode: types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("operation"), AttributeType: "S"}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("operation"), KeyType: types.KeyTypeHash}},
	})
	require.NoError(t, err)
	return service
}

// UpdateItem implements [dynamodbstore.Client]. UpdateItem removes the attributes after REMOVE, because the emulator does
// not.
func (s *table) UpdateItem(
	ctx context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options),
) (*dynamodb.UpdateItemOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.Client.UpdateItem(ctx, in)
	if failed, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok && !s.returnsOldItem {
		failed.Item = nil
	}
	_, names, removes := strings.Cut(*in.UpdateExpression, " REMOVE ")
	if err != nil || !removes {
		return out, err
	}
	got, err := s.Client.GetItem(ctx, &dynamodb.GetItemInput{TableName: in.TableName, Key: in.Key})
	if err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(names, ", ") {
		delete(got.Item, name)
	}
	_, err = s.Client.PutItem(ctx, &dynamodb.PutItemInput{TableName: in.TableName, Item: got.Item})
	return out, err
}

// GetItem implements [dynamodbstore.Client].
func (s *table) GetItem(
	ctx context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options),
) (*dynamodb.GetItemOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Client.GetItem(ctx, in)
}

// DeleteItem implements [dynamodbstore.Client].
func (s *table) DeleteItem(
	ctx context.Context, in *dynamodb.DeleteItemInput, _ ...func(*dynamodb.Options),
) (*dynamodb.DeleteItemOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Client.DeleteItem(ctx, in)
}

// Scan implements [dynamodbstore.Client].
func (s *table) Scan(
	ctx context.Context, in *dynamodb.ScanInput, _ ...func(*dynamodb.Options),
) (*dynamodb.ScanOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Client.Scan(ctx, in)
}
