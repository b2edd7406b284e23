//go:build race

package effort

const workShare = 0.03
