//go:build !linux

package network_test

import (
	"context"
	"errors"
	"net"
	"testing"
)

// cable cannot be made.
type cable struct{}

func newCable(t *testing.T) *cable {
	requireNamespaces(t, errors.ErrUnsupported)
	return nil
}

func (*cable) cut()                            {}
func (*cable) heal()                           {}
func (*cable) serve(*testing.T, string) string { return "" }

func (*cable) dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
