package benchmark

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// DynamoDB is the library on an emulator, in a process of its own. How long that takes says nothing of the service, so only
// what is on this side of the connection is measured.
var DynamoDB = &Subject{Name: "idempotency, DynamoDB", Store: InDynamoDB, Mark: ReplayMark,
	Open: func(b *Backends, app *App) (*Target, error) {
		return overLibrary(dynamodbstore.New(b.DynamoDB, dynamodbstore.Options{}), app)
	}}

// openDynamoDB builds the emulator and starts it. It is no server whose processor time counts.
func (b *Backends) openDynamoDB(dial dialer) error {
	dir, err := os.MkdirTemp("", "idempotency-benchmark-")
	if err != nil {
		return err
	}
	b.closers = append(b.closers, func() { _ = os.RemoveAll(dir) })
	program := filepath.Join(dir, "emulator")
	const source = "github.com/idempotency-go/idempotency/proof/benchmark/internal/emulator"
	if said, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("benchmark: the emulator of DynamoDB: %w: %s", err, said)
	}
	url, err := b.start(exec.Command(program))
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: connections}
	b.closers = append(b.closers, transport.CloseIdleConnections)
	b.DynamoDB = dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(url), HTTPClient: &http.Client{Transport: transport},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
	return dynamodbstore.CreateTable(context.Background(), b.DynamoDB, dynamodbstore.Options{})
}

// start starts a program that ends with its standard input, and returns the first line that it prints.
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
