//go:build race

package effort

const share = 0.03
