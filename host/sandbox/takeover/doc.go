// Package takeover is what an attacker would try from a worker process that runs code of his: other
// VMs' sockets, memory and files, the network, the parent, the kernel. A build with the tag
// `takeover` runs it in place of opening a GPU (host/causeway/takeover.go); the tests here compare
// a confined worker, where each attempt must fail, with one that is not, where it must get through:
// an attempt that fails in both proves nothing.
//
// It harms nothing where it gets through: what it makes it removes, and what would change the
// machine it asks with arguments that the kernel refuses after it has checked the right to ask.
package takeover
