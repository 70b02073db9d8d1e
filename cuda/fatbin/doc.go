// Package fatbin decodes the containers in which CUDA programs carry device
// code: fatbin containers with stored, LZ4 or zstd entries, the wrapper that
// points to one, and bare ELF cubins and PTX text. It decodes foreign bytes:
// every length is checked before use, and decompression is bounded.
//
// The package keeps no state; its functions may be called by any goroutine.
// Entries refer to the bytes given to Decode, which must not change while they
// are in use.
//
// There is no public description of the format. Field meanings are from the
// layouts that permissively licensed tools document and from images built by
// nvcc 11.8 to 13.x.
package fatbin
