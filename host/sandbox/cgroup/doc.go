// Package cgroup puts the processes of a virtual GPU, its device process and its workers, into a
// control group of their own, so that a guest that makes its workers compute or allocate on the
// host does it at its own expense.
//
// A Group is made below a folder that somebody gave this process: systemd with Delegate=yes,
// causewayd, or root by itself. Version 2 is one tree; version 1 one tree for each controller, and
// each is tried. A host that lets no group be made is no error of the VM: the caller logs what Make
// returns and goes on.
//
// A Group belongs to the process that made it. Processes that it starts afterwards are in the group
// too.
package cgroup
