// Package schedule shares the time of GPUs among virtual GPUs: a Server, which a node has one of
// (`causeway scheduler`), and the Client by which device processes take part. What is decided is in
// schedule/policy, how it reaches workers in schedule/page, and what they do about it in
// schedule/gate.
//
// # Who makes the pages
//
// The device process makes each session's pages and bell, and hands them to the scheduler and to
// the worker. So they outlive a scheduler: when its connection ends, the client, who has them
// mapped, opens the grants itself (a vGPU without a scheduler has no limits of time, rather than
// none of the GPU), connects anew, and hands the same pages to the next scheduler, which takes over
// where they stand. Workers notice nothing.
//
// # The protocol
//
// A SOCK_SEQPACKET connection for each virtual GPU, requests and answers in turn, JSON (proto.go).
// Join comes first. The end of the connection is the end of the membership. Only root and the
// scheduler's own user are let in.
//
// # Goroutines
//
// Server has one for each connection, and for each GPU an engine, which is locked to a thread: it
// sleeps in ppoll(2) until a session rings its bell, somebody joins, leaves or changes limits, or
// the policy wants to look again. While nothing wants a GPU, and while one virtual GPU has it to
// itself, nothing here runs.
//
// # Locks
//
// Server.mu (the engines) before engine.mu (its shares and their sessions). Client: Membership.mu.
package schedule
