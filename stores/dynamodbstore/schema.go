package dynamodbstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// CreateTable creates the table, waits until the table is usable, and makes the service delete expired items. If the table
// exists, CreateTable checks the key of the table, and enables Time to Live if necessary. CreateTable is for tests and first
// steps; the README has templates for CloudFormation and Terraform.
//
// The table is billed per request. CreateTable needs the permissions dynamodb:CreateTable, dynamodb:DescribeTable,
// dynamodb:DescribeTimeToLive and dynamodb:UpdateTimeToLive.
func CreateTable(ctx context.Context, client *dynamodb.Client, opts Options) error {
	if err := opts.findFaults(); err != nil {
		return err
	}
	key := aws.String(attrOperation)
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            aws.String(opts.tableName()),
		BillingMode:          types.BillingModePayPerRequest,
		KeySchema:            []types.KeySchemaElement{{AttributeName: key, KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: key, AttributeType: types.ScalarAttributeTypeS}},
	})
	if err != nil && !hasCode(err, "ResourceInUseException") {
		return wrapError("create table", err)
	}
	if err := awaitTable(ctx, client, opts); err != nil {
		return wrapError("create table", err)
	}
	return wrapError("create table", enableTimeToLive(ctx, client, opts))
}

// awaitTable waits until the table is usable, and checks the key of the table.
func awaitTable(ctx context.Context, client describer, opts Options) error {
	for {
		table, err := describeTable(ctx, client, opts)
		switch {
		case err != nil:
			return err
		case isUsable(table.TableStatus):
			return checkKeySchema(table)
		case !sqlstore.Pause(ctx, time.Second):
			return fmt.Errorf("the table is %s: %w", table.TableStatus, ctx.Err())
		}
	}
}

// isUsable reports whether a table with that status can keep records. An emulator may leave the status empty.
func isUsable(status types.TableStatus) bool {
	return status == types.TableStatusActive || status == types.TableStatusUpdating || status == ""
}

func describeTable(ctx context.Context, client describer, opts Options) (*types.TableDescription, error) {
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(opts.tableName())})
	if err != nil {
		return nil, err
	}
	if out.Table == nil {
		return nil, errors.New("the reply to DescribeTable has no table")
	}
	return out.Table, nil
}

// checkKeySchema returns an error unless the operation is the only key of the table, as text.
func checkKeySchema(table *types.TableDescription) error {
	keys := table.KeySchema
	if len(keys) != 1 || keys[0].KeyType != types.KeyTypeHash || aws.ToString(keys[0].AttributeName) != attrOperation {
		return fmt.Errorf("the key of table %s must be the partition key %s, without a sort key",
			aws.ToString(table.TableName), attrOperation)
	}
	for _, a := range table.AttributeDefinitions {
		if aws.ToString(a.AttributeName) == attrOperation && a.AttributeType != types.ScalarAttributeTypeS {
			return fmt.Errorf("the partition key of table %s is of type %s, not S", aws.ToString(table.TableName), a.AttributeType)
		}
	}
	return nil
}

// describeTimeToLive returns the attribute by which the service deletes items, and whether Time to Live is enabled or being
// enabled.
func describeTimeToLive(ctx context.Context, client describer, opts Options) (name string, isEnabled bool, err error) {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(opts.tableName())})
	if err != nil || out.TimeToLiveDescription == nil {
		return "", false, err
	}
	ttl := out.TimeToLiveDescription
	isEnabled = ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabled || ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	return aws.ToString(ttl.AttributeName), isEnabled, nil
}

// enableTimeToLive makes the service delete expired items.
func enableTimeToLive(ctx context.Context, client *dynamodb.Client, opts Options) error {
	if name, isEnabled, err := describeTimeToLive(ctx, client, opts); err != nil || isEnabled && name == attrRemoveAt {
		return err
	}
	_, err := client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: aws.String(opts.tableName()),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String(attrRemoveAt), Enabled: aws.Bool(true),
		},
	})
	if hasCode(err, "UnknownOperationException") { // an emulator without Time to Live; Check reports that items stay
		return nil
	}
	return err
}
