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
	"slices"
	"strings"

	modules "golang.org/x/mod/module"
)

// The API of a module is a list, one line for each exported name with its signature, in a file that is checked in.

// listFolder is where the lists are.
const listFolder = "internal/release/api"

// listFile is where the list of a module is.
func (m *module) listFile() string {
	name := strings.ReplaceAll(m.dir, "/", "-")
	if m.dir == "." {
		name = "idempotency"
	}
	return filepath.Join(listFolder, name+".txt")
}

func (w *workspace) writeAPI(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(w.dir, listFolder), 0o777); err != nil {
		return err
	}
	for _, m := range w.published {
		if m.command() {
			continue
		}
		list, err := w.api(ctx, m)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(w.dir, m.listFile()), []byte(list), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// api lists what the packages of a module export. The compiler has written it down for those who import them.
func (w *workspace) api(ctx context.Context, m *module) (string, error) {
	here := command{dir: filepath.Join(w.dir, m.dir)}
	format := "{{.ImportPath}}\t{{.Export}}\t{{and (not .DepOnly) (ne .Name \"main\")}}"
	lines, err := output(ctx, here, "go", "list", "-export", "-deps", "-f", format, "./...")
	if err != nil {
		return "", err
	}
	compiled := make(map[string]string)
	var paths []string
	for line := range strings.Lines(lines) {
		field := strings.Split(strings.TrimSpace(line), "\t")
		compiled[field[0]] = field[1]
		if field[2] == "true" && !strings.Contains(field[0]+"/", "/internal/") {
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
		fmt.Fprintf(&list, "package %s\n", path)
		for _, line := range exported(p) {
			fmt.Fprintln(&list, line)
		}
	}
	return list.String(), nil
}

// exported are the lines of a package.
func exported(p *types.Package) []string {
	var lines []string
	for _, name := range p.Scope().Names() {
		if object := p.Scope().Lookup(name); object.Exported() {
			lines = append(lines, declared(object)...)
		}
	}
	slices.Sort(lines)
	return lines
}

// declared are the lines of an exported name: its own, and those of its fields and methods.
func declared(object types.Object) []string {
	short := shortly(object.Pkg())
	switch object := object.(type) {
	case *types.Const:
		kind := types.TypeString(object.Type(), short)
		return []string{fmt.Sprintf("const %s %s = %s", object.Name(), kind, object.Val().ExactString())}
	case *types.TypeName:
		if object.IsAlias() {
			return []string{types.ObjectString(object, short)}
		}
		return declaredType(object)
	default:
		return []string{types.ObjectString(object, short)}
	}
}

func declaredType(object *types.TypeName) []string {
	short := shortly(object.Pkg())
	name := types.TypeString(object.Type(), short)
	switch kind := object.Type().Underlying().(type) {
	case *types.Struct:
		return slices.Concat([]string{"type " + name + " struct"}, fields(name, kind, short), methods(name, object, short))
	case *types.Interface:
		return append([]string{"type " + name + " interface"}, asked(name, kind, short)...)
	default:
		return append([]string{"type " + name + " " + types.TypeString(kind, short)}, methods(name, object, short)...)
	}
}

func fields(name string, of *types.Struct, short types.Qualifier) []string {
	var lines []string
	for i := range of.NumFields() {
		field := of.Field(i)
		if !field.Exported() {
			continue
		}
		line := fmt.Sprintf("type %s struct, %s %s", name, field.Name(), types.TypeString(field.Type(), short))
		if tag := of.Tag(i); tag != "" {
			line += " `" + tag + "`"
		}
		lines = append(lines, line)
	}
	return lines
}

// asked are the methods of an interface. Nobody else can implement one with a method that is not exported.
func asked(name string, of *types.Interface, short types.Qualifier) []string {
	var lines []string
	for method := range of.Methods() {
		if !method.Exported() {
			lines = append(lines, fmt.Sprintf("type %s interface, unexported methods", name))
			continue
		}
		lines = append(lines, fmt.Sprintf("type %s interface, %s%s", name, method.Name(), signature(method.Type(), short)))
	}
	return slices.Compact(lines)
}

// methods are those of a type and of pointers to it, those of embedded types included.
func methods(name string, object types.Object, short types.Qualifier) []string {
	values := types.NewMethodSet(object.Type())
	var lines []string
	for method := range types.NewMethodSet(types.NewPointer(object.Type())).Methods() {
		if !method.Obj().Exported() {
			continue
		}
		receiver := "*" + name
		if values.Lookup(object.Pkg(), method.Obj().Name()) != nil {
			receiver = name
		}
		lines = append(lines, fmt.Sprintf("method (%s) %s%s", receiver, method.Obj().Name(), signature(method.Type(), short)))
	}
	return lines
}

func signature(t types.Type, short types.Qualifier) string {
	return strings.TrimPrefix(types.TypeString(t, short), "func")
}

// shortly names a type as the source of its package does, with the major version of a package that has one in its path.
func shortly(p *types.Package) types.Qualifier {
	return func(other *types.Package) string {
		if other == p {
			return ""
		}
		_, major, _ := modules.SplitPathVersion(other.Path())
		return other.Name() + major
	}
}

// apiPackage is what a list says of a package: its path, and its functions without type parameters.
type apiPackage struct {
	path      string
	functions []string
}

func parseAPI(list string) []apiPackage {
	var packages []apiPackage
	for line := range strings.Lines(list) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "package":
			packages = append(packages, apiPackage{path: rest})
		case "func":
			name, _, _ := strings.Cut(rest, "(")
			if p := &packages[len(packages)-1]; !strings.Contains(name, "[") {
				p.functions = append(p.functions, name)
			}
		}
	}
	return packages
}
