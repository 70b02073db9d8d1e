// Package sys is what processes of one machine share with each other through Linux: descriptors
// that travel over sockets, memory files and mapped pages of them, eventfds, futexes, and what a
// loop needs that waits for another process's store; and files that are written as a whole or not
// at all, and read without trust in what lies there. It stands below everything else and imports
// nothing of this repository.
//
// Descriptors are plain numbers here, because most of them are about to be passed on or mapped.
// Each function says whose they are.
package sys
