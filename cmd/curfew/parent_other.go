//go:build !linux && !darwin

package main

func watchParent(ppid int) <-chan struct{} { return pollParent(ppid) }
