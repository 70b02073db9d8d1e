/* Image detection. Every image is placed against an inaccessible page, so that a read past what it
 * declares faults. */
#include "../image.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int failures;

/* The bytes, ending where memory ends. */
static uint8_t *against_edge(const void *bytes, size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (len + page - 1) / page * page + page;
	uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mprotect(p + room - page, page, PROT_NONE))
		abort();
	return memcpy(p + room - page - len, bytes, len);
}

static void expect(const char *what, const void *image, enum cw_image_kind kind, const void *data, size_t len)
{
	struct cw_image got = cw_image_probe(image);

	if (got.kind != kind || got.len != len || (kind && got.data != data)) {
		printf("FAIL %s: kind %d len %zu, want %d %zu\n", what, got.kind, got.len, kind, len);
		failures++;
	}
}

static void put16(uint8_t *p, uint16_t v) { memcpy(p, &v, 2); }
static void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static void put64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }

/* --- fatbins and wrappers --------------------------------------------------------------------- */

static void fatbins(void)
{
	static const struct {
		const char *what;
		uint16_t header;
		uint64_t body;
		enum cw_image_kind kind;
		size_t len;
	} cases[] = {
		{"fatbin", 16, 240, CW_IMAGE_FATBIN, 256},
		{"empty fatbin", 16, 0, CW_IMAGE_FATBIN, 16},
		{"longer header", 24, 8, CW_IMAGE_FATBIN, 32},
		{"short header", 8, 8, CW_IMAGE_INVALID, 0},
		{"longest", 16, CW_IMAGE_MAX - 16, CW_IMAGE_FATBIN, CW_IMAGE_MAX},
		{"too long", 16, CW_IMAGE_MAX - 15, CW_IMAGE_INVALID, 0},
		{"absurd", 16, ~0ull, CW_IMAGE_INVALID, 0},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint8_t h[16] = {0}, wrapper[24] = {0}, *p;

		put32(h, 0xba55ed50);
		put16(h + 4, 1);
		put16(h + 6, cases[i].header);
		put64(h + 8, cases[i].body);
		p = against_edge(h, sizeof h);
		expect(cases[i].what, p, cases[i].kind, p, cases[i].len);
		for (uint32_t version = 0; version < 4; version++) {
			uint8_t *w;

			put32(wrapper, 0x466243b1);
			put32(wrapper + 4, version);
			put64(wrapper + 8, (uintptr_t)p);
			w = against_edge(wrapper, sizeof wrapper);
			expect("wrapper", w, version == 1 || version == 2 ? cases[i].kind : CW_IMAGE_INVALID, p,
			       version == 1 || version == 2 ? cases[i].len : 0);
		}
		put32(wrapper + 4, 1);
		put64(wrapper + 8, 0);
		expect("wrapper of nothing", wrapper, CW_IMAGE_INVALID, NULL, 0);
		put64(wrapper + 8, (uintptr_t)wrapper);
		expect("wrapper of itself", wrapper, CW_IMAGE_INVALID, NULL, 0);
	}
}

/* The inputs of a link lie behind one another in what is sent. */
static void inputs(void)
{
	uint8_t a[24] = {0}, b[16] = {0}, linked[16] = {0}, wrapper[24] = {0};
	const void *list[] = {a, b, NULL};
	struct cw_image img, all;

	for (int i = 0; i < 3; i++) {
		uint8_t *p = i == 0 ? a : i == 1 ? b : linked;

		put32(p, 0xba55ed50);
		put16(p + 4, 1);
		put16(p + 6, 16);
		put64(p + 8, i == 0 ? 8 : 0);
	}
	put32(wrapper, 0x466243b1);
	put32(wrapper + 4, 2);
	put64(wrapper + 8, (uintptr_t)linked);
	put64(wrapper + 16, (uintptr_t)list);
	img = cw_image_probe(wrapper);
	all = cw_image_inputs(&img);
	if (img.data != linked || img.len != 16 || !all.data || all.len != 40 || memcmp(all.data, a, 24) ||
	    memcmp((const uint8_t *)all.data + 24, b, 16)) {
		printf("inputs of a link: %zu bytes\n", all.len);
		exit(1);
	}
	free((void *)all.data);
	put32(b, 0);
	all = cw_image_inputs(&img);
	if (all.data) {
		printf("an input that is no fatbin was taken\n");
		exit(1);
	}
}

/* --- cubins ----------------------------------------------------------------------------------- */

enum { ELF_LEN = 1024 };

/* 64-byte header, contents to 512, three section headers at 512, two program headers at 704. */
static void make_elf(uint8_t *e)
{
	memset(e, 0, ELF_LEN);
	memcpy(e, "\177ELF\2\1\1\x41\x08", 9);
	put16(e + 16, 2);
	put16(e + 18, EM_CUDA);
	put64(e + 32, 704);
	put64(e + 40, 512);
	put16(e + 52, 64);
	put16(e + 54, 56);
	put16(e + 56, 2);
	put16(e + 58, 64);
	put16(e + 60, 3);
}

static void section(uint8_t *e, int i, uint32_t type, uint64_t off, uint64_t size)
{
	put32(e + 512 + 64 * i + 4, type);
	put64(e + 512 + 64 * i + 24, off);
	put64(e + 512 + 64 * i + 32, size);
}

static void cubins(void)
{
	uint8_t e[ELF_LEN], *p;

	make_elf(e);
	p = against_edge(e, 704 + 112);
	expect("program headers behind sections", p, CW_IMAGE_ELF, p, 704 + 112);
	put64(e + 32, 64);
	p = against_edge(e, 704);
	expect("sections last", p, CW_IMAGE_ELF, p, 704);
	section(e, 1, 1, 600, 400);
	expect("a section's bytes last", e, CW_IMAGE_ELF, e, 1000);
	section(e, 1, SHT_NOBITS, 600, 4000);
	expect("a section without bytes", e, CW_IMAGE_ELF, e, 704);
	section(e, 1, 1, ~0ull, 16);
	expect("section offset wraps", e, CW_IMAGE_INVALID, NULL, 0);
	section(e, 1, 1, 16, ~0ull);
	expect("section size wraps", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	put64(e + 32, CW_IMAGE_MAX);
	expect("program headers out of bounds", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	put64(e + 40, ~0ull - 8);
	expect("section headers out of bounds", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	put16(e + 58, 40);
	expect("odd section header size", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	put16(e + 18, 62);
	expect("a program for x86", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	e[4] = 1;
	expect("32-bit", e, CW_IMAGE_INVALID, NULL, 0);
	make_elf(e);
	put16(e + 56, 0);
	put16(e + 60, 0);
	put64(e + 32, ~0ull);
	put64(e + 40, ~0ull);
	p = against_edge(e, 64);
	expect("header only", p, CW_IMAGE_ELF, p, 64);
}

/* --- text ------------------------------------------------------------------------------------- */

static void texts(void)
{
	static const struct {
		const char *text;
		enum cw_image_kind kind;
	} cases[] = {
		{".version 8.2\n.target sm_90\n", CW_IMAGE_PTX},
		{"// comment\n.version 7.0", CW_IMAGE_PTX},
		{"\n\n\t .version", CW_IMAGE_PTX},
		{"x", CW_IMAGE_PTX},
		{"", CW_IMAGE_INVALID},
		{"\x01\x02garbage", CW_IMAGE_INVALID},
		{"\xff\xfe", CW_IMAGE_INVALID},
		{"\x7f"
		 "EL",
		 CW_IMAGE_INVALID},
		{"PE", CW_IMAGE_PTX},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		size_t len = strlen(cases[i].text) + 1;
		uint8_t *p = against_edge(cases[i].text, len);

		expect(cases[i].text, p, cases[i].kind, p, cases[i].kind ? len : 0);
	}
	expect("NULL", NULL, CW_IMAGE_INVALID, NULL, 0);
}

/* Headers with random fields: whatever they declare, the result is bounded. */
static void random_elves(void)
{
	uint8_t e[ELF_LEN];

	srand(1);
	for (int i = 0; i < 100000; i++) {
		struct cw_image got;

		make_elf(e);
		for (int j = 0; j < 3; j++) {
			section(e, j, (uint32_t)(rand() % 12), (uint64_t)rand() << (rand() % 34), (uint64_t)rand() << (rand() % 34));
		}
		put64(e + 32, (uint64_t)rand() << (rand() % 34));
		got = cw_image_probe(e);
		if (got.len > CW_IMAGE_MAX || (got.kind == CW_IMAGE_INVALID) != (got.len == 0)) {
			printf("FAIL random elf %d: len %zu\n", i, got.len);
			failures++;
			return;
		}
	}
}

int main(void)
{
	fatbins();
	inputs();
	cubins();
	texts();
	random_elves();
	return failures != 0;
}
