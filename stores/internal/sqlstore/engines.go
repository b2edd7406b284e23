package sqlstore

import (
	"fmt"
	"slices"
	"strings"
)

// Feature is something of SQL that statements use, and that not every engine has which speaks the protocol of a database.
type Feature struct {
	Name  string
	Uses  []string          // who uses it, such as "New" and "DoTx"
	Words string            // any of them in a statement shows that it is used
	Has   map[string]string // engines that have it, and where that is said
	Lacks map[string]string // engines that lack it, and where that is said
}

// IsUsedBy reports whether one of uses needs the feature.
func (f Feature) IsUsedBy(uses []string) bool {
	return slices.ContainsFunc(f.Uses, func(use string) bool { return slices.Contains(uses, use) })
}

// Engine is a server that speaks the protocol of a database, and is another one. No store was ever run on it: what is known
// of it, it says of itself.
type Engine struct {
	Name     string
	Versions []string // of the releases that were read about; none: it cannot be used at all
}

// Knows reports whether a version is of a release that was read about: "8.5" is the name of all of its patch releases.
func (e Engine) Knows(version string) bool {
	return slices.ContainsFunc(e.Versions, func(v string) bool { return strings.HasPrefix(version+".", v+".") })
}

// Refusal returns why the engine cannot be used in a version, or an empty string.
func (e Engine) Refusal(features []Feature, version string, uses ...string) string {
	if missing := e.Missing(features, uses...); len(missing) > 0 {
		return fmt.Sprintf("%s needs %s, which %s", strings.Join(uses, " with "), missing[0].Name, e.saysOf(missing[0]))
	}
	if !e.Knows(version) {
		return fmt.Sprintf("version %q is unknown, not one of %s", version, strings.Join(e.Versions, ", "))
	}
	return ""
}

// Missing returns the features that the engine does not say it has. The first is one that it says it lacks, if there is one.
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
		return "it lacks: " + source
	}
	return "its documentation does not show"
}
