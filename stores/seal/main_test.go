package seal_test

import (
	"testing"

	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) { testservice.Main(m) }
