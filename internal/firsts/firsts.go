// Package firsts keeps the first few of many values in a given order.
package firsts

import "slices"

// List keeps the first values in the order of a comparison. A List holds at most a thousand values more than
// requested.
type List[T any] struct {
	maxValues     int
	compareValues func(a, b T) int
	keptValues    []T
}

// New returns an empty list that keeps the first maxValues values.
func New[T any](maxValues int, compare func(a, b T) int) *List[T] {
	return &List[T]{maxValues: maxValues, compareValues: compare}
}

// Add adds a value to the list.
func (l *List[T]) Add(value T) {
	l.keptValues = append(l.keptValues, value)
	const slack = 1000 // sorting after each value would be slow
	if len(l.keptValues)-slack > l.maxValues {
		l.Values()
	}
}

// Values returns the first values in order.
func (l *List[T]) Values() []T {
	slices.SortFunc(l.keptValues, l.compareValues)
	if len(l.keptValues) > l.maxValues {
		clear(l.keptValues[l.maxValues:])
		l.keptValues = l.keptValues[:l.maxValues]
	}
	return l.keptValues
}
