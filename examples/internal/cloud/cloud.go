// Package cloud emulates AWS for an example. The emulator minidyn serves DynamoDB, and an [Instance] runs the program of the
// example in child processes, as Lambda runs a function.
package cloud

import (
	"context"
	"os"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// Start starts the emulator of DynamoDB, and creates a table for records. Start also sets environment variables that lead the
// SDK to the emulator, in this process and in its children. stop ends the emulator.
func Start() (stop func()) {
	service := servertest.DynamoDB(server.NewServer())
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_DYNAMODB": service.URL, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false", "AWS_REGION": "eu-central-1",
		"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		demo.Check(os.Setenv(name, value))
	}
	ctx := context.Background()
	settings, err := config.LoadDefaultConfig(ctx)
	demo.Check(err)
	demo.Check(dynamodbstore.CreateTable(ctx, dynamodb.NewFromConfig(settings), dynamodbstore.Options{}))
	return service.Close
}
