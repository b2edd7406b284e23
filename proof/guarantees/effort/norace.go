//go:build !race

package effort

const share = 1
