// Package firsts keeps the first few of many values, in an order.
package firsts

import "slices"

// List keeps the first values of those that are added. It holds hardly more of them than it is to keep.
type List[T any] struct {
	most    int
	compare func(a, b T) int
	kept    []T
}

// New returns an empty list for up to most values.
func New[T any](most int, compare func(a, b T) int) *List[T] {
	return &List[T]{most: most, compare: compare}
}

// Add keeps a value if it is among the first ones.
func (l *List[T]) Add(value T) {
	l.kept = append(l.kept, value)
	const slack = 1000 // so that sorting is rare
	if len(l.kept)-slack > l.most {
		l.Values()
	}
}

// Values returns the values in their order.
func (l *List[T]) Values() []T {
	slices.SortFunc(l.kept, l.compare)
	if len(l.kept) > l.most {
		clear(l.kept[l.most:])
		l.kept = l.kept[:l.most]
	}
	return l.kept
}
