// Package limit is the vocabulary of a vGPU's limits: how memory, share, cap, sessions and profiles
// are written, the same on command lines, in causewayd.toml, in a domain's XML and in requests to
// the API, and what is wrong with one that makes no sense.
//
// Memory is a size with its unit, or none: the whole GPU. A share is relative to other vGPUs' on
// the GPU. A cap is per cent of the GPU's time, or none. Sessions are CUDA processes at once; of
// one user of the guest they are a number, or half. Host memory is a size with its unit. A profile
// names memory, share and cap together, as parts of a GPU. Zero is never written: what it would
// mean is said in a word.
//
// It imports nothing of Causeway's.
package limit
