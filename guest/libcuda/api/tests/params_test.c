/* Kernel arguments: gathering, and the checks of the packed form. */
#include "../params.c"

#include <stdio.h>

static int failures;

#define EXPECT(cond) \
	do { \
		if (!(cond)) { \
			printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond); \
			failures++; \
		} \
	} while (0)

static void gather(void)
{
	/* (char, 64-bit pointer, int, 12-byte struct, empty) with the gaps of alignment */
	static const struct cw_param layout[] = {{0, 1}, {8, 8}, {16, 4}, {20, 12}, {32, 0}};
	char c = 0x11;
	uint64_t ptr = 0x2222222222222222;
	uint32_t i = 0x33333333;
	uint8_t s[12], dst[33], none;
	void *args[] = {&c, &ptr, &i, s, &none};

	memset(s, 0x44, sizeof s);
	memset(dst, 0, sizeof dst);
	cw_params_gather(dst, layout, 5, args);
	EXPECT(dst[0] == 0x11 && dst[1] == 0 && dst[7] == 0);
	EXPECT(dst[8] == 0x22 && dst[15] == 0x22);
	EXPECT(dst[16] == 0x33 && dst[19] == 0x33);
	EXPECT(dst[20] == 0x44 && dst[31] == 0x44 && dst[32] == 0);
}

static void packed(void)
{
	static const uintptr_t B = 1, S = 2, E = 0;
	uint8_t buf[64];
	size_t n24 = 24, n64 = 64, big = CW_PARAM_BYTES_MAX + 1, zero = 0;
#define V(x) ((void *)(uintptr_t)(x))
	const struct {
		const char *what;
		void *extra[20];
		uint32_t need;
		int res;
		size_t size;
	} cases[] = {
		{"buffer, size", {V(B), buf, V(S), &n24, V(E)}, 24, 0, 24},
		{"size, buffer", {V(S), &n24, V(B), buf, V(E)}, 20, 0, 24},
		{"longer than needed", {V(B), buf, V(S), &n64, V(E)}, 24, 0, 64},
		{"shorter than needed", {V(B), buf, V(S), &n24, V(E)}, 25, 0, 24},
		{"nothing for a kernel without arguments", {V(E)}, 0, 0, 0},
		{"nothing for one with", {V(E)}, 4, 1, 0},
		{"buffer without size", {V(B), buf, V(E)}, 0, 1, 0},
		{"size without buffer", {V(S), &n24, V(E)}, 0, 1, 0},
		{"size zero without buffer", {V(S), &zero, V(E)}, 0, 0, 0},
		{"too long", {V(B), buf, V(S), &big, V(E)}, 0, 1, 0},
		{"unknown key", {V(3), buf, V(E)}, 0, 1, 0},
		{"NULL value", {V(B), NULL, V(E)}, 0, 1, 0},
		{"too many pairs",
		 {V(B), buf, V(B), buf, V(B), buf, V(B), buf, V(B), buf, V(B), buf, V(B), buf, V(B), buf, V(S), &n24},
		 0,
		 1,
		 0},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct cw_packed out;
		int res = cw_params_packed(cases[i].extra, cases[i].need, &out);

		if (res != cases[i].res || (!res && (out.size != cases[i].size || (out.size && out.data != buf)))) {
			printf("FAIL packed: %s: %d, %zu bytes\n", cases[i].what, res, out.size);
			failures++;
		}
	}
}

int main(void)
{
	gather();
	packed();
	return failures != 0;
}
