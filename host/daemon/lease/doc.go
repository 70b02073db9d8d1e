// Package lease is what two causewayds agree on about a vGPU of one for a VM of the other: what
// each takes from the other, checked once, the server's book of who has which lease and until when,
// and the file that holds one side's keys. It connects to nobody.
package lease
