/* The decoder of the host's answer: everything it accepts stays within the answer. */
#include "fake_host.h"
#include "snapshot.h"

#include <string.h>

/* Touches all that a view gives. */
static unsigned touch(const struct cw_view *v)
{
	unsigned sum = (unsigned)strlen(v->head->driver_version) + (unsigned)strlen(v->head->nvml_version);

	for (unsigned i = 0; i < v->head->device_count; i++)
		sum += (unsigned)strlen(v->devices[i].name) + (unsigned)strlen(v->devices[i].vbios) + v->devices[i].board;
	for (unsigned i = 0; i < v->head->process_count; i++)
		sum += (unsigned)strlen(v->processes[i].name) + v->devices[v->processes[i].device].major;
	for (unsigned i = 0; i < v->head->pair_count; i++)
		sum += v->devices[v->pairs[i].a].major + v->devices[v->pairs[i].b].major;
	for (unsigned i = 0; i < v->head->link_count; i++)
		sum += v->devices[v->links[i].device].major;
	return sum;
}

/* A copy of its own, so that the sanitizer sees the end. */
static int parse(const void *answer, size_t len)
{
	struct cw_view v;
	void *copy = malloc(len ? len : 1);
	int ok;

	memcpy(copy, answer, len);
	ok = cw_nvml_parse(copy, len, &v);
	if (ok)
		touch(&v);
	free(copy);
	return ok;
}

int main(void)
{
	size_t len;
	unsigned char *a = fake_answer(&len);
	struct cw_snapshot *s = (void *)a;
	struct cw_process *p = (void *)(a + sizeof *s + 2 * sizeof(struct cw_device));
	unsigned seed = 1;

	CHECK(parse(a, len));
	for (size_t n = 0; n < len; n++)
		CHECK(!parse(a, n));
	s->device_count = 1;
	CHECK(!parse(a, len));
	s->device_count = 0xffffffff;
	CHECK(!parse(a, len));
	s->device_count = 2;
	s->version++;
	CHECK(!parse(a, len));
	s->version--;
	p[2].device = 2;
	CHECK(!parse(a, len));
	p[2].device = 1;
	CHECK(parse(a, len));
	memset(s->driver_version, 'x', sizeof s->driver_version);
	memset(p[0].name, 'x', sizeof p[0].name);
	CHECK(parse(a, len));
	for (int i = 0; i < 20000; i++) {
		unsigned char *m = malloc(len);

		memcpy(m, a, len);
		for (int k = 0; k < 4; k++) {
			seed = seed * 1103515245 + 12345;
			m[seed >> 8 & 1 ? seed % sizeof *s : seed % len] = (unsigned char)(seed >> 16);
		}
		parse(m, len);
		free(m);
	}
	free(a);
	return 0;
}
