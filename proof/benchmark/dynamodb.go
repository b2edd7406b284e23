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

// openDynamoDB builds an emulator of DynamoDB, and starts the emulator in a separate process, because allocations of this
// process are counted.
func (b *Backends) openDynamoDB() error {
	program := filepath.Join(b.tempDir, "emulator")
	const source = "github.com/idempotency-go/idempotency/proof/benchmark/internal/emulator"
	if buildOutput, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("benchmark: the emulator of DynamoDB: %w: %s", err, buildOutput)
	}
	url, err := b.startProgram(exec.Command(program))
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: b.dial, MaxIdleConnsPerHost: connections}
	b.closeFuncs = append(b.closeFuncs, transport.CloseIdleConnections)
	b.dynamoClient = dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url), HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
	b.Records[InDynamoDB] = Records{Store: dynamodbstore.New(b.dynamoClient, dynamodbstore.Options{}), Size: b.computeBilledBytes}
	return dynamodbstore.CreateTable(context.Background(), b.dynamoClient, dynamodbstore.Options{})
}

// computeBilledBytes returns the bytes that the service bills for all items: names and values of the attributes, and 100
// bytes for each item. A number takes a byte for every two digits, and one byte more.
func (b *Backends) computeBilledBytes() (bytes int64, err error) {
	table := &dynamodb.ScanInput{TableName: aws.String("idempotency_records")}
	for pages := dynamodb.NewScanPaginator(b.dynamoClient, table); pages.HasMorePages(); {
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

// startProgram starts cmd, and returns the first line of the output. Close ends the program by closing its standard input.
func (b *Backends) startProgram(cmd *exec.Cmd) (line string, err error) {
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
	b.closeFuncs = append(b.closeFuncs, func() { _ = errors.Join(stdin.Close(), cmd.Wait()) })
	line, err = bufio.NewReader(stdout).ReadString('\n')
	return strings.TrimSpace(line), err
}
