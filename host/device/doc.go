// Package device is a virtual GPU for one VM: a virtio-fs device whose tree holds the guest's
// software and the control file "session", behind a vhost-user socket. It starts a worker for each
// CUDA process in the guest, tells it where in guest RAM that process's pages are, and passes
// wake-ups on. It calls no GPU code and does no work per CUDA call.
//
// # A session
//
// An open of the control file is a session. WRITE MsgHello declares region 0 and starts the worker
// process; READs at FileLoan lend its pages; WRITE MsgStart has the worker map them and is
// answered when it runs. Further regions follow the same way. Each loan is renewed by a READ of
// the same piece. A piece that is not renewed in time lapses: the worker parks (it lets go of all
// guest memory), then all READs of the session are completed, which lets a killed process exit;
// once every page is lent again the worker resumes. The last close, a reset of the guest, or its
// disappearance end the worker.
//
// No READ of a loan is completed before the worker has let go of the pages, or is dead.
//
// # Goroutines and locks
//
// Methods of session that the FUSE device calls take session.mu, never block, and leave what must
// wait for the worker to the session's own goroutine (session.routine), which owns the worker
// process's answers. Wake-ups come on the goroutine that reads the worker's link.
// Device.routineTick looks for lapsed loans and overdue waits. Lock order: Device.telling,
// Device.mu, session.mu. Requests are completed, and the worker is sent to, with neither held,
// except for renewals, which complete under session.mu.
package device
