// Package remote says what a session needs from whatever carries it: a Ring of records and replies,
// GuestMemory that can be read and written from one side, and a Doorbell. Carriers that can share
// memory also are a Mapper. Nothing above these interfaces knows which carrier is in use; nothing
// below them knows what a record means.
//
// Layouts (layout_gen.go) come from cuda/api/session.idl; docs/PROTOCOL.md says what they mean.
//
// Packages. Carriers are remote/shm, over pages that both sides map (a memfd, or guest RAM by page
// lists), and remote/tcp, over frames (remote/frame) of one connection, or of one and others for
// copies. What frames go over: TLS (remote/mtls), a stream that goes on over another connection
// when one is lost (remote/resume), RDMA (remote/verbs, by libibverbs: remote/verbs/ibv).
// remote/relay passes a session of one carrier on over frames to a GPU server. remote/remotetest
// has each pass the same tests. docs/ARCHITECTURE.md says what another carrier takes.
//
// Goroutines: Next, Poll, Advance and SetState belong to the one consumer. All other methods may be
// called from any goroutine, but at most one Reply for a slot at a time.
package remote
