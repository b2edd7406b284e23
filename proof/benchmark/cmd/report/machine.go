package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// machine is what the figures depend on.
type machine struct {
	hardware                string
	redis, valkey, postgres string // versions
	modules                 string
}

func thisMachine(b *bm.Backends) machine {
	m := machine{redis: redisVersion(b), modules: modules()}
	m.hardware = fmt.Sprintf("%d x %s, %s of memory", runtime.NumCPU(),
		procField("/proc/cpuinfo", "model name"), procField("/proc/meminfo", "MemTotal"))
	_ = b.Postgres.QueryRow(context.Background(), "SHOW server_version").Scan(&m.postgres) // unknown is good enough
	return m
}

func (m machine) software() string {
	valkey := "no Valkey"
	if m.valkey != "" {
		valkey = "Valkey " + m.valkey
	}
	return fmt.Sprintf("%s %s/%s, Redis %s, %s, PostgreSQL %s",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, m.redis, valkey, m.postgres)
}

func redisVersion(b *bm.Backends) string {
	info := b.Redis.InfoMap(context.Background(), "server")
	if version := info.Item("Server", "valkey_version"); version != "" {
		return version
	}
	return info.Item("Server", "redis_version")
}

// procField returns the first value of a field in a file of Linux, or "unknown".
func procField(file, name string) string {
	text, _ := os.ReadFile(file)
	found := regexp.MustCompile(`(?m)^` + name + `\s*:\s*(.*)$`).FindSubmatch(text)
	if found == nil {
		return "unknown"
	}
	return string(found[1])
}

// modules lists the versions of what is compared.
func modules() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	shown := []string{"gofiber/fiber/v3", "gofiber/storage/redis/v3", "redis/go-redis/v9", "jackc/pgx/v5"}
	var found []string
	for _, dep := range info.Deps {
		if name := strings.TrimPrefix(dep.Path, "github.com/"); slices.Contains(shown, name) {
			found = append(found, name+" "+dep.Version)
		}
	}
	return strings.Join(found, ", ")
}

// duration has three significant digits.
func duration(d time.Duration) string {
	if d < time.Microsecond {
		return number(float64(d)) + " ns"
	}
	return number(d.Seconds()*1e6) + " us"
}

// rate is how many operations of that duration happen in a second.
func rate(d time.Duration) string { return number(1/d.Seconds()/1e3) + " k/s" }

// number has three significant digits, and all digits before the point.
func number(x float64) string {
	decimals := 2
	if x != 0 {
		decimals = min(3, max(0, 2-int(math.Floor(math.Log10(math.Abs(x))))))
	}
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
