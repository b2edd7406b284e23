package benchmark

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// openDynamoDB builds an emulator of DynamoDB and starts it as a process of its own, whose allocations do not count.
func (b *Backends) openDynamoDB() error {
	program := filepath.Join(b.dir, "emulator")
	const source = "github.com/idempotency-go/idempotency/proof/benchmark/internal/emulator"
	if said, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("benchmark: the emulator of DynamoDB: %w: %s", err, said)
	}
	url, err := b.start(exec.Command(program))
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: b.dial, MaxIdleConnsPerHost: connections}
	b.closers = append(b.closers, transport.CloseIdleConnections)
	b.dynamo = dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url), HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
	b.Records[InDynamoDB] = Records{dynamodbstore.New(b.dynamo, dynamodbstore.Options{}), b.billed}
	return dynamodbstore.CreateTable(context.Background(), b.dynamo, dynamodbstore.Options{})
}

// billed returns how many bytes the service bills for all items: names and values of the attributes, and 100 bytes an item.
// Two digits of a number take one byte, and each number takes another.
func (b *Backends) billed() (bytes int64, err error) {
	table := &dynamodb.ScanInput{TableName: aws.String("idempotency_records")}
	for pages := dynamodb.NewScanPaginator(b.dynamo, table); pages.HasMorePages(); {
		page, err := pages.NextPage(context.Background())
		if err != nil {
			return 0, err
		}
		for _, item := range page.Items {
			bytes += 100
			for name, value := range item {
				bytes += int64(len(name))
				switch v := value.(type) {
				case *types.AttributeValueMemberN:
					bytes += int64(len(v.Value)+1)/2 + 1
				case *types.AttributeValueMemberS:
					bytes += int64(len(v.Value))
				case *types.AttributeValueMemberB:
					bytes += int64(len(v.Value))
				}
			}
		}
	}
	return bytes, nil
}

// start starts a program that ends with its standard input, and returns the first line of its output.
func (b *Backends) start(cmd *exec.Cmd) (line string, err error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", err
	}
	b.closers = append(b.closers, func() { _ = errors.Join(stdin.Close(), cmd.Wait()) })
	line, err = bufio.NewReader(stdout).ReadString('\n')
	return strings.TrimSpace(line), err
}
