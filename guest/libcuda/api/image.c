/*
 * Image detection and length.
 *
 * fatbin wrapper magic 0x466243b1, version u32 1|2, pointer to the fatbin, pointer (file name, or
 * pre-link inputs) fatbin magic 0xba55ed50, version u16, header size u16, u64 bytes that follow.
 * Containers of other translation units may
 *                 follow directly; the declared length is all that belongs to this one.
 * cubin ELF; may be followed by unrelated data, and its program headers may come after its section
 * headers otherwise NUL-terminated PTX text, of any alignment
 *
 * A version 2 wrapper (separate compilation) points to the linked image; the array beside it holds
 * the linker's inputs, which a loader needs when nothing was linked for its GPU.
 */
#include "image.h"

#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define FATBIN_MAGIC 0xba55ed50u
#define EM_CUDA 190
#define SHT_NOBITS 8

static uint16_t get16(const uint8_t *p)
{
	uint16_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t get64(const uint8_t *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static struct cw_image none(void) { return (struct cw_image){CW_IMAGE_INVALID, NULL, 0, NULL}; }

static struct cw_image fatbin(const uint8_t *p)
{
	uint64_t header = get16(p + 6), body = get64(p + 8);

	if (header < 16 || body > CW_IMAGE_MAX - header)
		return none();
	return (struct cw_image){CW_IMAGE_FATBIN, p, (size_t)(header + body), NULL};
}

/* The larger of end and off + size; 0 when that is out of bounds. */
static uint64_t extend(uint64_t end, uint64_t off, uint64_t size)
{
	if (end == 0 || off > CW_IMAGE_MAX || size > CW_IMAGE_MAX - off)
		return 0;
	return off + size > end ? off + size : end;
}

static struct cw_image elf(const uint8_t *p)
{
	enum { EHDR = 64, PHDR = 56, SHDR = 64 };
	uint64_t phoff = get64(p + 32), shoff = get64(p + 40);
	uint16_t phnum = get16(p + 56), shnum = get16(p + 60);

	/* 64-bit, little-endian, for this machine; the OS/ABI and its version change between
	 * toolkits and are not judged. */
	if (p[4] != 2 || p[5] != 1 || get16(p + 18) != EM_CUDA)
		return none();
	if ((phnum && get16(p + 54) != PHDR) || (shnum && get16(p + 58) != SHDR))
		return none();
	uint64_t end = extend(EHDR, phnum ? phoff : 0, (uint64_t)phnum * PHDR);
	end = extend(end, shnum ? shoff : 0, (uint64_t)shnum * SHDR);
	for (uint16_t i = 0; end && i < shnum; i++) {
		const uint8_t *s = p + shoff + (size_t)i * SHDR;

		if (get32(s + 4) != SHT_NOBITS)
			end = extend(end, get64(s + 24), get64(s + 32));
	}
	return end ? (struct cw_image){CW_IMAGE_ELF, p, (size_t)end, NULL} : none();
}

static struct cw_image ptx(const uint8_t *p)
{
	/* Text begins with a blank, a comment or a directive; anything else would have us search
	 * binary data for a NUL. */
	if (!(p[0] == '\t' || p[0] == '\n' || p[0] == '\r' || (p[0] >= 0x20 && p[0] < 0x7f)))
		return none();
	size_t len = strnlen((const char *)p, CW_IMAGE_MAX);
	if (len >= CW_IMAGE_MAX)
		return none();
	return (struct cw_image){CW_IMAGE_PTX, p, len + 1, NULL};
}

/* The first bytes decide; they are compared one by one because a short text may end before the
 * fourth. */
static int begins(const uint8_t *p, uint32_t magic)
{
	for (int i = 0; i < 4; i++)
		if (p[i] != (uint8_t)(magic >> (8 * i)))
			return 0;
	return 1;
}

#define ELF_MAGIC 0x464c457fu

int cw_image_is_code(const void *p, size_t size) { return size >= 4 && (begins(p, ELF_MAGIC) || begins(p, FATBIN_MAGIC)); }

struct cw_image cw_image_probe(const void *image)
{
	const uint8_t *p = image;

	if (!p)
		return none();
	if (begins(p, WRAPPER_MAGIC)) {
		uint32_t version = get32(p + 4);
		const void *const *inputs = version == 2 ? (const void *const *)(uintptr_t)get64(p + 16) : NULL;
		struct cw_image img;

		p = (const uint8_t *)(uintptr_t)get64(p + 8);
		if ((version != 1 && version != 2) || !p)
			return none();
		if (begins(p, FATBIN_MAGIC))
			img = fatbin(p);
		else
			img = begins(p, ELF_MAGIC) ? elf(p) : none();
		img.inputs = inputs;
		return img;
	}
	if (begins(p, FATBIN_MAGIC))
		return fatbin(p);
	if (begins(p, ELF_MAGIC))
		return elf(p);
	return ptx(p);
}

#define INPUTS_MAX 4096 /* more than linkers take on a command line */

struct cw_image cw_image_inputs(const struct cw_image *img)
{
	struct cw_image one, all = none();
	size_t count = 0, len = 0;
	uint8_t *out;

	for (; img->inputs && count < INPUTS_MAX && img->inputs[count]; count++) {
		if (!begins(img->inputs[count], FATBIN_MAGIC))
			return all;
		one = fatbin(img->inputs[count]);
		if (!one.data || one.len > CW_IMAGE_MAX - len)
			return all;
		len += one.len;
	}
	out = len ? malloc(len) : NULL;
	if (!out)
		return all;
	all = (struct cw_image){CW_IMAGE_FATBIN, out, len, NULL};
	for (size_t i = 0; i < count; i++, out += one.len) {
		one = fatbin(img->inputs[i]);
		memcpy(out, one.data, one.len);
	}
	return all;
}
