package main

import (
	"context"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	modules "golang.org/x/mod/module"
)

// listFolder has a list for each library, with a line for each exported name and signature. After a changed line, users may
// have to change code. An added line requires no change, so an interface is a single line with all methods, because a new
// method of an interface may break users.
const listFolder = "proof/release/api"

func (w *workspace) listFile(m *module) string {
	name := strings.ReplaceAll(m.dir, "/", "-")
	if m.dir == "." {
		name = "idempotency"
	}
	return filepath.Join(w.rootDir, listFolder, name+".txt")
}

func (w *workspace) writeAPI(ctx context.Context) error {
	for _, m := range w.libraries {
		list, err := w.listExports(ctx, m)
		if err != nil {
			return err
		}
		if err := os.WriteFile(w.listFile(m), []byte(list), 0o666); err != nil {
			return err
		}
	}
	return nil
}

var packageLine = regexp.MustCompile(`(?m)^package (\S+)$`)

// listedPackages returns the packages in the list of a library.
func (w *workspace) listedPackages(m *module) ([]string, error) {
	list, err := os.ReadFile(w.listFile(m))
	var packages []string
	for _, match := range packageLine.FindAllStringSubmatch(string(list), -1) {
		packages = append(packages, match[1])
	}
	return packages, err
}

// listExports lists the exported names of the promised packages of a module. listExports reads the names from the export data
// of the compiler.
func (w *workspace) listExports(ctx context.Context, m *module) (string, error) {
	format := "{{.ImportPath}}\t{{.Export}}\t{{and (not .DepOnly) (ne .Name \"main\")}}"
	lines, err := runProgram(ctx, filepath.Join(w.rootDir, m.dir), nil, "go", "list", "-export", "-deps", "-f", format, "./...")
	if err != nil {
		return "", err
	}
	compiled := make(map[string]string)
	var paths []string
	for line := range strings.Lines(lines) {
		field := strings.Split(strings.TrimSpace(line), "\t")
		compiled[field[0]] = field[1]
		if field[2] == "true" && isPromised(field[0]) {
			paths = append(paths, field[0])
		}
	}
	slices.Sort(paths)
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) }
	packages := importer.ForCompiler(token.NewFileSet(), "gc", lookup)
	var list strings.Builder
	for _, path := range paths {
		p, err := packages.Import(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&list, "package %s\n%s", path, strings.Join(exportedLines(p), ""))
	}
	return list.String(), nil
}

// isPromised reports whether users may rely on the exported names of a package. Users cannot import the packages of internal,
// and the packages of the root module in proof are for the tests of this repository.
func isPromised(path string) bool {
	return !slices.ContainsFunc(append([]string{"internal"}, neverPublished...), func(dir string) bool {
		return strings.Contains(path+"/", "/"+dir+"/")
	})
}

func exportedLines(p *types.Package) []string {
	var lines []string
	for _, name := range p.Scope().Names() {
		if object := p.Scope().Lookup(name); object.Exported() {
			lines = append(lines, declarationLines(object)...)
		}
	}
	slices.Sort(lines)
	return lines
}

// declarationLines returns the lines of an exported name, of the fields and of the methods. A line names types as the source
// of the package does, and adds the major version in the path of an imported package.
func declarationLines(object types.Object) []string {
	qualify := func(other *types.Package) string {
		if other == object.Pkg() {
			return ""
		}
		_, major, _ := modules.SplitPathVersion(other.Path())
		return other.Name() + major
	}
	name := types.TypeString(object.Type(), qualify)
	if constant, ok := object.(*types.Const); ok {
		return []string{fmt.Sprintf("const %s %s = %s\n", object.Name(), name, constant.Val().ExactString())}
	}
	if typeName, ok := object.(*types.TypeName); !ok || typeName.IsAlias() {
		return []string{types.ObjectString(object, qualify) + "\n"}
	}
	kind := types.TypeString(object.Type().Underlying(), qualify)
	var lines []string
	if structType, ok := object.Type().Underlying().(*types.Struct); ok {
		kind = "struct"
		for i := range structType.NumFields() {
			if field := structType.Field(i); field.Exported() {
				line := fmt.Sprintf("type %s struct, %s %s %s", name, field.Name(), types.TypeString(field.Type(), qualify), structType.Tag(i))
				lines = append(lines, strings.TrimSpace(line)+"\n")
			}
		}
	}
	lines = append(lines, fmt.Sprintf("type %s %s\n", name, kind))
	values := types.NewMethodSet(object.Type())
	for method := range types.NewMethodSet(types.NewPointer(object.Type())).Methods() { // includes methods of embedded types
		receiver := "*" + name
		if values.Lookup(object.Pkg(), method.Obj().Name()) != nil {
			receiver = name
		}
		if signature := types.TypeString(method.Type(), qualify); method.Obj().Exported() {
			lines = append(lines, fmt.Sprintf("method (%s) %s%s\n", receiver, method.Obj().Name(), strings.TrimPrefix(signature, "func")))
		}
	}
	return lines
}
