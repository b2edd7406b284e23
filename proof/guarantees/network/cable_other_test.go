//go:build !linux

package network_test

import (
	"context"
	"errors"
	"net"
	"testing"
)

// cable stands for the cable of Linux, because other systems have no network namespaces.
type cable struct{}

func newCable(t *testing.T) *cable {
	requireNamespaces(t, errors.ErrUnsupported)
	return nil
}

func (*cable) cut()                                 {}
func (*cable) heal()                                {}
func (*cable) serveAtFar(*testing.T, string) string { return "" }

func (*cable) dialFromNear(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
