//go:build !nested

package main

// nested is nothing but in builds for the nested test.
func nested() {}
