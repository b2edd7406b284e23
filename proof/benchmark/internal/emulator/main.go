// Command emulator serves an emulated DynamoDB on loopback, and prints its URL. It ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/truora/minidyn/server"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

func main() {
	service := servertest.DynamoDB(server.NewServer())
	fmt.Println(service.URL)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
