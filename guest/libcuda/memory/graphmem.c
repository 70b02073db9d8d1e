/*
 * Memory of graphs: an allocation node's address is there from the node's creation on, and again
 * after each launch, until the graph frees it or the application does. So a range of this kind is
 * never taken out; another allocation at its place ends it.
 */
#include "memory/memory.h"

enum { OF_GRAPH = 1 << 31 };

void cw_memory_note_graph(uint64_t ptr, uint64_t size)
{
	struct cw_range r = {
		.base = ptr, .size = size, .kind = CW_RANGE_FOREIGN, .flags = (uint32_t)OF_GRAPH, .ctx = cw_current_ctx_id(), .dev = ptr};
	struct cw_ctx *c;

	if (cw_ctx_current(&c) == 0)
		r.device = c->device->ordinal;
	cw_range_add(&r); /* no memory for the map: the worker will be asked */
}

int cw_range_of_graph(uint64_t ptr)
{
	struct cw_range r;

	return cw_range_find(ptr, &r) && r.kind == CW_RANGE_FOREIGN && r.base == ptr && (r.flags & (uint32_t)OF_GRAPH);
}
