package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// openDynamoDB opens a table. The SDK takes missing settings from its environment variables and files.
func (a *app) openDynamoDB(address string) (*openedStore, error) {
	u, err := url.Parse(address)
	if err != nil || u.User != nil || u.Path+u.Opaque != "" { // the text of err may contain a credential
		return nil, errors.New("the URL of DynamoDB cannot be read: want dynamodb://table?region=eu-central-1, without credentials")
	}
	query := u.Query()
	for name := range query {
		if name != "region" && name != "endpoint" {
			return nil, fmt.Errorf("the URL of DynamoDB: parameter %q is unknown: want region or endpoint", name)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	settings, err := config.LoadDefaultConfig(ctx, config.WithRegion(query.Get("region")), config.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, fmt.Errorf("DynamoDB: %w", err)
	}
	if settings.Region == "" {
		return nil, errors.New("DynamoDB: which region? want dynamodb://table?region=eu-central-1, or AWS_REGION")
	}
	if _, err := settings.Credentials.Retrieve(ctx); err != nil {
		return nil, failWith(exitUnknown, "DynamoDB: no credentials: %w", err)
	}
	client := dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) {
		if endpoint := query.Get("endpoint"); endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
	table := cmp.Or(u.Host, a.flags.Table, "idempotency_records")
	return &openedStore{
		openableStore: dynamodbstore.New(client, dynamodbstore.Options{Table: table}), closeClient: func() {},
		description: visible.Text(fmt.Sprintf("DynamoDB in %s, table %s", settings.Region, table)),
	}, nil
}
