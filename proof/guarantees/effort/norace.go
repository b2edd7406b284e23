//go:build !race

package effort

const workShare = 1
