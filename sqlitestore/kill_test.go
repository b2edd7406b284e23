package sqlitestore_test

import (
	"testing"
)

const mortalPath = "SQLITESTORE_MORTAL"

func live(string) {}

func TestNothing(*testing.T) {}
