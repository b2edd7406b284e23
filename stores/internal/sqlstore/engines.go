package sqlstore

import (
	"fmt"
	"slices"
	"strings"
)

// Feature is a part of SQL used by statements of a store, and missing from some engines with the protocol of the
// database.
type Feature struct {
	Name  string
	Uses  []string          // functions that use the feature, such as "New" and "DoTx"
	Words string            // every word shows that a statement uses the feature
	Has   map[string]string // sources by name of the engines with the feature
	Lacks map[string]string // sources by name of the engines without the feature
}

// IsUsedBy reports whether any of uses needs the feature.
func (f Feature) IsUsedBy(uses []string) bool {
	return slices.ContainsFunc(f.Uses, func(use string) bool { return slices.Contains(uses, use) })
}

// Engine is a server with the protocol of a database but a different implementation. The tests never run on an Engine:
// its documentation is the only source.
type Engine struct {
	Name     string
	Versions []string // releases whose documentation was read; empty: the engine cannot be used
}

// Knows reports whether version belongs to a release in Versions: "8.5" stands for all patch releases of 8.5.
func (e Engine) Knows(version string) bool {
	return slices.ContainsFunc(e.Versions, func(v string) bool { return strings.HasPrefix(version+".", v+".") })
}

// Refusal returns the reason to refuse a version of the engine, or an empty string.
func (e Engine) Refusal(features []Feature, version string, uses ...string) string {
	if missing := e.Missing(features, uses...); len(missing) > 0 {
		return fmt.Sprintf("%s needs %s, which %s", strings.Join(uses, " with "), missing[0].Name, e.saysOf(missing[0]))
	}
	if !e.Knows(version) {
		return fmt.Sprintf("version %q is unknown, not one of %s", version, strings.Join(e.Versions, ", "))
	}
	return ""
}

// Missing returns the features without a source that the engine has them. A feature known to be missing comes first.
func (e Engine) Missing(features []Feature, uses ...string) (missing []Feature) {
	for _, f := range features {
		if f.Has[e.Name] == "" && f.IsUsedBy(uses) {
			missing = append(missing, f)
		}
	}
	if first := slices.IndexFunc(missing, func(f Feature) bool { return f.Lacks[e.Name] != "" }); first > 0 {
		missing[0], missing[first] = missing[first], missing[0]
	}
	return missing
}

func (e Engine) saysOf(f Feature) string {
	if source := f.Lacks[e.Name]; source != "" {
		return "the engine lacks: " + source
	}
	return "the documentation of the engine does not show"
}
