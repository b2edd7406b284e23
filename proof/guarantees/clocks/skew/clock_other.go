//go:build !(linux && amd64)

package skew

import "errors"

func followFile(*[clocks]int64) error { return errors.ErrUnsupported }
