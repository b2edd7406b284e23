package sqlitestore

import "embed"

//go:embed sql
var files embed.FS

// statement returns a file of the directory sql.
func statement(file string) string {
	text, err := files.ReadFile("sql/" + file + ".sql")
	if err != nil {
		panic(err) // a file that is not embedded
	}
	return string(text)
}
