// Command emulator serves an emulated DynamoDB on loopback, and prints the URL. The command ends with the end of its
// standard input.
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
