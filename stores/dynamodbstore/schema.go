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

// CreateTable makes the table, waits until it can be used, and has the service delete what has expired. It does nothing if
// the table is there already. It is for tests and first steps; the README has the same for CloudFormation and Terraform.
//
// The table is paid for by request. It needs the permissions dynamodb:CreateTable, dynamodb:DescribeTable,
// dynamodb:DescribeTimeToLive and dynamodb:UpdateTimeToLive.
func CreateTable(ctx context.Context, client *dynamodb.Client, opts Options) error {
	if err := opts.validate(); err != nil {
		return err
	}
	key := aws.String(digestName)
	_, err := client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            aws.String(opts.table()),
		BillingMode:          types.BillingModePayPerRequest,
		KeySchema:            []types.KeySchemaElement{{AttributeName: key, KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: key, AttributeType: types.ScalarAttributeTypeB}},
	})
	if err != nil && !hasCode(err, "ResourceInUseException") {
		return failure("create table", err)
	}
	if err := awaitTable(ctx, client, opts); err != nil {
		return failure("create table", err)
	}
	return failure("create table", expireItems(ctx, client, opts))
}

// awaitTable returns when the table can be used.
func awaitTable(ctx context.Context, client describer, opts Options) error {
	for {
		table, err := describe(ctx, client, opts)
		switch {
		case err != nil:
			return err
		case isUsable(table.TableStatus):
			return differs(table)
		case !sqlstore.Pause(ctx, time.Second):
			return fmt.Errorf("the table is %s: %w", table.TableStatus, ctx.Err())
		}
	}
}

// isUsable reports whether records can be kept. An emulator may not tell a status.
func isUsable(status types.TableStatus) bool {
	return status == types.TableStatusActive || status == types.TableStatusUpdating || status == ""
}

func describe(ctx context.Context, client describer, opts Options) (*types.TableDescription, error) {
	out, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(opts.table())})
	if err != nil {
		return nil, err
	}
	if out.Table == nil {
		return nil, errors.New("the service does not describe the table")
	}
	return out.Table, nil
}

// differs says in what the keys of a table are not those of records.
func differs(table *types.TableDescription) error {
	keys := table.KeySchema
	if len(keys) != 1 || keys[0].KeyType != types.KeyTypeHash || aws.ToString(keys[0].AttributeName) != digestName {
		return fmt.Errorf("the key of table %s is not the partition key %s alone", aws.ToString(table.TableName), digestName)
	}
	for _, a := range table.AttributeDefinitions {
		if aws.ToString(a.AttributeName) == digestName && a.AttributeType != types.ScalarAttributeTypeB {
			return fmt.Errorf("the partition key of table %s is of type %s, not B", aws.ToString(table.TableName), a.AttributeType)
		}
	}
	return nil
}

// timeToLive returns by which attribute the service deletes items, and whether it does.
func timeToLive(ctx context.Context, client describer, opts Options) (name string, enabled bool, err error) {
	out, err := client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: aws.String(opts.table())})
	if err != nil || out.TimeToLiveDescription == nil {
		return "", false, err
	}
	ttl := out.TimeToLiveDescription
	on := ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabled || ttl.TimeToLiveStatus == types.TimeToLiveStatusEnabling
	return aws.ToString(ttl.AttributeName), on, nil
}

// expireItems has the service delete what has expired.
func expireItems(ctx context.Context, client *dynamodb.Client, opts Options) error {
	if name, enabled, err := timeToLive(ctx, client, opts); err != nil || enabled && name == removeName {
		return err
	}
	_, err := client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName: aws.String(opts.table()),
		TimeToLiveSpecification: &types.TimeToLiveSpecification{
			AttributeName: aws.String(removeName), Enabled: aws.Bool(true),
		},
	})
	if hasCode(err, "UnknownOperationException") { // of an emulator, which deletes nothing; Check reports that
		return nil
	}
	return err
}
