// Package ptx decodes PTX text into a module: variables, functions, and their
// instructions with registers, labels and symbols resolved per scope.
//
// It is the one decoder of this foreign format. Everything it returns is
// bounded by the size of the source: register ranges and array sizes are kept
// as numbers and never expanded. It judges syntax and declarations only;
// whether an instruction exists and is well typed is the lowering's business
// (package exec), so that a module with an unknown instruction in one kernel
// still loads for its others.
//
// A Module is immutable after Parse and may be shared by goroutines. It keeps
// references into a private copy of the source. Source: PTX ISA 9.0, sections
// 4 (syntax), 5 (state spaces, types), 7 (ABI), 11 (directives).
package ptx
