package sqlstore

import (
	"embed"
	"strings"
)

// File returns a file of the directory sql.
func File(files embed.FS, name string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // the file is not embedded
	}
	return string(text)
}

// Statement returns a file of the directory sql without comment lines.
func Statement(files embed.FS, name string) string {
	var b strings.Builder
	for line := range strings.Lines(File(files, name)) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}
