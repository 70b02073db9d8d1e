// Package ptxgen makes random PTX programs, the same for the same seed, for comparing one GPU's
// arithmetic with another's bit by bit. A program is one kernel of one warp: lanes load values of
// their own, among them the awkward ones, compute, and store every result, so that a difference
// names its instruction. Instructions whose results the PTX manual leaves open (.approx) do not
// occur.
package ptxgen
