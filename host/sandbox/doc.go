// Package sandbox bounds what a worker process can do once a guest has taken it over: nothing but
// harm its own CUDA process.
//
// Layers, each of which holds alone; what a host lacks is named in a Report and the log, and
// refused by mode strict:
//
//   - user: a worker started by root becomes a user that no other process is (UIDBase + its process id), without groups or
//     capabilities; one started by a user has a user namespace. In mode on, workers of a real GPU share one user with the others
//     of their virtual GPU (UIDBase + their parent's process id): their driver shares events so.
//   - namespaces: no network, no System V IPC; with root also a mount namespace in which /run, /tmp, /home and the like are empty.
//     The workers of one virtual GPU share them (a Space), so that the driver's own sharing between processes can work.
//   - Landlock: files by path, only the GPU's device nodes, no TCP, no signals or abstract sockets outside.
//   - seccomp: system calls by number and argument, on all threads; new processes and programs are refused once a guest is there.
//     Requests to a GPU's driver by type, number and size, from a list for each branch of it (ioctls/).
//   - limits: no core dumps, no debugging by others, bounded numbers of files and threads.
//
// A Space belongs to the parent (run, serve, device). Fork starts a process in it, on an operating
// system thread that the caller throws away. Enter and Seal run in the worker: Enter first thing in
// main, before anything of a guest is read; Seal when the process needs no other image any more.
// Neither is undone. Confine is for parents, OnlyDescriptors for a device's keeper.
package sandbox
