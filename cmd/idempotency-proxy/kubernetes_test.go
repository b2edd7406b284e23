package main_test

import (
	"bytes"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The image in the manifest has the version of the release, the flags exist, and the grace period of the pod is longer than a shutdown of the proxy may take.
func TestKubernetesManifest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	var deployment struct {
		Spec struct {
			Replicas int
			Template struct {
				Spec struct {
					GracePeriod int `yaml:"terminationGracePeriodSeconds"`
					Containers  []struct {
						Image string
						Args  []string
					}
				}
			}
		}
	}
	var kinds []string
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document struct{ Kind string }
		err := documents.Decode(&document)
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		kinds = append(kinds, document.Kind)
	}
	require.Equal(t, []string{"Deployment", "Service", "PodDisruptionBudget"}, kinds)
	require.NoError(t, yaml.Unmarshal(text, &deployment))
	require.Equal(t, 2, deployment.Spec.Replicas)

	_, help, _ := runProgram(t, nil, "-h")
	var known []string
	for _, flag := range flagHelp.FindAllStringSubmatch(help, -1) {
		known = append(known, flag[1])
	}
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	delay, timeout := flags.Duration("shutdown-delay", 0, ""), flags.Duration("shutdown-timeout", 0, "")
	pod := deployment.Spec.Template.Spec
	for _, arg := range pod.Containers[0].Args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		require.True(t, slices.Contains(known, name), arg)
		if flags.Lookup(name) != nil {
			require.NoError(t, flags.Parse([]string{arg}))
		}
	}
	goMod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	_, version, _ := strings.Cut(pod.Containers[0].Image, "/idempotency-proxy:")
	require.Contains(t, string(goMod), "github.com/idempotency-go/idempotency "+version+"\n")
	require.Positive(t, *delay)
	require.Less(t, *delay+*timeout, time.Duration(pod.GracePeriod)*time.Second)
}
