package main

import (
	"fmt"
	"io"
)

// output is where the program prints. It remembers that something could not be printed, on a full disk for instance: the
// exit status must not say then that all is there.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	if err != nil {
		o.err = fmt.Errorf("the output is not complete: %w", err)
	}
	return n, o.err
}

// orFailed returns the end of a command, or why not all of its output is there.
func (o *output) orFailed(err error) error {
	if o.err == nil || err != nil && err.Error() != "" {
		return err
	}
	return &failure{exitUnknown, o.err}
}
