package main

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// duration has three significant digits.
func duration(d time.Duration) string {
	ns := float64(d.Nanoseconds())
	switch {
	case ns < 1e3:
		return number(ns) + " ns"
	case ns < 1e6:
		return number(ns/1e3) + " us"
	case ns < 1e9:
		return number(ns/1e6) + " ms"
	default:
		return number(ns/1e9) + " s"
	}
}

// rate is how many operations of that duration happen in a second.
func rate(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return number(float64(time.Second)/float64(d)/1e3) + " k/s"
}

// number has three significant digits, and all digits before the point.
func number(x float64) string {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	decimals := max(0, 2-int(math.Floor(math.Log10(math.Abs(x)))))
	s := strconv.FormatFloat(x, 'f', min(decimals, 3), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

func goVersion() string {
	return fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
