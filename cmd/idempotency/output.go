package main

import (
	"fmt"
	"io"
)

// completeWriter is the standard output of the program. completeWriter keeps the first error of a write, for example on a full
// disk, because an incomplete output must not have the exit status of success.
type completeWriter struct {
	underlying io.Writer
	firstErr   error
}

func (o *completeWriter) Write(b []byte) (int, error) {
	if o.firstErr != nil {
		return 0, o.firstErr
	}
	n, err := o.underlying.Write(b)
	if err != nil {
		o.firstErr = fmt.Errorf("the output is not complete: %w", err)
	}
	return n, o.firstErr
}

// orIncomplete returns the error of a command or, if err has no text, the first error of a write.
func (o *completeWriter) orIncomplete(err error) error {
	if o.firstErr == nil || err != nil && err.Error() != "" {
		return err
	}
	return &exitError{exitUnknown, o.firstErr}
}
