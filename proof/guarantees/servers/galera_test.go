package servers_test

import (
	"context"
	"database/sql"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// galera is a cluster of three nodes, and how its clients reach them.
type galera struct {
	nodes  []*servertest.Maria
	direct []*sql.DB // to each
}

func newGalera(t *testing.T) *galera {
	t.Helper()
	g := &galera{nodes: servertest.Galera(t, 3)}
	for _, node := range g.nodes {
		g.direct = append(g.direct, openMySQL(t, g.config(t, node)))
	}
	require.NoError(t, mysqlstore.Migrate(t.Context(), g.direct[0], mysqlstore.Options{}))
	_, err := g.direct[0].ExecContext(t.Context(), "CREATE TABLE ledger (id BIGINT AUTO_INCREMENT PRIMARY KEY, `key` VARCHAR(64) NOT NULL)")
	require.NoError(t, err)
	for _, node := range g.direct { // the others have it a little later
		require.Eventually(t, func() bool {
			_, err := node.ExecContext(t.Context(), "SELECT 1 FROM ledger")
			return err == nil
		}, patience, time.Millisecond)
	}
	return g
}

func (g *galera) config(t *testing.T, node *servertest.Maria) *mysql.Config {
	t.Helper()
	config, err := mysql.ParseDSN(node.DSN())
	require.NoError(t, err)
	config.Timeout, config.Logger = 5*time.Second, &mysql.NopLogger{}
	return config
}

// anywhere returns a pool whose connections lead to any of the nodes that take them.
func (g *galera) anywhere(t *testing.T, changes ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	config := g.config(t, g.nodes[0])
	for _, change := range changes {
		change(config)
	}
	config.DialFunc = func(ctx context.Context, network, _ string) (conn net.Conn, err error) {
		for _, i := range mathrand.Perm(len(g.nodes)) {
			var dialer net.Dialer
			if conn, err = dialer.DialContext(ctx, network, g.nodes[i].Addr()); err == nil {
				return conn, nil
			}
		}
		return nil, err
	}
	return openMySQL(t, config)
}

// causal has each read wait for what other nodes have committed before it.
func causal(config *mysql.Config) { config.Params = map[string]string{"wsrep_sync_wait": "1"} }

func openMySQL(t *testing.T, config *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.Close() }) // which fails if the pool has a connection to a node that was killed
	return db
}

// isolate has a node hear no other one, until heal is called.
func (g *galera) isolate(t *testing.T, node int) (heal func()) {
	t.Helper()
	set := func(option, ready string) {
		_, err := g.direct[node].ExecContext(t.Context(), "SET GLOBAL wsrep_provider_options = '"+option+"'")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			var name, value string
			err := g.direct[node].QueryRowContext(t.Context(), "SHOW STATUS LIKE 'wsrep_ready'").Scan(&name, &value)
			return err == nil && value == ready
		}, patience, 10*time.Millisecond)
	}
	set("gmcast.isolate=1", "OFF")
	return func() { set("gmcast.isolate=0", "ON") }
}

// payments is a ledger in the cluster. Each effect is a step.
type payments struct{ db *sql.DB }

func (payments) add(ctx context.Context, key string) error {
	_, err := mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) { return key, insertPayment(ctx, tx, key) })
	return err
}

func insertPayment(ctx context.Context, tx *sql.Tx, key string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (`key`) VALUES (?)", key)
	return err
}

func (p payments) effects(t *testing.T) map[string]int {
	t.Helper()
	rows, err := p.db.QueryContext(t.Context(), "SELECT `key`, COUNT(*) FROM ledger GROUP BY `key`")
	require.NoError(t, err)
	defer rows.Close()
	all := map[string]int{}
	for rows.Next() {
		var key string
		var count int
		require.NoError(t, rows.Scan(&key, &count))
		all[key] = count
	}
	require.NoError(t, rows.Err())
	return all
}

// The contract holds, whichever node a statement reaches, if each node waits for what the others have committed.
// Check says what else a cluster is.
func TestGaleraKeepsTheContract(t *testing.T) {
	t.Parallel()
	g := newGalera(t)
	store := mysqlstore.New(g.anywhere(t, causal), mysqlstore.Options{})
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	err := store.Check(t.Context())
	require.NotContains(t, fmt.Sprint(err), "wsrep")
	err = mysqlstore.New(g.anywhere(t), mysqlstore.Options{}).Check(t.Context())
	require.ErrorContains(t, err, "wsrep_sync_wait")
}

// A cluster whose nodes fail under load, one after the other, loses nothing and has nothing done twice, although requests
// of one key reach several nodes at once.
func TestGaleraNodesFail(t *testing.T) {
	t.Parallel()
	for fault, strike := range map[string]func(t *testing.T, g *galera, node int, load func()){
		"killed": func(t *testing.T, g *galera, node int, load func()) {
			g.nodes[node].Crash()
			load()
			require.NoError(t, g.nodes[node].Restart())
		},
		"isolated": func(t *testing.T, g *galera, node int, load func()) {
			heal := g.isolate(t, node)
			load()
			heal()
		},
	} {
		for _, kind := range kinds {
			t.Run(fault+", "+kind, func(t *testing.T) {
				t.Parallel()
				g := newGalera(t)
				book := map[string]ledger{outside: &memory{}, asRows: payments{g.direct[0]}}[kind]
				s := newShop(t, patient, book,
					mysqlstore.New(g.anywhere(t), mysqlstore.Options{}), mysqlstore.New(g.anywhere(t), mysqlstore.Options{}))
				faults := effort.Of(3)
				for n := range faults {
					s.open(100, func() { strike(t, g, n%len(g.nodes), func() { s.await(50) }) })
				}
				found := s.audit(t, loss{}, kind == asRows)
				effort.Count(t, "nodes "+fault, faults)
				found.report(t)
			})
		}
	}
}

// A step whose key is claimed on another node meanwhile commits nothing, and the successor on that node writes the rows once.
// The step fails at its commit, or at the statement before it if the other commit has arrived.
func TestGaleraStepIsOvertaken(t *testing.T) {
	t.Parallel()
	g := newGalera(t)
	key, book := idempotency.Key{ID: "on two nodes"}, payments{g.direct[2]}
	request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Second, TTL: time.Hour, TakeOver: true}
	begin := func(node int) (claim idempotency.Claim) {
		store := mysqlstore.New(g.direct[node], mysqlstore.Options{})
		require.Eventually(t, func() bool { // the lease has to lapse
			var err error
			_, claim, err = store.Begin(t.Context(), key, request)
			return err == nil && claim != nil
		}, patience, 10*time.Millisecond)
		return claim
	}
	write := func(claim idempotency.Claim, also func()) error {
		var tx *sql.Tx
		_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
			Name: "book", Var: &tx, Timeout: 10 * time.Second,
			Run: func() ([]byte, error) {
				err := insertPayment(t.Context(), tx, key.ID)
				also()
				return []byte("1"), err
			},
		})
		return err
	}
	var successor idempotency.Claim
	require.Error(t, write(begin(0), func() { successor = begin(1) }))
	require.NoError(t, write(successor, func() {}))
	require.NoError(t, successor.Complete(t.Context(), idempotency.Response{Status: 201}, time.Hour))
	require.Eventually(t, func() bool { return book.effects(t)[key.ID] == 1 }, patience, 10*time.Millisecond)
}
