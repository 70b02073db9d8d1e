// Package cuda holds what the host needs to know of the CUDA driver API: result codes, attributes
// and flags by their public numbers. It has no state and calls nothing.
//
// Below it, the one description of the API and of the session's protocol lives in api/*.idl.
// package idl parses it, command gen writes everything derived from it:
//
//	cuda/*_gen.go          result codes, enumerations
//	cuda/wire/*_gen.go     operations: arguments, replies, decoder, dispatch, encoder
//	remote/layout_gen.go   layout of region 0 and of the handshake
//	guest/libcuda/gen/     the same in C: encoders, every exported symbol, the cuGetProcAddress table, error texts
//	docs/COVERAGE.md       what is implemented and what is refused, and why
//	host/driver/cuda/bind  what the worker calls of the real driver (bind.idl): methods, handles, structs
//
// To change an operation or an entry point: edit the .idl file, run go generate ./cuda, commit
// both.
package cuda

//go:generate go run ./gen -root ..
