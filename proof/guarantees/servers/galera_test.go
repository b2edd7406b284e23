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

// galeraCluster is a cluster of three nodes.
type galeraCluster struct {
	nodes       []*servertest.Maria
	directPools []*sql.DB // one for each node
}

func newGalera(t *testing.T) *galeraCluster {
	t.Helper()
	g := &galeraCluster{nodes: servertest.Galera(t, 3)}
	for _, node := range g.nodes {
		g.directPools = append(g.directPools, openMySQL(t, g.parseConfig(t, node)))
	}
	require.NoError(t, mysqlstore.Migrate(t.Context(), g.directPools[0], mysqlstore.Options{}))
	_, err := g.directPools[0].ExecContext(t.Context(),
		"CREATE TABLE ledger (id BIGINT AUTO_INCREMENT PRIMARY KEY, `key` VARCHAR(64) NOT NULL)")
	require.NoError(t, err)
	for _, node := range g.directPools { // because the table reaches the other nodes a little later
		require.Eventually(t, func() bool {
			_, err := node.ExecContext(t.Context(), "SELECT 1 FROM ledger")
			return err == nil
		}, patience, time.Millisecond)
	}
	return g
}

func (g *galeraCluster) parseConfig(t *testing.T, node *servertest.Maria) *mysql.Config {
	t.Helper()
	config, err := mysql.ParseDSN(node.DSN())
	require.NoError(t, err)
	config.Timeout, config.Logger = 5*time.Second, &mysql.NopLogger{}
	return config
}

// openAnyNode returns a pool whose connections lead to random nodes that accept connections.
func (g *galeraCluster) openAnyNode(t *testing.T, changes ...func(*mysql.Config)) *sql.DB {
	t.Helper()
	config := g.parseConfig(t, g.nodes[0])
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

// awaitCausality makes each read wait for the earlier commits of other nodes.
func awaitCausality(config *mysql.Config) { config.Params = map[string]string{"wsrep_sync_wait": "1"} }

func openMySQL(t *testing.T, config *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	t.Cleanup(func() { _ = db.Close() }) // fails if the pool has a connection to a killed node
	return db
}

// isolateNode cuts a node off from the other nodes until heal is called.
func (g *galeraCluster) isolateNode(t *testing.T, node int) (heal func()) {
	t.Helper()
	set := func(option, ready string) {
		_, err := g.directPools[node].ExecContext(t.Context(), "SET GLOBAL wsrep_provider_options = '"+option+"'")
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			var name, value string
			err := g.directPools[node].QueryRowContext(t.Context(), "SHOW STATUS LIKE 'wsrep_ready'").Scan(&name, &value)
			return err == nil && value == ready
		}, patience, 10*time.Millisecond)
	}
	set("gmcast.isolate=1", "OFF")
	return func() { set("gmcast.isolate=0", "ON") }
}

// mysqlLedger is a ledger in the cluster. A step adds each effect.
type mysqlLedger struct{ db *sql.DB }

func (mysqlLedger) addEffect(ctx context.Context, key string) error {
	_, err := mysqlstore.DoTx(ctx, "book", func(tx *sql.Tx) (string, error) { return key, insertPayment(ctx, tx, key) })
	return err
}

func insertPayment(ctx context.Context, tx *sql.Tx, key string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO ledger (`key`) VALUES (?)", key)
	return err
}

func (p mysqlLedger) countEffects(t *testing.T) map[string]int {
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

// The contract holds for statements to any node if each node waits for the commits of the other nodes. Check reports a cluster
// whose nodes do not wait.
func TestGaleraKeepsTheContract(t *testing.T) {
	t.Parallel()
	g := newGalera(t)
	store := mysqlstore.New(g.openAnyNode(t, awaitCausality), mysqlstore.Options{})
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	err := store.Check(t.Context())
	require.NotContains(t, fmt.Sprint(err), "wsrep")
	err = mysqlstore.New(g.openAnyNode(t), mysqlstore.Options{}).Check(t.Context())
	require.ErrorContains(t, err, "wsrep_sync_wait")
}

// A cluster whose nodes fail under load, one after the other, loses no answer and repeats no effect, although requests with the
// same key reach several nodes at once.
func TestGaleraNodesFail(t *testing.T) {
	t.Parallel()
	for fault, strike := range map[string]func(t *testing.T, g *galeraCluster, node int, load func()){
		"killed": func(t *testing.T, g *galeraCluster, node int, load func()) {
			g.nodes[node].Crash()
			load()
			require.NoError(t, g.nodes[node].Restart())
		},
		"isolated": func(t *testing.T, g *galeraCluster, node int, load func()) {
			heal := g.isolateNode(t, node)
			load()
			heal()
		},
	} {
		for _, kind := range effectKinds {
			t.Run(fault+", "+kind, func(t *testing.T) {
				t.Parallel()
				g := newGalera(t)
				book := map[string]ledger{outsideEffects: &memoryLedger{}, rowEffects: mysqlLedger{g.directPools[0]}}[kind]
				s := newShop(t, patientOptions, book,
					mysqlstore.New(g.openAnyNode(t), mysqlstore.Options{}), mysqlstore.New(g.openAnyNode(t), mysqlstore.Options{}))
				faults := effort.Of(3)
				for n := range faults {
					s.payDuring(100, func() { strike(t, g, n%len(g.nodes), func() { s.awaitAnswers(50) }) })
				}
				found := s.auditSales(t, loss{}, kind == rowEffects)
				effort.Count(t, "nodes "+fault, faults)
				found.reportCounts(t)
			})
		}
	}
}

// A step commits nothing if another node grants its key meanwhile, and the successor on that node writes the rows once. The step
// fails at its commit, or at the statement before the commit if the commit of the other node has arrived.
func TestGaleraStepIsOvertaken(t *testing.T) {
	t.Parallel()
	g := newGalera(t)
	key, book := idempotency.Key{ID: "on two nodes"}, mysqlLedger{g.directPools[2]}
	request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Second, TTL: time.Hour, TakeOver: true}
	begin := func(node int) (claim idempotency.Claim) {
		store := mysqlstore.New(g.directPools[node], mysqlstore.Options{})
		require.Eventually(t, func() bool { // until the lease has lapsed
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
	require.Eventually(t, func() bool { return book.countEffects(t)[key.ID] == 1 }, patience, 10*time.Millisecond)
}

// A claim stores its answer although a node gets the statement before that node has the record, or the step. It does so whether or
// not reads wait for the commits of other nodes: the statement that stores the answer is no read.
func TestGaleraNodeLags(t *testing.T) {
	t.Parallel()
	g := newGalera(t)
	_, err := g.directPools[0].ExecContext(t.Context(), "CREATE TABLE bulk (n INT) SELECT seq AS n FROM seq_1_to_1000")
	require.NoError(t, err)
	for name, changes := range map[string][]func(*mysql.Config){"reads wait": {awaitCausality}, "reads do not wait": nil} {
		t.Run(name, func(t *testing.T) {
			answers := effort.Of(300)
			for n := range answers {
				g.answerOnNodeThatLags(t, fmt.Sprint(name, n), n%2 == 0, changes...)
			}
			effort.Count(t, "answers on a node that lags", answers)
		})
	}
}

// answerOnNodeThatLags claims key and runs a step on a node, and stores the answer on another node, which lags since before or
// after the claim.
func (g *galeraCluster) answerOnNodeThatLags(t *testing.T, id string, lacksClaim bool, changes ...func(*mysql.Config)) {
	t.Helper()
	current, config := 0, g.parseConfig(t, g.nodes[0])
	for _, change := range changes {
		change(config)
	}
	config.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, g.nodes[current].Addr())
	}
	pool := openMySQL(t, config)
	pool.SetMaxIdleConns(-1) // each statement goes to the current node
	store, key := mysqlstore.New(pool, mysqlstore.Options{}), idempotency.Key{ID: id}
	request := idempotency.ClaimRequest{Fingerprint: idempotency.Fingerprint{1}, Lease: time.Minute, TTL: time.Hour}
	delayOthers := func() { // the other nodes scan the table for each row, because the table has no key
		_, err := g.directPools[0].ExecContext(t.Context(), "UPDATE bulk SET n = n + 1")
		require.NoError(t, err)
	}
	if lacksClaim {
		delayOthers()
	}
	_, claim, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, claim)
	if !lacksClaim {
		require.Eventually(t, func() bool {
			_, err := mysqlstore.NewTable(g.directPools[1], mysqlstore.Options{}).Inspect(t.Context(), key)
			return err == nil
		}, patience, time.Millisecond)
		delayOthers()
	}
	var tx *sql.Tx
	_, err = claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: patience,
		Run: func() ([]byte, error) { return []byte("1"), insertPayment(t.Context(), tx, id) },
	})
	require.NoError(t, err)
	current = 1
	require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Status: 201}, time.Hour))
	record, _, err := store.Begin(t.Context(), key, request)
	require.NoError(t, err)
	require.NotNil(t, record.Response)
}
