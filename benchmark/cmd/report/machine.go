package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	bm "github.com/idempotency-go/idempotency/benchmark"
)

// machine is what the figures depend on.
type machine struct {
	cpu, memory     string
	redis, postgres string
	modules         string
}

func thisMachine(ctx context.Context, b *bm.Backends) machine {
	m := machine{
		cpu:     fmt.Sprintf("%d x %s", runtime.NumCPU(), procField("/proc/cpuinfo", "model name")),
		memory:  procField("/proc/meminfo", "MemTotal"),
		modules: modules(),
	}
	var kib int
	if _, err := fmt.Sscanf(m.memory, "%d kB", &kib); err == nil {
		m.memory = fmt.Sprintf("%.0f GiB", float64(kib)/(1<<20))
	}
	info, _ := b.Redis.Info(ctx, "server").Result() // unknown is good enough here
	_, rest, _ := strings.Cut(info, "redis_version:")
	m.redis, _, _ = strings.Cut(rest, "\r\n")
	_ = b.Postgres.QueryRow(ctx, "SHOW server_version").Scan(&m.postgres)
	return m
}

// procField returns the first value of a field in a file of Linux, or "unknown".
func procField(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// modules lists the versions of what is compared.
func modules() string {
	shown := []string{
		"gofiber/fiber/v2", "gofiber/fiber/v3", "gofiber/storage/redis/v3", "redis/go-redis/v9", "jackc/pgx/v5",
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	var found []string
	for _, dep := range info.Deps {
		for _, name := range shown {
			if dep.Path == "github.com/"+name {
				found = append(found, name+" "+dep.Version)
			}
		}
	}
	return strings.Join(found, ", ")
}
