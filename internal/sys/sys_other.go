//go:build !unix

package sys

import "errors"

func Close(int)                   {}
func Rename(string, string) error { return errors.ErrUnsupported }
func Remove(string) error         { return errors.ErrUnsupported }
