package kept

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

func openDynamoDB(int) (*Target, error) {
	service := servertest.DynamoDB(server.NewServer())
	t := &Target{closers: []func(){service.Close}}
	client := dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(service.URL), HTTPClient: service.Client(),
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
	t.Store = dynamodbstore.New(client, dynamodbstore.Options{})
	t.Size = func() (bytes int64, err error) {
		out, err := client.Scan(context.Background(), &dynamodb.ScanInput{TableName: aws.String("idempotency_records")})
		if err != nil || len(out.LastEvaluatedKey) > 0 {
			return 0, fmt.Errorf("not all items: %w", err)
		}
		for _, item := range out.Items {
			bytes += billed(item)
		}
		return bytes, nil
	}
	return t.opened(dynamodbstore.CreateTable(context.Background(), client, dynamodbstore.Options{}))
}

// billed returns for how many bytes of an item the service bills: its attributes, by their names and values, and what it
// adds to each item for its index. Two digits of a number take a byte, and the number one more.
func billed(item map[string]types.AttributeValue) (n int64) {
	n = 100
	for name, value := range item {
		n += int64(len(name))
		switch v := value.(type) {
		case *types.AttributeValueMemberN:
			n += int64(len(v.Value)+1)/2 + 1
		case *types.AttributeValueMemberS:
			n += int64(len(v.Value))
		case *types.AttributeValueMemberB:
			n += int64(len(v.Value))
		}
	}
	return n
}
