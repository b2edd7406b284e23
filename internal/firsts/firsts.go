// Package firsts keeps the first few of many values, in an order.
package firsts

import "slices"

// List keeps the first values of those that are added. It holds hardly more of them than it is to keep.
type List[T any] struct {
	maxValues     int
	compareValues func(a, b T) int
	keptValues    []T
}

// New returns an empty list for up to most values.
func New[T any](most int, compare func(a, b T) int) *List[T] {
	return &List[T]{maxValues: most, compareValues: compare}
}

// Add keeps a value if it is among the first ones.
func (l *List[T]) Add(value T) {
	l.keptValues = append(l.keptValues, value)
	const slack = 1000 // so that sorting is rare
	if len(l.keptValues)-slack > l.maxValues {
		l.Values()
	}
}

// Values returns the values in their order.
func (l *List[T]) Values() []T {
	slices.SortFunc(l.keptValues, l.compareValues)
	if len(l.keptValues) > l.maxValues {
		clear(l.keptValues[l.maxValues:])
		l.keptValues = l.keptValues[:l.maxValues]
	}
	return l.keptValues
}
