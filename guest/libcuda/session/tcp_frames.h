/*
 * Frames of the TCP carrier, both directions of one connection. Little-endian. Each frame: 16-byte
 * header, then `len` bytes.
 *
 * The guest library keeps regions in ordinary memory of its own; the host keeps a mirror of region
 * 0 (control page, slots, ring) and reaches other regions by one-sided READ and WRITE frames, which
 * the guest's net thread serves.
 *
 * Rules
 * - Either side reads its socket at all times: the reader never waits for the writer, a lock that is held while sending, or
 *   the worker. (RING bytes always fit the mirror, because the guest keeps within the head that the host told it.)
 * - Frames of one direction take effect in order. A WORD, SLOT or CONTROL frame therefore follows the WRITE frames it is about.
 * - len is at most CW_FRAME_MAX. A frame that breaks a rule ends the session: the receiver closes the connection.
 * - EOF in either direction ends the session.
 *
 *   frame       from   arg                         payload
 *   HELLO       guest  0                           struct Hello, type MsgHello: version, region 0's va and size, pid
 *   WELCOME     host   0                           struct Hello, type MsgWelcome: status 0, or errno; + text_len bytes
 *   REGION      guest  region id                   struct Hello, type MsgRegion: region, va, size (then op RegionAdd follows)
 *   REGION_END  guest  region id                   none: no READ or WRITE of it is valid any more
 *   RING        guest  position of first byte      record bytes [arg, arg+len), positions as in ControlPage.tail; the new tail is
 *                                                  arg+len; arg equals the previous tail; may run over the ring's end (mod ring_size);
 *                                                  whole records only
 *   HEAD        host   consumed position           none. Send at least once per quarter of the ring; not needed per record
 *   SLOT        host   slot index                  16 bytes {seq, result, payload_len, reply_len}, then payload_len bytes:
 *                                                  guest stores the payload, the fields, then seq_done, and wakes the waiter
 *   WORD        host   word | value<<32            none: completion word := value
 *   CONTROL     host   byte offset | value<<32     none: u32 of the control page := value. Offsets allowed: worker_state (192),
 *                                                  sticky (256), console (260)
 *   READ        host   request id                  struct cw_frame_extent: region, offset, size (<= CW_FRAME_EXTENT_MAX)
 *   DATA        guest  request id                  bytes, in order, in one or more frames until `size` came. A refused READ
 *                                                  (unknown region, out of bounds) is one DATA frame with flags CW_FRAME_ERROR, len 0.
 *                                                  Answers to several READs come in request order
 *   WRITE       host   0                           struct cw_frame_extent (size = bytes that follow), then the bytes. No answer:
 *                                                  an extent outside a declared region ends the session
 *   ACK         both   bytes of frames, ACK excluded  none: so many came, and need not be sent again. Only by RDMA
 *   GRANT       guest  region id                   address u64, size u64, key u32, 0 u32: the host may read and write the region by RDMA. Only by RDMA
 */
#ifndef CW_TCP_FRAMES_H
#define CW_TCP_FRAMES_H

#include <stdint.h>

struct cw_frame {
	uint32_t len;	/* payload bytes after this header */
	uint16_t type;	/* CW_FRAME_* */
	uint16_t flags; /* CW_FRAME_ERROR, else 0 */
	uint64_t arg;
};

struct cw_frame_extent {
	uint32_t region;
	uint32_t rsvd; /* 0 */
	uint64_t offset;
	uint64_t size;
};

#define CW_FRAME_MAX (1u << 20)		/* payload of one frame: WRITE with its extent included */
#define CW_FRAME_EXTENT_MAX (16u << 20) /* bytes asked for by one READ */
#define CW_FRAME_ERROR 1u

enum {
	CW_FRAME_HELLO = 1,
	CW_FRAME_WELCOME = 2,
	CW_FRAME_REGION = 3,
	CW_FRAME_REGION_END = 4,
	CW_FRAME_RING = 5,
	CW_FRAME_HEAD = 6,
	CW_FRAME_SLOT = 7,
	CW_FRAME_WORD = 8,
	CW_FRAME_CONTROL = 9,
	CW_FRAME_READ = 10,
	CW_FRAME_DATA = 11,
	CW_FRAME_WRITE = 12,
	/* Between a GPU server and its client, which is a relay or, by RDMA, this library: 13
	 * acknowledges bytes (remote/resume), 16 lets the server reach a region by itself
	 * (remote/frame/grant.go). 14 says that a relay moves, 15 and 17 are a relay's too: they
	 * never reach a session. */
	CW_FRAME_ACK = 13,
	CW_FRAME_GRANT = 16,
};

_Static_assert(sizeof(struct cw_frame) == 16, "frame header");
_Static_assert(sizeof(struct cw_frame_extent) == 24, "frame extent");

#endif
