//go:build !linux && !darwin

package lease

import "errors"

func Create(string, string) (*Lease, error) { return nil, errors.ErrUnsupported }
func Take(string) (*Lease, error)           { return nil, errors.ErrUnsupported }
func Join(string) (*Lease, error)           { return nil, errors.ErrUnsupported }
func End(string) (bool, error)              { return false, errors.ErrUnsupported }
func TryLock(string) (*Lease, error)        { return nil, errors.ErrUnsupported }
