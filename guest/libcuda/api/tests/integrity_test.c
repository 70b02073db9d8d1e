/* The integrity answer against published and measured vectors. */
#include "../integrity.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void unhex(const char *s, uint8_t *out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		unsigned v = 0;

		sscanf(s + 2 * i, "%2x", &v);
		out[i] = (uint8_t)v;
	}
}

static void check(const char *name, const struct cw_integrity_process *p, const struct cw_integrity_device *d, uint32_t n,
		  const uint64_t want[2])
{
	uint64_t got[2] = {0, 0};

	cw_integrity_digest(p, d, n, got);
	if (got[0] != want[0] || got[1] != want[1]) {
		printf("FAIL %s: %016llx %016llx, want %016llx %016llx\n", name, (unsigned long long)got[0], (unsigned long long)got[1],
		       (unsigned long long)want[0], (unsigned long long)want[1]);
		failures++;
	}
}

static const struct vector {
	const char *name;
	struct cw_integrity_process p;
	const char *uuid;
	uint32_t domain, bus, device;
	const char *digest;
} vectors[] = {
	{"runtime 11.8 on driver 12.2",
	 {12020, 11082, 0x4d08, 0x2b78, 0x7ff8c80717f0, 0x7ff8c825e4b0, 0x7ff8c7dd0ad0, 0x64a365ee},
	 "6722cbcfc661f29274d6ed232a32131c",
	 0,
	 4,
	 0,
	 "7a7014f22846c3a784cdbf423331f1ea"},
	{"round addresses",
	 {13000, 12082, 0x1234, 0x5678, 0x1000, 0x2000, 0x3000, 0x682b9cee},
	 "000102030405060708090a0b0c0d0e0f",
	 0,
	 2,
	 0,
	 "bc4bec9464354e95bb0cba9d43d792eb"},
	/* measured on driver 580.159: two words, written here as bytes */
	{"driver 580.159",
	 {13000, 13002, 430, 2017619968, 0x7fa57dfc5680, 0x7fa57dfc5660, 0x7fa578924350, 1795230707},
	 "a6ebccd0993fb3c3a8bdfa86aac1273e",
	 0,
	 0,
	 6,
	 "5a339f8cdd16da7a439b28d76a340152"},
};

int main(void)
{
	for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
		const struct vector *v = &vectors[i];
		struct cw_integrity_device d = {.pci_domain = v->domain, .pci_bus = v->bus, .pci_device = v->device};
		uint64_t want[2];

		unhex(v->uuid, d.uuid, sizeof d.uuid);
		unhex(v->digest, (uint8_t *)want, sizeof want);
		check(v->name, &v->p, &d, 1, want);
	}
	struct cw_integrity_process p = vectors[0].p;
	struct cw_integrity_device d = {{0}, 0, 0, 0};

	p.version = 12040;
	check("digit 0", &p, &d, 1, (const uint64_t[]){0x3341181C03CB675Cull, 0x8ED383AA1F4CD1E8ull});
	p.version = 12041;
	check("digit 1", &p, NULL, 0, (const uint64_t[]){0x1841181C03CB675Cull, 0x8ED383AA1F4CD1E8ull});
	return failures != 0;
}
