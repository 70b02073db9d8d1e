/* What a module image is and how long it is; the driver API passes neither. */
#ifndef CW_API_IMAGE_H
#define CW_API_IMAGE_H

#include <stddef.h>
#include <stdint.h>

enum cw_image_kind {
	CW_IMAGE_INVALID = 0, /* not an image: CUDA_ERROR_INVALID_IMAGE */
	CW_IMAGE_FATBIN,
	CW_IMAGE_ELF,
	CW_IMAGE_PTX,
};

#define CW_IMAGE_MAX ((uint64_t)1 << 30) /* longest image that is sent */

struct cw_image {
	enum cw_image_kind kind;
	const void *data; /* inside the caller's memory */
	size_t len;	  /* PTX: including the NUL */
	/* Of a version 2 wrapper: the linker's inputs, fatbins, up to NULL; else NULL. */
	const void *const *inputs;
};

/* cw_image_probe looks at the caller's pointer: a fatbin wrapper, a fatbin, a cubin, or PTX text.
 * It reads the headers, a cubin's section table, and PTX up to its NUL; never past what those
 * headers declare. */
struct cw_image cw_image_probe(const void *p);

/* Does [p, p + size) begin as machine code or a fatbin does? */
int cw_image_is_code(const void *p, size_t size);

/* cw_image_inputs copies the linker's inputs of an image behind one another into memory that the
 * caller frees. The result's data is NULL when there are none, or no memory. */
struct cw_image cw_image_inputs(const struct cw_image *img);

#endif
