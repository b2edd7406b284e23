package main_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// No command prints a credential of a variable, a flag, a file or an argument, whatever the error is.
func TestCredentialsAreNotPrinted(t *testing.T) {
	t.Parallel()
	const secret = "top%20s3cret" // in decoded form "top s3cret"
	db, err := sharedPostgres()
	servertest.Require(t, err)
	maria, err := sharedMariaDB()
	servertest.Require(t, err)
	redis, postgres, mysql := servertest.Redis(t).Addr(), db.Addr(), maria.Addr()
	host, port, _ := strings.Cut(postgres, ":")
	home := t.TempDir()
	passwords := fmt.Sprintf("%s:%s:*:postgres:top s3cret\n", host, port)
	require.NoError(t, os.WriteFile(filepath.Join(home, ".pgpass"), []byte(passwords), 0o600))
	words := "host=" + host + " port=" + port + " user=postgres"
	const closedAddress = "127.0.0.1:1"
	type setting struct {
		environment, flags []string
		allCommands        bool // run all commands, and not only some
	}
	atRedis := func(rest string) setting {
		return setting{environment: []string{"REDIS_URL=redis://:" + secret + rest}}
	}
	atPostgres := func(rest string) setting {
		return setting{environment: []string{"DATABASE_URL=postgres://postgres:" + secret + rest}}
	}
	variables := func(variables ...string) setting { return setting{environment: variables} }
	flags := func(flags ...string) setting { return setting{flags: flags} }
	for name, test := range map[string]setting{
		"Redis refuses":              {environment: atRedis("@" + redis).environment, allCommands: true},
		"Redis refuses the variable": variables("REDIS_URL=redis://"+redis, "REDISCLI_AUTH=top s3cret"),
		"Redis refuses a user":       variables("REDIS_URL=redis://support:" + secret + "@" + redis),
		"Redis is down":              atRedis("@" + closedAddress),
		"Cluster refuses":            atRedis("@" + redis + "?addr=" + redis),
		"Sentinel is down": {environment: atRedis("@" + closedAddress + "?master_name=m&password=" + secret).environment,
			flags: []string{"--timeout", "500ms"}},
		"Redis, no host":             {environment: atRedis("@").environment, flags: []string{"--timeout", "1s"}},
		"Redis, no port":             atRedis("@host:port"),
		"Redis, no database":         atRedis("@host/records"),
		"Redis, unknown parameter":   atRedis("@host?pass=" + secret),
		"Redis, no scheme":           variables("REDIS_URL=:" + secret + "@host"),
		"Redis, another scheme":      variables("REDIS_URL=http://:" + secret + "@host"),
		"Redis, a slash within":      atRedis("/x@host"),
		"Redis, a control character": atRedis("\x7f@host"),

		"PostgreSQL refuses":         {environment: atPostgres("@" + postgres + "/postgres").environment, allCommands: true},
		"PostgreSQL refuses words":   variables("DATABASE_URL=" + words + " password='top s3cret'"),
		"PostgreSQL, .pgpass":        variables("HOME="+home, "DATABASE_URL=postgres://postgres@"+postgres+"/postgres"),
		"PostgreSQL is down":         atPostgres("@" + closedAddress + "/postgres"),
		"PostgreSQL, no port":        atPostgres("@host:port/postgres"),
		"PostgreSQL, broken words":   variables("DATABASE_URL=password='top s3cret' nonsense"),
		"PostgreSQL, an open quote":  variables("DATABASE_URL=password='top s3cret"),
		"PostgreSQL, a parameter":    variables("DATABASE_URL=postgres://h/?password=" + secret + "&sslmode=" + secret),
		"PostgreSQL, a slash within": atPostgres("/x@host/db"),
		"PostgreSQL, a bad escape":   atPostgres("%zz@host/db"),
		"PostgreSQL, variables": {
			environment: []string{"PGHOST=" + host, "PGPORT=" + port, "PGUSER=postgres", "PGPASSWORD=top s3cret"},
			flags:       []string{"--store", "postgres"},
		},

		"MySQL refuses": {environment: []string{"DATABASE_URL=mysql://root:" + secret + "@" + mysql + "/shop"},
			allCommands: true},
		"MySQL, MYSQL_PWD":      variables("DATABASE_URL=mysql://root@"+mysql+"/shop", "MYSQL_PWD=top s3cret"),
		"MySQL is down":         variables("DATABASE_URL=mysql://root:" + secret + "@" + closedAddress + "/shop"),
		"MySQL, no host":        variables("DATABASE_URL=mysql://root:" + secret + "@/shop"),
		"MySQL, no port":        variables("DATABASE_URL=mysql://root:" + secret + "@host:port/shop"),
		"MySQL, as the driver":  variables("DATABASE_URL=mysql://root:" + secret + "@tcp(host:1)/shop"),
		"MySQL, a parameter":    variables("DATABASE_URL=mysql://root@host/shop?tls=" + secret + "&password=" + secret),
		"MySQL, a slash within": variables("DATABASE_URL=mysql://root:" + secret + "/x@host/shop"),
		"a flag of MySQL":       flags("--store", "mysql://root:"+secret+"@"+mysql+"/shop"),
		"a flag of MySQL, a word": {environment: []string{"DATABASE_URL=mysql://root:" + secret + "@" + mysql},
			flags: []string{"--store", "mysql"}},
		"a flag of another store": {environment: []string{"DATABASE_URL=mysql://root:" + secret + "@" + mysql},
			flags: []string{"--store", "sqlite"}},

		"both":                        {environment: append(atRedis("@h").environment, atPostgres("@h/").environment...)},
		"a flag of Redis":             flags("--store", "redis://:"+secret+"@"+redis),
		"a flag of PostgreSQL":        flags("--store", "postgres://u:"+secret+"@"+postgres+"/db"),
		"a parameter in a flag":       flags("--store", "postgres://u@"+postgres+"/db?password="+secret),
		"a flag that is no URL":       flags("--store", "redis://:"+secret+"@h:port%"),
		"an argument":                 flags("redis://:" + secret + "@" + redis),
		"an argument with a line end": flags("postgres://u:" + secret + "@h\n/db"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// These commands print a failure in all forms: as an error, as a finding, as a finding in JSON, and in the help.
			commands := [][]string{commandForAlice("inspect"), {"check"}, {"check", "--json"}, {"list", "--help"}}
			if test.allCommands {
				commands = append(commands, commandForAlice("inspect", "--json"), commandForAlice("forget", "--yes"),
					resolveCommand(keyOfAlice, "--not-happened", "--yes"), []string{"list"}, []string{"stats", "--json"}, []string{"--version"})
			}
			for _, args := range commands {
				got := runProcess(t, test.environment, append(args, test.flags...)...)
				said := got.stdout + got.stderr
				if args[len(args)-1] != "--help" && args[0] != "--version" {
					require.Contains(t, []int{2, 3}, got.status, "%v: %s", args, said)
				}
				require.NotContains(t, said, "s3cret", args)
				require.NotContains(t, said, "panic", args)
				require.LessOrEqual(t, strings.Count(got.stderr, "\n"), 1, said)
			}
		})
	}
}

// The program uses passwords from the URL, from variables, and from .pgpass.
func TestWhereCredentialsComeFrom(t *testing.T) {
	t.Parallel()
	redis, postgres, mysql := newRedis(t), newPostgres(t), newMySQL(t)
	parse := func(b backend) (u *url.URL, password string) {
		u, err := url.Parse(b.url())
		require.NoError(t, err)
		password, _ = u.User.Password()
		u.User = url.User(u.User.Username())
		return u, password
	}
	r, redisPassword := parse(redis)
	p, postgresPassword := parse(postgres)
	m, mysqlPassword := parse(mysql)
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, ".pgpass"), []byte("*:*:*:*:"+postgresPassword+"\n"), 0o600))
	for name, test := range map[string]struct{ environment, args []string }{
		"REDIS_URL":     {redis.environment, nil},
		"REDISCLI_AUTH": {[]string{"REDISCLI_AUTH=" + redisPassword}, []string{"--store", "redis://" + r.Host}},
		"DATABASE_URL":  {postgres.environment, nil},
		"PGPASSWORD":    {[]string{"PGPASSWORD=" + postgresPassword}, []string{"--store", p.String()}},
		".pgpass":       {[]string{"HOME=" + home}, []string{"--store", p.String()}},
		"PG variables": {
			[]string{
				"PGHOST=127.0.0.1", "PGPORT=" + p.Port(), "PGUSER=postgres", "PGDATABASE=" + p.Path[1:],
				"PGPASSWORD=" + postgresPassword,
			},
			[]string{"--store", "postgres"},
		},
		"MySQL":     {mysql.environment, nil},
		"MYSQL_PWD": {[]string{"MYSQL_PWD=" + mysqlPassword}, []string{"--store", m.String()}},
		"MariaDB": {[]string{"MYSQL_PWD=" + mysqlPassword},
			[]string{"--store", "mariadb" + strings.TrimPrefix(m.String(), "mysql") + "?tls=false"}},
		"one of two": {append(redis.environment, postgres.environment...), []string{"--store", "postgres"}},
		"the other":  {append(redis.environment, postgres.environment...), []string{"--store", "redis"}},
	} {
		got := runProcess(t, test.environment, append([]string{"stats"}, test.args...)...)
		require.Zero(t, got.status, "%s: %s", name, got.stderr)
	}
}
