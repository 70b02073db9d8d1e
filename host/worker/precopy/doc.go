/*
Package precopy copies a session's GPU memory to another process in rounds, while its program runs.

Each round sends the blocks whose bytes differ from what was sent before. The last one is made of a
session that stands still, and makes the copy exact. Nothing has to tell what was written: a block
is read, summed and compared, so that kernels, copies and peers are all noticed. What is read while
a kernel writes it may be half of each; it differs from what the last round finds, which sends it
again. A last round without others before it is a plain copy, less what is zero.

The stream consists of frames: a header of 24 bytes, little-endian, and for a block its bytes.

	kind  uint32  frameAdd, frameGone, frameBlock, frameZero, frameEnd, frameStill, frameRange, frameThere
	size  uint32  of the bytes that follow; frameThere: where they lie in the window
	addr  uint64  of the range or block; frameEnd: the round's number
	len   uint64  of the range or block

Rounds add and drop ranges, end with frameEnd, and are followed by another or by frameStill. In the
last one each range begins with frameRange, its blocks follow in order, and ranges that are not
named are gone. The receiver believes nothing: ranges do not overlap and fit a limit, blocks lie
inside one range.

Between two processes of one host the bytes lie in a Window, which both map, and only the headers
are in the stream: a GPU copies straight to it and from it.
*/
package precopy
