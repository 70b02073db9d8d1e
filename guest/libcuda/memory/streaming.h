/* A copy whose destination goes past the CPU's caches: it is not read first, and drives nothing
 * out. */
#ifndef CW_MEMORY_STREAMING_H
#define CW_MEMORY_STREAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

static inline void cw_copy_streaming(uint8_t *dst, const uint8_t *src, size_t n)
{
	size_t head = (size_t)(-(uintptr_t)dst & 63);
	if (n < 256) {
		memcpy(dst, src, n);
		return;
	}
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 64; dst += 64, src += 64, n -= 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)src), b = _mm_loadu_si128((const __m128i *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(src + 32)), d = _mm_loadu_si128((const __m128i *)(src + 48));
		_mm_stream_si128((__m128i *)dst, a);
		_mm_stream_si128((__m128i *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(dst + 48), d);
	}
	_mm_sfence(); /* streaming stores are ordered with nothing else */
	memcpy(dst, src, n);
}

#else
static inline void cw_copy_streaming(uint8_t *dst, const uint8_t *src, size_t n) { memcpy(dst, src, n); }
#endif

#endif
