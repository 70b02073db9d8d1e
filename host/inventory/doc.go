// Package inventory says what GPUs this machine has and how they are, and what of it a guest is
// told.
//
// A Source reads the machine: its libnvidia-ml.so.1, loaded at run time, or the software GPU.
// AnswerFor turns a reading into the Answer that a guest's libnvidia-ml.so.1 gets: the vGPU as its
// owner sees it, with its own devices, limit and processes, and nothing of others'.
// cuda/api/nvml/snapshot.idl is its layout.
//
// The driver's libraries are never loaded into a process that serves guests: Client starts a child
// process (`causeway inventory`) that reads on request, and ends it when nobody has asked for a
// while. Server is what such a process has: it asks its workers for their use, the child for the
// machine, and keeps the answer for a tenth of a second.
//
// Lock order: Server.mu, Client.mu. Both are held while the child reads; nothing else waits for it.
package inventory
