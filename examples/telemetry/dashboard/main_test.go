package main_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/examples/telemetry/board"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The picture is an SVG with every panel. The command compares the number of requests on the dashboard with the number that
// the clients have sent, and fails if the numbers differ.
func TestPictureHasEveryPanel(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"redis-server", "prometheus"} {
		_, err := exec.LookPath(program)
		servertest.Require(t, err)
	}
	picture := filepath.Join(t.TempDir(), "dashboard.svg")
	cmd := exec.CommandContext(t.Context(), "go", "run", "./examples/telemetry/dashboard", "-for", "8s", "-o", picture)
	cmd.Dir, cmd.WaitDelay = "../../..", 10*time.Second
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)

	texts := readTexts(t, picture)
	panels, err := board.LoadPanels("../../../adapters/otelidempotency/monitoring/grafana.json")
	require.NoError(t, err)
	for _, panel := range panels {
		require.Contains(t, texts, panel.Title)
	}
	for _, series := range []string{"executed", "replayed", "p99"} {
		require.Contains(t, texts, series)
	}
}

// readTexts returns all text in the SVG file.
func readTexts(t *testing.T, file string) (texts []string) {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	for decoder := xml.NewDecoder(in); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		require.NoError(t, err)
		if text, ok := token.(xml.CharData); ok {
			texts = append(texts, string(text))
		}
	}
}
