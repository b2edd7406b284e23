package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/logging"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// openDynamoDB opens a table. The SDK takes missing settings from its environment variables and files.
func openDynamoDB(ctx context.Context, c *config) (*storeBackend, error) {
	u := c.storeURL
	if u.User != nil || u.Path+u.Opaque != "" {
		return nil, errors.New("want dynamodb://table?region=eu-central-1, without credentials")
	}
	query := u.Query()
	for name := range query {
		if name != "region" && name != "endpoint" {
			return nil, fmt.Errorf("parameter %q is unknown: want region or endpoint", name)
		}
	}
	settings, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(query.Get("region")), awsconfig.WithLogger(awsLogger))
	if err != nil {
		return nil, err
	}
	if settings.Region == "" {
		return nil, errors.New("which region? want dynamodb://table?region=eu-central-1, or AWS_REGION")
	}
	client := dynamodb.NewFromConfig(settings, func(o *dynamodb.Options) {
		if endpoint := query.Get("endpoint"); endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
	store := dynamodbstore.New(client, dynamodbstore.Options{Table: u.Host})
	return &storeBackend{
		Store: store,
		checkStore: func(ctx context.Context) error {
			if _, err := settings.Credentials.Retrieve(ctx); err != nil {
				return fmt.Errorf("no credentials: %w", err)
			}
			return store.Check(ctx)
		},
		pingServer: func(ctx context.Context) error { return pingDynamoDB(ctx, store) },
	}, nil
}

// pingDynamoDB reads a missing record, because services have the permission to read, and a read is cheap.
func pingDynamoDB(ctx context.Context, store *dynamodbstore.Store) error {
	_, err := store.InspectOperation(ctx, uuid.Nil)
	if errors.Is(err, idempotency.ErrNoRecord) {
		return nil
	}
	return err
}

// awsLogger passes the messages of the SDK to the log of the proxy.
var awsLogger = logging.LoggerFunc(func(_ logging.Classification, format string, args ...any) {
	slog.Warn("aws: " + fmt.Sprintf(format, args...))
})
